"""Scores of a classifier's probabilities: how well novelty is ranked, and calibration."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import rankdata

BINS = 15  # of equal width, as in Guo et al. (ICML 2017)


def auroc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Return the probability that a positive has a higher score than a negative; ties count half.

    NaN if one of the two is missing.

    >>> auroc(np.array([0.1, 0.9, 0.9]), np.array([False, True, False]))
    0.75
    """
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if not positives or not negatives:
        return math.nan
    ranks = rankdata(scores)[positive].sum()
    return float((ranks - positives * (positives + 1) / 2) / (positives * negatives))


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Return the expected calibration error: the mean gap of accuracy and confidence over bins.

    Images are put into ``BINS`` intervals (low, high] of confidence; the gaps of the intervals are
    weighted by their numbers of images.
    """
    confidence = confidence.astype(np.float64)
    bins = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    gaps = np.bincount(bins, weights=right - confidence, minlength=BINS)
    return float(np.abs(gaps).sum() / len(right))
