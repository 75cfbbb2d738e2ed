"""What settings are chosen by: a number for the record of a draw, the higher the better.

All but ``oracle`` read the set ``selection`` of a fold, whose labels whoever tunes has, or no label
at all. ``oracle`` reads the hidden labels; it is a diagnostic and never a result.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping

import numpy as np

from gcdbench.data.tuning.names import SELECTION, VARIANTS
from gcdbench.experiment.record import Record

Predictions = Mapping[str, np.ndarray]


def hidden(record: Record, predictions: Predictions) -> float:
    """Return the harmonic mean of the accuracies (v2) on hidden classes and on held-out images."""
    scores = record.sets[SELECTION]
    old, new = scores.old or 0.0, scores.new or 0.0
    return 2 * old * new / (old + new) if old + new else 0.0


def labelled(record: Record, predictions: Predictions) -> float:
    """Return the accuracy on held-out images of the classes that keep their labels."""
    return record.sets[SELECTION].old or 0.0


def labelled_and_silhouette(record: Record, predictions: Predictions) -> float:
    """Return the mean of ``labelled`` and the silhouette of the clusters of source images."""
    found = [one.rates.get("silhouette") for one in record.sets.values() if one.role == "source"]
    known = [value for value in found if value is not None]
    if not known:
        return math.nan
    return (labelled(record, predictions) + statistics.fmean(known)) / 2


def agreement(record: Record, predictions: Predictions) -> float:
    """Return the share of images that get the same cluster under two corruptions."""
    one, other = (predictions[name] for name in VARIANTS)
    return float((one == other).mean())


def oracle(record: Record, predictions: Predictions) -> float:
    """Return the mean of All on source and shifted images, by the hidden labels."""
    roles = {role: [s.all for s in record.sets.values() if s.role == role] for role in ORACLE_ROLES}
    return statistics.fmean(statistics.fmean(values) for values in roles.values() if values)


ORACLE_ROLES = ("source", "shifted")
CRITERIA: dict[str, Callable[[Record, Predictions], float]] = {
    "hidden": hidden,
    "labelled": labelled,
    "labelled+silhouette": labelled_and_silhouette,
    "agreement": agreement,
    "oracle": oracle,
}
DEFAULT = "hidden"
