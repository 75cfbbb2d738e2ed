"""The progress of all cells of a run: a bar above that of the cell, log lines and the time left."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from typing import Any

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from gcdbench.experiment.outcome import Attempt, Outcome
from gcdbench.experiment.plan import Cell
from gcdbench.runner.cost import duration

log = logging.getLogger(__name__)


class Grid:
    """Collects the results of cells and shows how many are done and how long the others take."""

    def __init__(self, total: int) -> None:
        self.outcome = Outcome()
        self.total = total
        self._began = time.monotonic()
        self._bar: Any = None
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Grid:
        self._began = time.monotonic()
        left = self.total - len(self.outcome.skipped)
        first = os.environ.get("RANK", "0") == "0"  # of the processes that torchrun starts
        if left > 1 and first and sys.stderr.isatty():
            self._open.enter_context(logging_redirect_tqdm())  # log lines go above the bars
            bar = tqdm(total=left, desc="all cells", unit="cell", leave=False)
            self._bar = self._open.enter_context(bar)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def add(self, cell: Cell, result: Attempt) -> None:
        """Add the result of a cell and log it."""
        outcome = self.outcome
        if result.kind == "skipped":
            outcome.skipped.append(cell)
        elif result.kind == "failed":
            outcome.failed.append((cell, result.message))
        else:
            outcome.trained.append(cell)
        if self._bar is not None:
            self._advance(skipped=result.kind == "skipped")
        if result.kind != "skipped":
            self._log(cell, result)

    def _advance(self, *, skipped: bool) -> None:
        """Move the bar; recorded cells take no time and would spoil its estimate."""
        if skipped:
            self._bar.total -= 1
            self._bar.refresh()
        else:
            self._bar.update()

    def _log(self, cell: Cell, result: Attempt) -> None:
        outcome = self.outcome
        number = len(outcome.trained) + len(outcome.failed) + len(outcome.skipped)
        place = f"[{number}/{self.total}] {cell.label}"
        if result.kind == "failed":
            log.error("%s failed: %s%s", place, result.message, self.left())
        else:
            log.info("%s: %s%s", place, result.message, self.left())

    def left(self) -> str:
        """Return the time that the remaining cells will take if they are like those so far."""
        outcome = self.outcome
        done = len(outcome.trained) + len(outcome.failed)
        remaining = self.total - done - len(outcome.skipped)
        if not done or not remaining:
            return ""
        spent = time.monotonic() - self._began
        return f" (about {duration(spent / done * remaining)} left)"
