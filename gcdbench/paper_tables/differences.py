"""How much the rows of one method differ in a table, and what the seeds tell of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gcdbench.paper_tables.tables import Entry
from gcdbench.report import statistics
from gcdbench.report.collect import percent

Scores = Mapping[str, Mapping[str, float | None]]  # evaluation set -> all, old, new as fractions


@dataclass(frozen=True)
class Difference:
    """All of a row minus All of the first row of its method, over the seeds that both have."""

    panel: str
    row: str
    first: str
    set: str
    mean: float  # points
    std: float
    seeds: int
    p: float  # of a paired t-test over seeds; Holm's correction for all rows of the table


def differences(measured: Sequence[tuple[Entry, Mapping[int, Scores]]]) -> list[Difference]:
    """Compare each row, given with its scores by seed, with the first one of its method."""
    found = []
    firsts: dict[tuple[str, str], tuple[Entry, Mapping[int, Scores]]] = {}
    for entry, seeds in measured:
        place = entry.panel.title, entry.row.spec
        if place not in firsts:
            firsts[place] = entry, seeds
            continue
        first, others = firsts[place]
        both = [seed for seed in seeds if seed in others]
        if len(both) < 2:  # one seed tells nothing of others
            continue
        for name in seeds[both[0]]:
            pairs = [(seeds[seed][name]["all"], others[seed][name]["all"]) for seed in both]
            gains = np.array([percent(one) - percent(other) for one, other in pairs])
            numbers = float(gains.mean()), float(gains.std(ddof=1)), len(gains), paired_p(gains)
            names = entry.panel.title, entry.row.name, first.row.name, name
            found.append(Difference(*names, *numbers))
    corrected = statistics.holm([one.p for one in found])
    return [replace(one, p=p) for one, p in zip(found, corrected, strict=True)]


def paired_p(gains: np.ndarray) -> float:
    """Return p of a two-sided t-test that the mean is zero; 1 if nothing differs.

    >>> round(paired_p(np.array([1.0, 2.0, 3.0])), 4)
    0.0742
    """
    if not gains.any():
        return 1.0
    from scipy.special import stdtr

    error = gains.std(ddof=1) / math.sqrt(len(gains))
    return float(2 * stdtr(len(gains) - 1, -abs(gains.mean()) / error)) if error else 0.0
