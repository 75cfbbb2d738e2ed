"""Fails cells that hang: those that take too long, and those that make no step any more."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gcdbench.experiment import heartbeat
from gcdbench.runner.options import RunOptions
from gcdbench.runner.stop import Stop

POLL_SECONDS = 0.5
GRACE_SECONDS = 10.0  # for a cell to end by itself after it was told to
FAILED = 1  # exit code of a process that had to be ended
log = logging.getLogger(__name__)
_exit = os._exit


def overdue(facts: Mapping[str, Any], options: RunOptions, *, grace: float = 0.0) -> str:
    """Say which limit a running cell has passed by ``grace`` seconds; nothing if it has not.

    ``facts`` are those of its heartbeat.
    """
    now = time.time()
    limit, stall = options.cell_timeout, options.stall_timeout
    if limit is not None and now - facts["started"] > limit + grace:
        return f"it has run longer than --cell-timeout allows ({limit / 60:g} minutes)"
    if stall is not None and now - facts["stepped"] > stall + grace:
        return f"it has made no step for {stall / 60:g} minutes (--stall-timeout)"
    return ""


def overdue_in(folder: Path, began: float, options: RunOptions) -> str:
    """Say which limit the cell of another process has passed although that process watches it."""
    if options.cell_timeout is None and options.stall_timeout is None:
        return ""
    told = heartbeat.read(folder, heartbeat.PROGRESS) or {}
    facts = {name: max(told.get(name, began), began) for name in ("started", "stepped")}
    return overdue(facts, options, grace=2 * GRACE_SECONDS)


class Watchdog:
    """Ends the cell that a process runs if it passes a limit, while it is entered.

    A cell that does not react, since it hangs in a library, takes its process with it: the failure
    is noted, and the next run, or the next process of a pool, continues with the other cells.
    """

    def __init__(self, beat: heartbeat.Heartbeat, options: RunOptions, stop: Stop) -> None:
        self.beat, self.options, self.stop = beat, options, stop
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if self.options.cell_timeout is not None or self.options.stall_timeout is not None:
            self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
            self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self.stop.spare_cell()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(POLL_SECONDS):
            if reason := overdue(self.beat.facts, self.options):
                self.stop.end_cell(reason)
                if not self._done.wait(GRACE_SECONDS):
                    folder = self.beat.path.parent
                    heartbeat.note_failure(folder, f"{reason}, and its process had to be ended")
                    log.error("%s: %s; it does not react, so this process ends", folder, reason)
                    _exit(FAILED)
                return
