"""Semi-supervised k-means whose clusters have a capacity while it finds its way (SelEx).

In a first phase, clusters that are too full give their farthest rows to those with room, and the
centres of labelled classes rest. The second phase is plain k-means from there, so its clusters can
exceed the capacity, which therefore only chooses where it starts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gcdbench.ops.kmeans.api import KMeansResult
from gcdbench.ops.kmeans.assign import Nearest, squared_gaps


def balanced_kmeans(
    unlabelled: Tensor,
    labelled: Tensor,
    targets: Tensor,
    k: int,
    *,
    capacity: int | None,
    random: np.random.RandomState,
    n_init: int = 1,
    max_iter: int = 10,
    tol: float = 1e-4,
) -> KMeansResult:
    """Cluster rows into ``k`` clusters, one of them around each labelled class.

    A cluster that loses its last row keeps its centre.

    Args:
        unlabelled: (n, d) rows to cluster.
        labelled: (m, d) rows that stay in the cluster of their class.
        targets: (m,) their classes, any ids; they get the clusters 0.. in sorted order.
        k: number of clusters, at least that of the labelled classes.
        capacity: of a cluster in the first phase, labelled rows included; None: without limit.
        random: source of the starts of all restarts.
        n_init: restarts; the lowest inertia wins.
        max_iter: assignments in each phase.
        tol: a phase ends when the squared sum of the centres' shifts is below this.
    """
    classes, own = targets.unique(return_inverse=True)
    if not len(classes) <= k <= len(classes) + len(unlabelled):
        raise ValueError(
            f"k is {k}; it must be at least the {len(classes)} labelled classes, and each other "
            f"cluster needs one of the {len(unlabelled)} unlabelled rows"
        )
    known = _Known(labelled.float(), own, len(classes))
    if not len(unlabelled):
        gaps = squared_gaps(known.rows, known.means, own)
        return KMeansResult(own[:0], own, known.means, float(gaps.sum()), 0)
    nearest = Nearest(unlabelled.float())
    runs = [
        _run(nearest, known, k, capacity, random, max_iter=max_iter, tol=tol) for _ in range(n_init)
    ]
    return min(runs, key=lambda run: run.inertia)


@dataclass(frozen=True)
class _Known:
    """The labelled rows."""

    rows: Tensor
    labels: Tensor
    classes: int

    @property
    def means(self) -> Tensor:
        sums = self.rows.new_zeros(self.classes, self.rows.shape[1], dtype=torch.float64)
        sums.index_add_(0, self.labels, self.rows.double())
        return (sums / self.labels.bincount(minlength=self.classes)[:, None]).float()


def _run(
    nearest: Nearest,
    known: _Known,
    k: int,
    capacity: int | None,
    random: np.random.RandomState,
    *,
    max_iter: int,
    tol: float,
) -> KMeansResult:
    """Return the assignment of lowest inertia of both phases."""
    x, best = nearest.x[:], None
    centers = first_centers(x, known.means, k, random)
    for phase in (1, 2):
        for step in range(max_iter):
            labels = nearest(centers)
            inertia = float(squared_gaps(x, centers, labels).sum(dtype=torch.float64))
            inertia += float(squared_gaps(known.rows, centers, known.labels).sum())
            if phase == 1 and capacity is not None:
                room = capacity - known.labels.bincount(minlength=k)
                for _ in range(step):
                    labels = balance(x, centers, labels, room)
            means = _means(x, labels, known, centers)
            if phase == 1:
                means = torch.cat([centers[: known.classes], means[known.classes :]])
            if best is None or inertia < best.inertia:
                best = KMeansResult(labels, known.labels, means, inertia, step + 1)
            shift = float(torch.linalg.vector_norm(means - centers, dim=1).sum())
            centers = means
            if shift**2 < tol:
                break
    assert best is not None
    return best


def first_centers(x: Tensor, means: Tensor, k: int, random: np.random.RandomState) -> Tensor:
    """Return the class means, then rows drawn in proportion to their squared distance (k-means++).

    One number is drawn for each; where all rows are centres already the last one is taken again.
    """
    centers = [*means]
    gap = squared_gaps(x, means, Nearest(x)(means))
    pick, here = 0, torch.zeros(len(x), dtype=torch.long, device=x.device)
    for _ in range(k - len(means)):
        draw, total = random.rand(), gap.sum()
        reached = (gap / total).cumsum(0, dtype=torch.float64).float()
        found = int(torch.searchsorted(reached, torch.tensor(draw, device=x.device).float()))
        pick = found if found < len(x) and float(total) > 0 else pick
        centers.append(x[pick])
        gap = torch.minimum(gap, squared_gaps(x, x[pick : pick + 1], here))
    return torch.stack(centers)


def balance(x: Tensor, centers: Tensor, labels: Tensor, room: Tensor) -> Tensor:
    """Move the farthest rows of clusters that are too full to the nearest one that has room.

    A cluster of one row counts as one with room. It may overflow, which the next call mends. If a
    class has more labelled rows than the capacity, its room is negative, and as many of its
    farthest rows have to leave as are missing.
    """
    sizes = labels.bincount(minlength=len(centers))
    has_room = (sizes < room) | (sizes == 1)
    too_full = (sizes > room) & ~has_room
    if not bool(has_room.any()) or not bool(too_full.any()):
        return labels
    stay = torch.where(room >= 0, room, (sizes + room).clamp(min=0))
    rank = _rank_within(labels, squared_gaps(x, centers, labels), sizes)
    leave = (too_full[labels] & (rank >= stay[labels])).nonzero().squeeze(1)
    if not len(leave):
        return labels
    open_clusters = has_room.nonzero().squeeze(1)
    goals = Nearest(x[leave])(centers[open_clusters])
    return labels.index_copy(0, leave, open_clusters[goals])


def _rank_within(labels: Tensor, gaps: Tensor, sizes: Tensor) -> Tensor:
    """Return how many rows of its cluster are nearer to the centre than each row."""
    by_gap = gaps.argsort(stable=True)
    order = by_gap[labels[by_gap].argsort(stable=True)]
    before = sizes.cumsum(0) - sizes
    ranks = torch.empty_like(labels)
    ranks[order] = torch.arange(len(labels), device=labels.device) - before[labels[order]]
    return ranks


def _means(x: Tensor, labels: Tensor, known: _Known, centers: Tensor) -> Tensor:
    """Return the mean of each cluster's rows, labelled ones included; the centre if it has none."""
    sums = torch.zeros_like(centers, dtype=torch.float64)
    sums.index_add_(0, labels, x.double()).index_add_(0, known.labels, known.rows.double())
    sizes = labels.bincount(minlength=len(centers))
    sizes = (sizes + known.labels.bincount(minlength=len(centers)))[:, None]
    return torch.where(sizes > 0, sums / sizes, centers.double()).float()
