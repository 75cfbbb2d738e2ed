"""Stop a run between two training steps, after Ctrl-C or a signal of a scheduler."""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType
from typing import Any

NOTICE = signal.SIGUSR2  # sent by a scheduler when time is up
SIGNALS = (signal.SIGINT, signal.SIGTERM, NOTICE)
log = logging.getLogger(__name__)


class Interrupted(KeyboardInterrupt):
    """Raised after a stop was requested and everything needed to resume was saved."""


class Stop:
    """Signal handler, used as a context; ``asked`` is true after a signal has arrived.

    The first signal requests a stop; a second Ctrl-C stops at once, by KeyboardInterrupt, unless
    the process is patient (it may get the same signal several times). A worker of a pool
    (``parent`` given) leaves Ctrl-C to its parent, and stops when the parent has died.
    """

    def __init__(self, *, parent: int | None = None, patient: bool = False) -> None:
        self.parent = parent
        self.patient = patient
        self.heard: int | None = None  # the first signal
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                ignored = number is signal.SIGINT and self.parent is not None
                handler: Any = signal.SIG_IGN if ignored else self._hear
                self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        impatient = not self.patient and self.parent is None
        if self.heard is None:
            self.heard = number
            again = "; Ctrl-C again stops at once" if impatient else ""
            log.warning("stopping after this step%s", again)
        elif number == signal.SIGINT and impatient:
            raise KeyboardInterrupt

    @property
    def asked(self) -> bool:
        """Whether to stop at the next opportunity."""
        return self.heard is not None or (self.parent is not None and os.getppid() != self.parent)

    def check(self) -> None:
        """Raise if a stop was asked for."""
        if self.asked:
            raise Interrupted
