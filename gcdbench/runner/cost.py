"""What a cell will cost, judged by what recorded cells have cost. Nothing here imports torch."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gcdbench.core.config import plain
from gcdbench.errors import UserError
from gcdbench.experiment.plan import Cell
from gcdbench.experiment.record import Record

VIEWS = 2  # of every image in a training step


@dataclass(frozen=True)
class Estimate:
    """The work of a cell, and its time if similar cells are recorded."""

    images: int  # views that are trained on and images that are scored
    seconds: float | None = None
    basis: str = "nothing like it is recorded"


def work(train: Mapping[str, Any], *, pool: int, scored: int) -> int:
    """Return the number of views in training and of images in the final scoring.

    >>> work({"batch_size": 4, "draws_per_epoch": None, "epochs": 3}, pool=10, scored=5)
    53
    """
    batch = min(train["batch_size"], pool)
    steps = max((train["draws_per_epoch"] or pool) // batch, 1)
    return train["epochs"] * steps * batch * VIEWS + scored


class CostModel:
    """Seconds per image of recorded cells: of the same method if possible, else of any."""

    def __init__(self, recorded: Iterable[Record]) -> None:
        self._rates: dict[tuple, list[float]] = defaultdict(list)
        self._medians: dict[tuple, float] = {}
        for record in recorded:
            images = work(
                record.train,
                pool=record.problem.labelled + record.problem.unlabelled,
                scored=sum(s.n for s in record.sets.values()),
            )
            rate = record.timing.wall_seconds / images
            kind = _kind(record.backbone, record.train)
            self._rates[(record.method, *kind)].append(rate)
            self._rates[("", *kind)].append(rate)

    def estimate(self, cell: Cell) -> Estimate:
        """Estimate a cell."""
        train = plain(cell.train)
        pool, scored = _sizes(cell)
        images = work(train, pool=pool, scored=scored)
        kind = _kind(plain(cell.backbone), train)
        for method, whose in ((cell.spec.text, "of this method"), ("", "of other methods")):
            if rates := self._rates.get((method, *kind)):
                number = len(rates)
                basis = f"by {number} record{'s' * (number > 1)} {whose}"
                return Estimate(images, images * self._median(method, *kind), basis)
        return Estimate(images)

    def _median(self, *kind: Any) -> float:
        """Return the median rate of a kind; it is asked for by every cell."""
        if kind not in self._medians:
            self._medians[kind] = statistics.median(self._rates[kind])
        return self._medians[kind]


def _sizes(cell: Cell) -> tuple[int, int]:
    """Return how many images are trained on and scored; without the data only the former."""
    try:
        problem = cell.problem()
    except UserError:
        return max(cell.loader().published_size() or 0, 1), 0
    return len(problem.pool), sum(len(s.rows) for s in problem.sets.values())


def _kind(backbone: Mapping[str, Any], train: Mapping[str, Any]) -> tuple:
    """Return what decides the cost of an image in addition to the method."""
    return backbone["name"], backbone["train_blocks"], bool(train.get("view_bank"))


def duration(seconds: float) -> str:
    """Return a time in readable form.

    >>> [duration(s) for s in (8.4, 300, 7500, 200000)]
    ['8 s', '5 min', '2 h 5 min', '2.3 days']
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes / 1440:.1f} days"
