"""Estimate the number of classes from features in which only some old classes are labelled.

As in GCD (Vaze et al., CVPR 2022): cluster all features with k-means for a candidate K and score
the clusters on the labelled rows alone; the K with the highest accuracy wins. Two searches visit
the candidates in the official order, Brent's method on the truncated K and a binary search. Both
visit the same K many times, which is clustered only once here. The result is the best K visited,
the smallest in case of a tie.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import normalize

from gcdbench.core.settings import TaskConfig
from gcdbench.data.problem import Problem
from gcdbench.ops.kmeans.api import Init, semi_supervised_kmeans
from gcdbench.ops.metrics import accuracies
from gcdbench.ops.random import seeded
from gcdbench.training.method import PoolFeatures

Search = Literal["brent", "binary"]


@dataclass
class Curve:
    """Accuracy by K, computed on first use; ``asked`` lists every visit in order."""

    accuracy: Callable[[int], float]
    values: dict[int, float] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    def __call__(self, k: int) -> float:
        self.asked.append(k)
        if k not in self.values:
            self.values[k] = self.accuracy(k)
        return self.values[k]

    @property
    def best(self) -> int:
        return max(sorted(self.values), key=self.values.__getitem__)


@dataclass(frozen=True)
class KEstimate:
    """The number of classes, the labelled accuracy at it, and that of every K visited."""

    k: int
    accuracy: float
    curve: dict[int, float]


def estimate_k(
    features: Tensor | np.ndarray,
    labels: Tensor | np.ndarray,
    *,
    search: Search = "brent",
    low: int | None = None,
    high: int = 1000,
    init: Init = "greedy",
    n_init: int = 10,
    max_iter: int = 100,
    seed: int = 0,
    normalise: bool = True,
    device: torch.device | str | None = None,
) -> KEstimate:
    """Estimate the number of classes among the rows.

    Args:
        features: labelled and unlabelled rows, ``(n, d)``.
        labels: the class of each row, negative where unknown, ``(n,)``.
        search: ``"brent"`` or ``"binary"``.
        low: smallest K to consider; the number of labelled classes if None.
        high: largest K to consider, at most the number of rows.
        init: see ``semi_supervised_kmeans``; the official code leaves it to scikit-learn, whose
            k-means++ is the greedy one.
        n_init: restarts per K.
        max_iter: assignment steps per restart.
        seed: of every clustering.
        normalise: scale rows to unit length first.
        device: where to cluster; that of ``features`` if None.
    """
    rows = torch.as_tensor(features, device=device).float()
    classes = torch.as_tensor(labels).cpu()  # where accuracies are counted
    if classes.shape != rows.shape[:1]:
        raise ValueError(f"{len(rows)} features do not go with labels {tuple(classes.shape)}")
    known = classes >= 0
    if not bool(known.any()):
        raise ValueError("no row is labelled; K is estimated from the accuracy on labelled rows")
    rows = normalize(rows, dim=1) if normalise else rows

    def accuracy(k: int) -> float:
        found = semi_supervised_kmeans(
            rows, None, None, k, seed=seed, n_init=n_init, max_iter=max_iter, init=init
        )
        preds = found.labels.cpu()[known]
        return accuracies(preds=preds, labels=classes[known], num_old=0).all

    low = len(classes[known].unique()) if low is None else low
    curve = Curve(accuracy)
    explore(curve, low=low, high=min(high, len(rows)), search=search)
    return KEstimate(curve.best, curve.values[curve.best], dict(sorted(curve.values.items())))


def assumed_classes(
    config: TaskConfig, problem: Problem, *, compute_features: Callable[[], PoolFeatures], seed: int
) -> int:
    """Return the number of classes passed to a method: true, set by the user, or estimated.

    The estimate clusters the pretrained features of labelled images and of a part of the others.
    """
    if config.classes == "known":
        number = config.num_classes or problem.num_classes
        if number < problem.num_old:
            raise ValueError(
                f"task.num_classes is {number}, but {problem.num_old} classes have labels; raise it"
            )
        return number
    pool = compute_features()
    room = max(config.estimate_images - len(pool.labelled), 1)
    few = torch.randperm(len(pool.unlabelled), generator=seeded(seed, "estimate"))[:room]
    rows = torch.cat([pool.labelled, pool.unlabelled[few.to(pool.unlabelled.device)]])
    return estimate_k(pool.features[rows], pool.labels[rows], seed=seed).k


def explore(curve: Callable[[int], float], *, low: int, high: int, search: Search) -> None:
    """Evaluate the curve at the values of K that a search visits."""
    if not 1 <= low < high:
        raise ValueError(f"K is searched between {low} and {high}; give 1 <= low < high")
    if search == "brent":
        minimize_scalar(lambda k: -curve(int(k)), bounds=(low, high), method="bounded")
    elif search == "binary":
        _halve(curve, low, high)
    else:
        raise ValueError(f"search {search!r} is unknown; use one of {get_args(Search)}")


def _halve(curve: Callable[[int], float], low: int, high: int) -> None:
    """Move the end that scores lower to the middle, floor(log2(high - low)) times."""
    rounds = int(math.log2(high - low))
    at_high, at_low = curve(high), curve(low)
    for _ in range(rounds + 1):
        middle = (low + high) // 2
        at_middle = curve(middle)
        if at_high > at_low:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
