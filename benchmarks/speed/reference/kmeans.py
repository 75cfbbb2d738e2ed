"""Semi-supervised k-means as plainly as its definition reads, for speed to be compared with.

Every distance is the broadcast difference of a row and a centre, in blocks of 1024 rows; every new
centre of k-means++ recomputes the distances to all centres; every mean is taken cluster by cluster.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def squared_distances(x: Tensor, centers: Tensor) -> Tensor:
    """Return the ``(n, k)`` squared distances by a difference of ``(1024, k, d)`` at a time."""
    blocks = [((rows[:, None] - centers[None]) ** 2).sum(2) for rows in x.split(1024)]
    return torch.cat(blocks)


def plus_plus(x: Tensor, centers: Tensor, k: int, random: np.random.RandomState) -> Tensor:
    """Add rows to the centres, each with a chance in proportion to its squared distance."""
    pick = 0
    while len(centers) < k:
        nearest = squared_distances(x, centers).min(1).values
        reached = (nearest / nearest.sum()).cumsum(0) >= random.rand()
        pick = int(reached.nonzero()[0]) if bool(reached.any()) else pick
        centers = torch.cat([centers, x[pick : pick + 1]])
    return centers


def semi_supervised_kmeans(
    unlabelled: Tensor,
    labelled: Tensor,
    targets: Tensor,
    k: int,
    *,
    seed: int,
    n_init: int,
    max_iter: int,
    tol: float = 1e-4,
) -> tuple[Tensor, float]:
    """Return the labels of the unlabelled rows and the inertia of the best restart."""
    random = np.random.RandomState(seed)
    classes = targets.unique()
    own = torch.searchsorted(classes, targets)
    means = torch.stack([labelled[targets == c].mean(0) for c in classes])
    best_labels, best = torch.empty(0), float("inf")
    for _ in range(n_init):
        centers = plus_plus(unlabelled, means, k, random)
        for _ in range(max_iter):
            nearest, labels = squared_distances(unlabelled, centers).min(1)
            fixed = ((labelled - centers[own]) ** 2).sum()
            if float(nearest.sum() + fixed) < best:
                best_labels, best = labels, float(nearest.sum() + fixed)
            rows, ids = torch.cat([labelled, unlabelled]), torch.cat([own, labels])
            before = centers
            centers = torch.stack([rows[ids == c].mean(0) for c in range(k)])
            if float((centers - before).norm(dim=1).sum()) ** 2 < tol:
                break
    return best_labels, best
