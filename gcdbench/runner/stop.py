"""A wish to stop, from Ctrl-C or a scheduler, that is fulfilled between two training steps."""

from __future__ import annotations

import logging
import os
import signal
import threading
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop and has saved what it needs to go on."""


class Stop:
    """Listens to signals while it is entered; ``asked`` tells whether one has come.

    The first signal asks; the second one of Ctrl-C stops at once, by KeyboardInterrupt. A worker of
    a pool (``parent`` given) leaves Ctrl-C to its parent, and stops when that has died.
    """

    def __init__(self, *, parent: int | None = None, also: tuple[signal.Signals, ...] = ()) -> None:
        self.parent = parent
        self.signals = (signal.SIGINT, signal.SIGTERM, *also)
        self.heard = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for number in self.signals:
                ignored = number is signal.SIGINT and self.parent is not None
                handler: Any = signal.SIG_IGN if ignored else self._hear
                self._before[number] = signal.signal(number, handler)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.heard and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self.heard:
            log.warning("stopping after this step; Ctrl-C again stops at once")
        self.heard = True

    @property
    def asked(self) -> bool:
        """Whether to stop at the next opportunity."""
        return self.heard or (self.parent is not None and os.getppid() != self.parent)

    def check(self) -> None:
        """Raise if a stop was asked for."""
        if self.asked:
            raise Interrupted
