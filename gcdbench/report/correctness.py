"""Which images a cell classified correctly, from its recorded predictions."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gcdbench.experiment.record import Record
from gcdbench.experiment.records import read_predictions
from gcdbench.report.collect import Truth

MOST_DENSE = 4_000  # clusters or classes; a square table of 100,000 would take 72 GB


def right(preds: NDArray[np.integer], labels: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return for each image whether its cluster is matched to its class."""
    correct: NDArray[np.bool_] = match(preds, labels)[preds] == labels
    return correct


def match(preds: NDArray[np.integer], labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the class that each cluster is matched to.

    Rows are clusters, as in the evaluator, so that ties are resolved as there. Of very many
    clusters only those with images have a row; -1 is the class of the others.
    """
    from scipy.optimize import linear_sum_assignment

    side = 1 + int(max(preds.max(), labels.max()))
    if side > MOST_DENSE:
        used, rows = np.unique(preds, return_inverse=True)
        width = 1 + int(labels.max())
        table = np.bincount(rows * width + labels, minlength=len(used) * width)
        places, columns = linear_sum_assignment(-table.reshape(len(used), width))
        sparse = np.full(side, -1, dtype=np.int64)
        sparse[used[places]] = columns
        return sparse
    pairs = preds.astype(np.int64) * side + labels
    counts = np.bincount(pairs, minlength=side * side).reshape(side, side)
    classes: NDArray[np.int64] = linear_sum_assignment(float(counts.max()) - counts)[1]
    return classes


def right_images(
    record: Record, folder: Path, truth: Truth, sets: list[str]
) -> dict[str, NDArray[np.bool_]] | str:
    """Return which images of each set a cell got right, or why that cannot be said."""
    arrays = read_predictions(folder, record)
    if isinstance(arrays, str):
        return arrays
    found = {}
    for name in sets:
        if name not in arrays or len(arrays[name]) != len(truth.labels[name]):
            return f"has predictions that do not fit the images of {name}"
        found[name] = right(arrays[name], truth.labels[name])
        if not math.isclose(found[name].mean(), record.sets[name].all, abs_tol=1e-6):
            return f"has predictions that do not give the recorded accuracy of {name}"
    return found
