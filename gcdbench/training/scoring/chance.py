"""The accuracy of random clusters: the floor above which a method has learned something.

One assignment of clusters to classes makes random clusters right for some images, the more of them
the smaller a set is. Accuracies on sets of different sizes can be compared only above that floor.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np

from gcdbench.ops.metrics import accuracies

DRAWS = 10  # random clusterings that are averaged
_known: dict[tuple[str, int, int], tuple[float, float, float]] = {}  # of this process


def floor(labels: np.ndarray, *, num_old: int, num_clusters: int) -> tuple[float, float, float]:
    """Return all, old and new accuracy (v2) of images that are put into clusters at random.

    Every image goes into each of ``num_clusters`` with the same probability; the mean over
    ``DRAWS`` clusterings from a fixed seed is returned, so a set always has the same floor.
    """
    labels = np.ascontiguousarray(labels, dtype=np.int64)
    key = hashlib.sha256(labels.tobytes()).hexdigest(), num_old, num_clusters
    if key not in _known:
        rng = np.random.RandomState(0)
        drawn = [
            tuple(accuracies(preds=preds, labels=labels, num_old=num_old))
            for preds in (rng.randint(num_clusters, size=len(labels)) for _ in range(DRAWS))
        ]
        every, old, new = (math.fsum(values) / DRAWS for values in zip(*drawn, strict=True))
        _known[key] = every, old, new
    return _known[key]


def adjusted(accuracy: float, chance: float) -> float:
    """Return an accuracy rescaled so that random clusters have 0 and perfect ones 1.

    >>> adjusted(0.75, 0.5), adjusted(0.1, 0.1)
    (0.5, 0.0)
    """
    return math.nan if chance >= 1 else (accuracy - chance) / (1 - chance)
