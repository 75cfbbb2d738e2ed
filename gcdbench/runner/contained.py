"""Keeps a plug-in from ending the process that runs it: whatever it raises fails its cell only."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import NoReturn

from gcdbench.runner.stop import Interrupted, Overdue, Stop

_exit = os._exit  # ends the process, also while a plug-in's call of it is turned into an error


class PluginExit(RuntimeError):
    """A plug-in has asked for the end of the process."""


class Contained:
    """Turns what would end the process into an ordinary error, while it is entered.

    A plug-in may raise SystemExit, GeneratorExit or KeyboardInterrupt, or call ``os._exit``. Only a
    stop that a signal has asked for goes through. What ends a process from outside of Python (a
    crash, SIGKILL) cannot be caught here: a pool notices the death of its process.
    """

    def __init__(self, stop: Stop) -> None:
        self.stop = stop

    def __enter__(self) -> None:
        self._before = os._exit
        os._exit = _refuse_in(os.getpid())  # type: ignore[assignment]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os._exit = self._before
        if error is None or isinstance(error, (Exception, Interrupted)):
            return
        if isinstance(error, KeyboardInterrupt) and self.stop.asked:
            return
        if isinstance(error, Overdue):
            raise TimeoutError(str(error)) from error
        text = f"{type(error).__name__}: {error}".rstrip(": ")
        raise PluginExit(f"a plug-in tried to end the run ({text})") from error


def _refuse_in(process: int) -> Callable[[int], NoReturn]:
    """Return a stand-in for ``os._exit`` that raises in a process, and exits in its children."""

    def refuse(status: int) -> NoReturn:
        if os.getpid() != process:  # a child that was forked meanwhile: of a data loader
            _exit(status)
        raise SystemExit(f"os._exit({status})")

    return refuse
