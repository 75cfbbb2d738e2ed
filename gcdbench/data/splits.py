"""Which images are labelled: the field's rule, with its exact random numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


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

    Classes take their turn in the order of their first appearance and share one generator.
    """
    rng = np.random.RandomState(0)
    rows = []
    for label in dict.fromkeys(labels.tolist()):
        members = np.flatnonzero(labels == label)
        picked = rng.choice(len(members), int(share * len(members)), replace=False)
        rows.append(np.sort(members[picked]))
    return np.concatenate(rows) if rows else np.empty(0, dtype=np.int64)


def class_ids(names: Sequence[str], classes: Sequence[str]) -> np.ndarray:
    """Map class names to their position in ``classes`` (old classes first)."""
    position = {name: i for i, name in enumerate(classes)}
    return np.array([position[name] for name in names], dtype=np.int64)
