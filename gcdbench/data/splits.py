"""Which classes are old and which images are labelled: the field's rules and random draws."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from gcdbench.core.paths import PACKAGE


def labelled_half(labels: np.ndarray, num_old: int, share: float = 0.5) -> np.ndarray:
    """Return the mask of the labelled images among the source domain's training images.

    The draw is over the pooled images of the old classes, not per class, and always from seed 0:
    all seeds of the benchmark share one split.
    """
    old = np.flatnonzero(labels < num_old)
    picked = np.random.RandomState(0).permutation(len(old))[: int(share * len(old))]
    mask = np.zeros(len(labels), dtype=bool)
    mask[old[picked]] = True
    return mask


def per_class_sample(labels: np.ndarray, share: float) -> np.ndarray:
    """Return rows that keep floor(share * n_c) images of every class, drawn from seed 0.

    Classes are sampled in the order of their first appearance, with one shared generator.
    """
    rng = np.random.RandomState(0)
    rows = []
    for label in dict.fromkeys(labels.tolist()):
        members = np.flatnonzero(labels == label)
        picked = rng.choice(len(members), int(share * len(members)), replace=False)
        rows.append(np.sort(members[picked]))
    return np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)


def hold_out(
    labelled: np.ndarray, labels: np.ndarray, share: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the labelled rows that are trained on and those that are held out for validation.

    The released codes compute such a split, 20 % of each class, and do not use it.
    """
    chosen = np.zeros(len(labelled), dtype=bool)
    chosen[per_class_sample(labels[labelled], share)] = True
    return labelled[~chosen], labelled[chosen]


def positions(old: Sequence[int], new: Sequence[int]) -> np.ndarray:
    """Return the label of each raw class: its position in the old classes followed by the new.

    >>> positions([3, 0], [2, 1])
    array([1, 3, 2, 0])
    """
    order = np.array([*old, *new], dtype=np.int64)
    if not np.array_equal(np.sort(order), np.arange(len(order))):
        raise ValueError("old and new classes must be all of 0..K-1, each of them once")
    labels = np.empty(len(order), dtype=np.int64)
    labels[order] = np.arange(len(order))
    return labels


def class_ids(names: Sequence[str], classes: Sequence[str]) -> np.ndarray:
    """Map class names to their position in ``classes`` (old classes first)."""
    position = {name: i for i, name in enumerate(classes)}
    return np.array([position[name] for name in names], dtype=np.int64)


def class_file(name: str) -> dict[str, Any]:
    """Read one of the project's lists of classes, with its version."""
    path = PACKAGE / "data" / "classes" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))
