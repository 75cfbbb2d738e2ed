"""Uncertainty of a leaderboard: intervals, paired tests and ranks over datasets.

Follows Demšar, Statistical Comparisons of Classifiers over Multiple Data Sets (JMLR 2006): datasets
are the units; seeds are averaged first, because runs on one dataset are not independent evidence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

ALPHA = 0.05
RESAMPLES = 10_000
CHUNK = 500  # resamples that are drawn at a time


class Interval(NamedTuple):
    """Bounds of an interval; NaN if there is a single value."""

    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """Two methods on the same datasets and seeds."""

    first: str
    second: str
    difference: float  # mean of first - second, in points
    interval: Interval
    unit: str  # of a pair: "dataset" or, if there is only one, "seed"
    pairs: int
    wins: int  # of the first
    losses: int
    p: float  # Wilcoxon signed-rank test, two-sided
    p_holm: float = math.nan  # corrected for all comparisons made


@dataclass(frozen=True)
class Ranking:
    """Average ranks over datasets with Friedman's test and Nemenyi's critical difference."""

    methods: list[str]  # best first
    ranks: list[float]
    datasets: int
    chi2: float
    p: float
    critical_difference: float
    groups: list[tuple[int, int]]  # first and last of methods that do not differ significantly


def scores(table: pd.DataFrame, *, role: str, split: str = "All") -> pd.DataFrame:
    """Return one row per dataset and seed and one column per method: the mean over a role's sets.

    Cells that are not recorded are NaN.
    """
    chosen = table[(table["role"] == role) & (table["split"] == split)]
    grouped = chosen.groupby(["dataset", "seed", "method"], sort=False)["accuracy"]
    if grouped.size().eq(1).all():  # as in most suites: nothing to average, a thousand times faster
        return grouped.first().unstack("method")
    return grouped.agg(lambda values: values.mean(skipna=False)).unstack("method")


def bootstrap(values: Sequence[Sequence[float] | NDArray[np.float64]]) -> Interval:
    """Return the 95% percentile interval of the mean, resampling datasets and then their seeds.

    ``values`` has one row of seeds per dataset; every dataset weighs the same. With one dataset
    only its seeds are resampled.
    """
    rows = [row[~np.isnan(row)] for row in (np.asarray(v, dtype=float) for v in values)]
    if not rows or not all(map(len, rows)):
        return Interval(math.nan, math.nan)
    low, high = intervals(np.concatenate(rows)[None], tuple(map(len, rows)))[0]
    return Interval(float(low), float(high))


def intervals(values: NDArray[np.float64], seeds: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the bounds (n, 2) for n rows of values, in each ``seeds[d]`` of dataset ``d``."""
    if sum(seeds) == 1:
        return np.full((len(values), 2), np.nan)
    count = len(seeds)
    weighted = values * np.repeat([1 / (count * size) for size in seeds], seeds)
    means = np.concatenate([weighted @ drawn for drawn in _resamples(seeds)], axis=1)
    means = means.round(9)  # further digits depend on the machine
    bounds: NDArray[np.float64] = np.quantile(means, [ALPHA / 2, 1 - ALPHA / 2], axis=1).T
    return bounds


@lru_cache(maxsize=1)
def _resamples(seeds: tuple[int, ...]) -> list[NDArray[Any]]:
    """Return how often each value is drawn, (values, resamples) in several parts."""
    rng = np.random.RandomState(0)  # so that the same records give the same bytes
    sizes, count = np.array(seeds), len(seeds)
    dataset = rng.randint(count, size=(RESAMPLES, count, 1))
    starts = np.cumsum([0, *seeds])
    small = np.uint16 if count * max(seeds) < 1 << 16 else np.uint32
    parts = []
    for first in range(0, RESAMPLES, CHUNK):  # with hundreds of seeds all draws would take a GB
        chosen = dataset[first : first + CHUNK]
        drawn = rng.random_sample((len(chosen), count, max(seeds))) * sizes[chosen]
        used = np.arange(max(seeds)) < sizes[chosen]
        resample = np.broadcast_to(np.arange(len(chosen))[:, None, None], used.shape)
        place = (starts[chosen] + drawn.astype(int)) * len(chosen) + resample
        found = np.bincount(place[used], minlength=sum(seeds) * len(chosen))
        parts.append(found.reshape(sum(seeds), len(chosen)).astype(small))
    return parts


def wilcoxon(differences: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the exact two-sided p of the signed-rank test, also with ties.

    Zeros are ranked, and half of their ranks counts for either side, as in Demšar's paper.
    """
    values = pd.Series(differences, dtype=float)
    doubled = (2 * values.abs().rank()).astype(int)  # ranks of ties may be halves
    chances = np.ones(1)  # of the sum of the positive ranks, over all signs of what is not zero
    for one in doubled[values != 0]:
        chances = (np.pad(chances, (0, one)) + np.pad(chances, (one, 0))) / 2
    total = int(doubled[values != 0].sum())
    seen = abs(2 * int(doubled[values > 0].sum()) - total)
    as_far = np.abs(2 * np.arange(len(chances)) - total) >= seen
    return min(1.0, float(chances[as_far].sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number by Holm's step-down procedure.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    count, running = len(p_values), 0.0
    adjusted = [math.nan] * count
    for step, index in enumerate(np.argsort(p_values, kind="stable")):
        running = max(running, min(1.0, (count - step) * p_values[index]))
        adjusted[index] = running
    return adjusted


def compare(table: pd.DataFrame) -> list[Comparison]:
    """Compare all pairs of columns of a table of scores on the cells that both have."""
    unit = "dataset" if table.index.get_level_values("dataset").nunique() > 1 else "seed"
    found = [_pair(table, *names, unit) for names in itertools.combinations(table.columns, 2)]
    tested = [one for one in found if one is not None]
    adjusted = holm([one.p for one in tested])
    return [
        Comparison(**{**one.__dict__, "p_holm": p}) for one, p in zip(tested, adjusted, strict=True)
    ]


def _pair(table: pd.DataFrame, first: str, second: str, unit: str) -> Comparison | None:
    difference = (table[first] - table[second]).dropna()
    if difference.empty:
        return None
    by_dataset = [np.asarray(group) for _, group in difference.groupby(level="dataset", sort=False)]
    means = np.array([row.mean() for row in by_dataset])
    values = means if unit == "dataset" else by_dataset[0]
    values = values.round(9)  # float noise must not break ties
    return Comparison(
        first=first,
        second=second,
        difference=float(means.mean()),
        interval=bootstrap(by_dataset),
        unit=unit,
        pairs=len(values),
        wins=int((values > 0).sum()),
        losses=int((values < 0).sum()),
        p=wilcoxon(values),
    )


def rank(table: pd.DataFrame, *, alpha: float = ALPHA) -> Ranking | None:
    """Rank methods by their scores (one row per dataset); None if there is nothing to compare.

    Only datasets on which all methods are scored are used.
    """
    complete = table.dropna()
    datasets, count = complete.shape
    if count < 2 or datasets < 2:
        return None
    ranks = complete.round(9).rank(axis=1, ascending=False).mean().sort_values(kind="stable")
    chi2, p = _friedman(complete.round(9).to_numpy())
    difference = critical_difference(count, datasets, alpha=alpha)
    values = [float(value) for value in ranks]
    names = [str(name) for name in ranks.index]
    return Ranking(names, values, datasets, chi2, p, difference, _groups(values, difference))


def critical_difference(methods: int, datasets: int, *, alpha: float = ALPHA) -> float:
    """Return the difference of average ranks above which two methods differ by Nemenyi's test."""
    from scipy.optimize import brentq

    q = brentq(lambda width: _range_within(width, methods) - (1 - alpha), 0.0, 50.0, xtol=1e-12)
    return float(q) / math.sqrt(2) * math.sqrt(methods * (methods + 1) / (6 * datasets))


def _range_within(width: float, count: int) -> float:
    """Return the probability that ``count`` standard normal numbers have a range below ``width``.

    This is the studentised range with infinitely many degrees of freedom. scipy.stats has it, too,
    but importing that takes longer than computing a report.
    """
    from scipy.special import ndtr

    lowest = np.linspace(-9.0, 9.0, 2001)
    density = np.exp(-(lowest**2) / 2) / math.sqrt(2 * math.pi)
    others = (ndtr(lowest + width) - ndtr(lowest)) ** (count - 1)
    return count * float((density * others).sum() * (lowest[1] - lowest[0]))


def _friedman(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return Friedman's statistic, corrected for ties, and its p; two methods are allowed too."""
    from scipy.special import chdtrc

    datasets, count = values.shape
    ranks = pd.DataFrame(values).rank(axis=1).to_numpy()
    spread = ((ranks - (count + 1) / 2) ** 2).sum()
    if spread == 0:  # all methods are equal on all datasets
        return 0.0, 1.0
    between = ((ranks.sum(axis=0) - datasets * (count + 1) / 2) ** 2).sum()
    statistic = float((count - 1) * between / spread)
    return statistic, float(chdtrc(count - 1, statistic))


def _groups(ranks: Sequence[float], difference: float) -> list[tuple[int, int]]:
    """Return the longest runs of sorted ranks that span at most a critical difference."""
    runs: list[tuple[int, int]] = []
    for start, low in enumerate(ranks):
        end = max(i for i, value in enumerate(ranks) if value - low <= difference)
        if end > start and not (runs and runs[-1][1] == end):
            runs.append((start, end))
    return runs


def smallest_p(pairs: int) -> float:
    """Return the smallest p that a signed-rank test of this many pairs can give.

    >>> smallest_p(3)
    0.25
    """
    return min(1.0, 2.0 ** (1 - pairs))


def pairs_needed(comparisons: int, *, alpha: float = ALPHA) -> int:
    """Return how many pairs a test needs to be significant if corrected for ``comparisons`` tests.

    >>> pairs_needed(1), pairs_needed(21)
    (6, 10)
    """
    return next(n for n in itertools.count(1) if comparisons * smallest_p(n) <= alpha)


def caveats(table: pd.DataFrame) -> list[str]:
    """Return sentences on what cannot be claimed with this number of seeds and datasets."""
    seeds = table.groupby(level="dataset").count()
    recorded = seeds.to_numpy()[seeds.to_numpy() > 0]
    fewest, datasets = int(recorded.min(initial=100)), len(seeds)
    comparisons = math.comb(len(table.columns), 2)
    sentences = []
    if fewest < 2:
        sentences.append(
            "Some cells have a single seed: nothing is known about their spread, "
            "and no difference on one dataset means anything yet."
        )
    elif smallest_p(fewest) > ALPHA:
        sentences.append(
            f"With {fewest} seeds a Wilcoxon test on one dataset cannot reach p < "
            f"{smallest_p(fewest):.3g}, whatever the numbers are, and an interval over seeds, "
            "which lies between the least and the greatest, holds with a probability of at most "
            f"{1 - smallest_p(fewest):.1%} instead of 95%; {pairs_needed(1)} seeds are the least "
            f"for p < {ALPHA}."
        )
    least = min(1.0, comparisons * smallest_p(datasets))
    if comparisons and datasets > 1 and least > ALPHA:
        sentences.append(
            f"With {datasets} datasets and {comparisons} comparison{'s' * (comparisons > 1)} even "
            f"the clearest outcome has a corrected p of {least:.2g}: the ranking describes these "
            f"datasets and proves nothing about others ({pairs_needed(comparisons)} datasets would "
            "be needed)."
        )
    return sentences
