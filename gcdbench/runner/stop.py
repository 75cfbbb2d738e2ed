"""Stops a run between two training steps, after Ctrl-C or a signal of a scheduler.

A second signal does not wait for the end of the step, and a process that hangs even then is ended.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

NOTICE = signal.SIGUSR2  # sent by a scheduler when time is up
SIGNALS = (signal.SIGINT, signal.SIGTERM, NOTICE)
INTERRUPTED = 130  # exit code
TWICE_SECONDS = 0.5  # two signals within this time are one: a shell and a tool may both send it
GRACE_SECONDS = 10.0  # from the second signal to the end of a process that does not react
PARENT_GRACE_SECONDS = 15.0  # from the death of a parent to that of a worker that does not react
log = logging.getLogger(__name__)
_exit = os._exit


class Interrupted(KeyboardInterrupt):
    """Raised after a stop was requested and everything needed to resume was saved."""


class Overdue(BaseException):
    """A cell takes longer than it may; no ``except Exception`` of a plug-in can swallow it."""


class Stop:
    """Signal handler, used as a context; ``asked`` is true after a signal has arrived.

    The first signal asks; the second one stops at once, unless the process is patient: it may get
    one signal by several ways. A worker of a pool (``parent`` is the number of the process that
    started it) leaves Ctrl-C to its parent, and stops when that has died.
    """

    def __init__(self, *, parent: int | None = None, patient: bool = False) -> None:
        self.parent = parent
        self.patient = patient
        self.heard: int | None = None  # the first signal
        self._heard_at = 0.0
        self._overdue = ""  # why the cell that is running has to end
        self._last_resort: threading.Timer | None = None
        self._left = threading.Event()
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Stop:
        self._left.clear()
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                ignored = number is signal.SIGINT and self.parent is not None
                handler: Any = signal.SIG_IGN if ignored else self._hear
                self._before[number] = signal.signal(number, handler)
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._ring)
        if self.parent is not None:
            threading.Thread(target=self._outlive_parent, name="parent", daemon=True).start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._left.set()
        if self._last_resort is not None:
            self._last_resort.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        impatient = not self.patient and self.parent is None
        if self.heard is None:
            self.heard, self._heard_at = number, time.monotonic()
            again = "; Ctrl-C or SIGTERM again stops at once" if impatient else ""
            log.warning("stopping after this step%s", again)
        elif impatient and number != NOTICE and self._is_second():
            if self._last_resort is None:
                self._last_resort = threading.Timer(GRACE_SECONDS, _exit, (INTERRUPTED,))
                self._last_resort.daemon = True
                self._last_resort.start()
            raise Interrupted

    def _is_second(self) -> bool:
        return time.monotonic() - self._heard_at >= TWICE_SECONDS

    def _ring(self, number: int, frame: FrameType | None) -> None:
        reason, self._overdue = self._overdue, ""
        if reason:
            raise Overdue(reason)

    def end_cell(self, reason: str) -> None:
        """Raise Overdue in the main thread, which runs a cell; another thread may call this."""
        main = threading.main_thread().ident
        if signal.SIGALRM in self._before and main is not None:
            self._overdue = reason
            signal.pthread_kill(main, signal.SIGALRM)

    def spare_cell(self) -> None:
        """Take back ``end_cell``, if it has not been noticed: the cell has ended by itself."""
        self._overdue = ""

    def _outlive_parent(self) -> None:
        """End this process some seconds after its parent, whatever it hangs in."""
        while os.getppid() == self.parent:
            if self._left.wait(1.0):
                return
        if not self._left.wait(PARENT_GRACE_SECONDS):
            _exit(INTERRUPTED)

    @property
    def asked(self) -> bool:
        """Whether to stop at the next opportunity."""
        return self.heard is not None or (self.parent is not None and os.getppid() != self.parent)

    def check(self) -> None:
        """Raise if a stop was asked for."""
        if self.asked:
            raise Interrupted
