"""Does a criterion rank settings as the hidden labels do? Rank correlation, regret and gain.

The target of a draw is its accuracy on the true split (mean of All on source and shifted images,
last epoch): what somebody gets who trains with these settings. The criteria were measured on a
fold, without the labels that the target is computed from.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import kendalltau, rankdata

RESAMPLES = 2000
DEFAULT = "default"  # no search: the first draw


@dataclass(frozen=True)
class Trial:
    """The draws of one method on one dataset: values by criterion, and the target in percent."""

    dataset: str
    method: str
    values: dict[str, list[float]]
    target: list[float]
    settings: Sequence[Mapping[str, Any]] = ()  # what each draw sets, by flat name
    seconds: float = 0.0
    failed: int = 0  # draws that are left out

    @property
    def oracle(self) -> float:
        """The best target, which only hidden labels can find."""
        return max(self.target)

    def chosen(self, criterion: str) -> float:
        """The target of the draw that a criterion chooses, the first of equal ones."""
        if criterion == DEFAULT:
            return self.target[0]
        return self.target[int(np.argmax(self.values[criterion]))]


@dataclass(frozen=True)
class Estimate:
    """A number with its 95% interval; NaN if it is not defined."""

    value: float
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Line:
    """A criterion on one trial."""

    trial: Trial
    criterion: str
    correlation: Estimate
    regret: float  # points below the best draw
    gain: float  # points above the defaults


@dataclass(frozen=True)
class Summary:
    """A criterion over all trials."""

    criterion: str
    correlation: Estimate
    regret: Estimate
    gain: Estimate
    better: int  # trials in which the choice is above the defaults
    worse: int


def lines(trials: Iterable[Trial], criteria: Sequence[str]) -> list[Line]:
    """Return what each criterion does on each trial."""
    return [
        Line(
            trial,
            name,
            Estimate(math.nan)
            if name == DEFAULT
            else correlation(trial.values[name], trial.target),
            regret=trial.oracle - trial.chosen(name),
            gain=trial.chosen(name) - trial.target[0],
        )
        for trial in trials
        for name in criteria
    ]


def summaries(found: Sequence[Line]) -> list[Summary]:
    """Return the means over trials, with intervals by bootstrap over trials."""
    result = []
    for name in dict.fromkeys(line.criterion for line in found):
        own = [line for line in found if line.criterion == name]
        known = [line.correlation.value for line in own if not math.isnan(line.correlation.value)]
        result.append(
            Summary(
                name,
                correlation=_mean(known),
                regret=_mean([line.regret for line in own]),
                gain=_mean([line.gain for line in own]),
                better=sum(line.gain > 0 for line in own),
                worse=sum(line.gain < 0 for line in own),
            )
        )
    return result


def correlation(values: Sequence[float], target: Sequence[float]) -> Estimate:
    """Return Spearman's rank correlation, with an interval by bootstrap over draws."""
    one, other = np.array(values, dtype=float), np.array(target, dtype=float)
    value = spearman(one, other)
    if math.isnan(value):
        return Estimate(value)
    rng = np.random.RandomState(0)
    drawn = rng.randint(len(one), size=(RESAMPLES, len(one)))
    low, high = np.nanpercentile(_rank_correlations(one[drawn], other[drawn]), [2.5, 97.5])
    return Estimate(value, float(low), float(high))


def spearman(one: np.ndarray, other: np.ndarray) -> float:
    """Return the correlation of the ranks; NaN if all values of either are equal."""
    return float(_rank_correlations(one[None], other[None])[0])


def _rank_correlations(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return (m,) the rank correlations of the rows of two tables (m, n); NaN if not defined."""
    ranks = [rankdata(table, axis=1) for table in (one, other)]
    x, y = (table - table.mean(axis=1, keepdims=True) for table in ranks)
    length = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    nothing = np.full(len(length), np.nan)
    return np.asarray(np.divide((x * y).sum(axis=1), length, out=nothing, where=length > 0))


def order_of_methods(trials: Sequence[Trial], criterion: str) -> dict[str, float]:
    """Return by dataset Kendall's tau between the methods' order with defaults and when tuned."""
    found = {}
    for dataset in dict.fromkeys(trial.dataset for trial in trials):
        own = [trial for trial in trials if trial.dataset == dataset]
        if len(own) > 1:
            pair = [t.target[0] for t in own], [t.chosen(criterion) for t in own]
            found[dataset] = float(kendalltau(*pair).statistic)
    return found


def _mean(values: Sequence[float]) -> Estimate:
    if not values:
        return Estimate(math.nan)
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Estimate(mean)
    return Estimate(mean, *_interval(np.array(values), np.mean))


def _interval(values: np.ndarray, of: Callable[[np.ndarray], float]) -> tuple[float, float]:
    rng = np.random.RandomState(0)
    drawn = rng.randint(len(values), size=(RESAMPLES, len(values)))
    low, high = np.percentile([of(values[rows]) for rows in drawn], [2.5, 97.5])
    return float(low), float(high)
