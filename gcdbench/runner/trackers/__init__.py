"""Log a cell's training: JSON lines always, other trackers on request, several at once.

A tracker is a class that is called with a ``TrackedCell`` and has the methods of ``Tracker``. Third
parties add trackers through the entry-point group ``gcdbench.trackers``. A tracker cannot change a
number, and one that fails is left out for the rest of its cell, which continues.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gcdbench.core.extensions import Extensions
from gcdbench.core.registry import ENDINGS
from gcdbench.errors import UserError
from gcdbench.experiment.records import flat
from gcdbench.runner.trackers.json_lines import JsonLines

TRACKERS = Extensions(  # the package that one needs has its name
    "tracker",
    {
        "tensorboard": "gcdbench.runner.trackers.tensorboard:TensorBoardTracker",
        "wandb": "gcdbench.runner.trackers.wandb:WandbTracker",
        "mlflow": "gcdbench.runner.trackers.mlflow:MlflowTracker",
    },
)
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrackedCell:
    """What a tracker knows about the cell."""

    label: str
    key: str
    settings: Mapping[str, Any]  # by their paths: ``train.lr``
    folder: Path  # of the cell, where a tracker may write
    results: Path


class Tracker(Protocol):
    """Receives the numbers of one cell."""

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Take the numbers of an epoch, such as ``terms/supcon``; at last ``final/<set>``."""

    def close(self, *, failed: bool) -> None:
        """End the cell, which has failed or was interrupted, or is done."""


def check_trackers(names: Iterable[str]) -> None:
    """Raise a UserError if a tracker cannot be used, before the first cell."""
    for name in names:
        if name in TRACKERS.own and importlib.util.find_spec(name) is None:
            raise UserError(
                f"--tracker {name}: the package is not installed; pip install 'gcdbench[{name}]'"
            )
        if name not in TRACKERS.own:
            TRACKERS.load(name)


class Trackers:
    """The log of a cell and the trackers that were asked for."""

    def __init__(
        self, cell: TrackedCell, names: Sequence[str] = (), curve: Sequence[dict[str, Any]] = ()
    ) -> None:
        """Start the trackers; ``curve`` are the epochs before the cell was interrupted."""
        self._cell, self._lines = cell, JsonLines(cell.folder)
        self._running: dict[str, Tracker] = {}
        self._epoch = 0
        for name in dict.fromkeys(names):
            self._guarded(name, self._start)
        for row in curve:
            self._send(row)

    def __enter__(self) -> Trackers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        for name in list(self._running):
            self._guarded(name, lambda one: self._running[one].close(failed=kind is not None))

    def write(self, event: str, **row: Any) -> None:
        """Write an event into the log; the numbers of an epoch go to the trackers as well."""
        self._lines.write(event, row)
        if event == "epoch":
            self._send(row)
        elif event == "end":
            self._send({"epoch": self._epoch, "final": row})

    def _start(self, name: str) -> None:
        self._running[name] = TRACKERS.load(name)(self._cell)

    def _send(self, row: Mapping[str, Any]) -> None:
        """Send the finite numbers of a row to all trackers."""
        self._epoch = row["epoch"]
        found = flat({k: v for k, v in row.items() if k != "epoch"})
        numbers = {
            name.replace(".", "/", 1): float(value)
            for name, value in found.items()
            if isinstance(value, (int, float)) and math.isfinite(value)
        }
        for name in list(self._running):
            self._guarded(name, lambda one: self._running[one].log(numbers, self._epoch))

    def _guarded(self, name: str, call: Callable[[str], None]) -> None:
        """Call something of a tracker; if it fails, say so once and leave the tracker out."""
        try:
            call(name)
        except ENDINGS as error:  # a tracker may fail in any way, and must not fail the cell
            self._running.pop(name, None)
            text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            log.warning("%s: continues without --tracker %s (%s)", self._cell.label, name, text)
