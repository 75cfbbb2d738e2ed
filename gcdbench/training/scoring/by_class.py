"""Scores that count every class, however rare it is, with the same weight."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# training images of a class, as in Liu et al., "Large-Scale Long-Tailed Recognition in an Open
# World" (CVPR 2019): more than 100 are many, fewer than 20 are few
MANY, FEW = 100, 20


def balanced(recall: NDArray[np.float64], num_old: int) -> dict[str, float]:
    """Return protocol v2b: the mean recall of all, old and new classes that occur in a set."""
    return {
        "all_balanced": _mean(recall),
        "old_balanced": _mean(recall[:num_old]),
        "new_balanced": _mean(recall[num_old:]),
    }


def by_frequency(recall: NDArray[np.float64], frequency: NDArray[np.int64]) -> dict[str, float]:
    """Return the mean recall of classes with many, a medium number of and few training images."""
    frequency = frequency[: len(recall)]
    many, few = frequency > MANY, frequency < FEW
    return {
        "many": _mean(recall[many]),
        "medium": _mean(recall[~many & ~few]),
        "few": _mean(recall[few]),
    }


def _mean(recall: NDArray[np.float64]) -> float:
    """Return the mean over the classes that occur; NaN if none does."""
    there = recall[~np.isnan(recall)]
    return float(there.sum() / len(there)) if len(there) else math.nan
