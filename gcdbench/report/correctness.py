"""Which images a cell classified correctly, from its recorded predictions."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcdbench.experiment.records import PREDICTIONS
from gcdbench.report.collect import Truth


def right(preds: NDArray[np.integer], labels: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return for each image whether its cluster is matched to its class."""
    return match(preds, labels)[preds] == labels


def match(preds: NDArray[np.integer], labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the class that each cluster is matched to.

    Rows are clusters, as in the evaluator, so that ties are resolved as there.
    """
    from scipy.optimize import linear_sum_assignment

    side = 1 + int(max(preds.max(), labels.max()))
    pairs = preds.astype(np.int64) * side + labels
    counts = np.bincount(pairs, minlength=side * side).reshape(side, side)
    return linear_sum_assignment(float(counts.max()) - counts)[1]


def read_predictions(
    record: Mapping[str, Any], folder: Path
) -> dict[str, NDArray[np.integer]] | str:
    """Return a record's predictions by evaluation set, or why they cannot be used."""
    try:
        data = (folder / PREDICTIONS).read_bytes()
    except OSError as error:
        return f"its predictions cannot be read ({error.strerror})"
    if hashlib.sha256(data).hexdigest() != record.get("predictions_sha256"):
        return "its predictions do not match their checksum"
    with np.load(io.BytesIO(data)) as arrays:
        return {name: arrays[name] for name in arrays.files}


def right_images(
    record: Mapping[str, Any], folder: Path, truth: Truth, sets: list[str]
) -> dict[str, NDArray[np.bool_]] | str:
    """Return which images of each set are correct, or why the predictions cannot be used."""
    arrays = read_predictions(record, folder)
    if isinstance(arrays, str):
        return arrays
    found = {}
    for name in sets:
        if name not in arrays or len(arrays[name]) != len(truth.labels[name]):
            return f"its predictions do not fit the images of {name}"
        found[name] = right(arrays[name], truth.labels[name])
        if not math.isclose(found[name].mean(), record["sets"][name]["all"], abs_tol=1e-6):
            return f"its predictions do not give the recorded accuracy of {name}"
    return found
