"""Score a user's own features or predictions by the protocol, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gcdbench.data import feature_file
from gcdbench.errors import UserError
from gcdbench.ops.kmeans.api import semi_supervised_kmeans
from gcdbench.training.scoring.scores import SetScore, score


def evaluate(
    features: np.ndarray,
    labels: np.ndarray,
    labelled: np.ndarray,
    *,
    domains: np.ndarray | None = None,
    predictions: np.ndarray | None = None,
    num_classes: int | None = None,
    seed: int = 0,
    n_init: int = 10,
) -> dict[str, SetScore]:
    """Cluster features by semi-supervised k-means and score the unlabelled images, per domain.

    Args:
        features: (n, d), one row per image; L2-normalised here.
        labels: (n,) class of each image; those of unlabelled images are used for scoring only.
        labelled: (n,) True where the label may be used; their classes are the old ones.
        domains: (n,) name of each image's domain; all images are one set without it.
        predictions: (n,) clusters that are scored in place of k-means.
        num_classes: number of clusters; the number of classes in ``labels`` by default.
        seed: of k-means.
        n_init: restarts of k-means.
    """
    labels, labelled = np.asarray(labels), np.asarray(labelled, dtype=bool)
    _check_lengths(features, labels=labels, labelled=labelled, domains=domains)
    old = np.unique(labels[labelled])
    order = np.concatenate([old, np.setdiff1d(np.unique(labels), old)])  # old classes come first
    ids = np.empty(len(labels), dtype=np.int64)
    for position, name in enumerate(order):
        ids[labels == name] = position
    hidden = ~labelled
    if predictions is None:
        clusters = semi_supervised_kmeans(
            features[hidden],
            features[labelled],
            ids[labelled],
            num_classes or len(order),
            seed=seed,
            n_init=n_init,
            normalise=True,
        )
        preds = clusters.labels.cpu().numpy()
    else:
        _check_lengths(features, predictions=predictions)
        preds = np.asarray(predictions)[hidden]
    where = np.asarray(domains)[hidden] if domains is not None else np.full(hidden.sum(), "all")
    return {
        str(domain): score(
            preds=preds[where == domain], labels=ids[hidden][where == domain], num_old=len(old)
        )
        for domain in dict.fromkeys(where.tolist())
    }


def evaluate_file(path: Path, **options: Any) -> dict[str, SetScore]:
    """Evaluate an .npz file with the arrays that ``evaluate`` takes."""
    arrays = feature_file.read(path, needed=("features", "labels", "labelled"))
    assert arrays.labelled is not None
    if arrays.labelled.all():
        raise UserError(f"{path}: labelled is True for every image, so none is left to be scored")
    try:
        return evaluate(**vars(arrays), **options)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def _check_lengths(features: np.ndarray, **arrays: np.ndarray | None) -> None:
    for name, array in arrays.items():
        if array is not None and len(array) != len(features):
            raise ValueError(f"{name} has {len(array)} entries, features has {len(features)} rows")
