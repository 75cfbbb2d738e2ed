"""Estimate the number of classes in a user's own features; leave the curve as table and plot."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from gcdbench.data import feature_file
from gcdbench.errors import UserError
from gcdbench.training.num_classes import KEstimate, estimate_k


def run_estimate(features_path: str | Path, out_dir: str | Path, **options: Any) -> KEstimate:
    """Estimate K from an ``.npz`` file and leave the curve as ``k_curve.csv`` and ``k_curve.png``.

    The file holds ``features`` ``(n, d)`` and ``labels`` ``(n,)``, negative where unknown, or any
    labels and ``labelled`` ``(n,)``, True where they may be used, as ``gcdbench evaluate`` takes
    them. The options are those of ``estimate_k``.
    """
    path, out = Path(features_path), Path(out_dir)
    features, labels = _load(path)
    classes, high = len(np.unique(labels[labels >= 0])), options.get("high", 1000)
    if high <= classes:
        raise UserError(f"--max-k {high}: {classes} classes are labelled, so give more than that")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written to ({error.strerror})") from error
    try:
        estimate = estimate_k(features, labels, **options)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    try:
        write_curve(estimate, out / "k_curve.csv")
        plot_curve(estimate, out / "k_curve.png")
    except OSError as error:
        raise UserError(f"--out {out}: cannot be written to ({error.strerror})") from error
    return estimate


def write_curve(estimate: KEstimate, path: Path) -> None:
    """Write the accuracy at every K visited as CSV."""
    with path.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["k", "labelled_accuracy"])
        table.writerows(estimate.curve.items())


def plot_curve(estimate: KEstimate, path: Path) -> None:
    """Draw the accuracy at every K visited; the suffix of the path decides the format."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(list(estimate.curve), list(estimate.curve.values()), marker="o", markersize=4)
    axes.axvline(estimate.k, color="grey", linestyle="--", label=f"K = {estimate.k}")
    axes.set(xlabel="number of clusters K", ylabel="accuracy on labelled rows")
    axes.legend()
    figure.savefig(path, dpi=150)


def _load(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return features and labels, negative where the file says or implies that they are hidden."""
    arrays = feature_file.read(path, needed=("features", "labels"))
    labels, known = arrays.labels, arrays.labelled
    if known is None:
        if labels.dtype.kind in "US":
            raise UserError(f"{path}: labels are words, so the array 'labelled' is needed as well")
        known = labels >= 0
    if not known.any():
        raise UserError(f"{path}: no image is labelled; K is estimated from labelled images")
    ids = np.full(len(labels), -1)
    ids[known] = np.unique(labels[known], return_inverse=True)[1]
    return arrays.features, ids
