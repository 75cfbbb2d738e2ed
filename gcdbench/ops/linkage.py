"""Ward's hierarchical clustering, for rows that carry weights, too.

All pairwise distances are held at once, so memory grows with the square of the number of rows. The
rule for large pools is to group them first (`ward_clusters`): k-means makes micro-clusters, which
Ward's criterion merges as if all their rows were there, at their means.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from torch import Tensor

from gcdbench.ops.kmeans.api import semi_supervised_kmeans

Rows = NDArray[np.float64]


def ward_clusters(
    x: Tensor, k: int, *, most_rows: int = 20_000, groups: int = 5_000, seed: int = 0
) -> Tensor:
    """Return the cluster (n,) of every row after all of Ward's merges but the last k - 1.

    Merges of equal height are made together, so there can be fewer clusters than k.

    Args:
        x: (n, d).
        k: number of clusters.
        most_rows: more rows than these, 1.6 GB of distances, are grouped first.
        groups: number of micro-clusters that they are grouped into.
        seed: of the k-means that groups them.
    """
    if len(x) <= most_rows:
        labels = cut(linkage(x.cpu().double().numpy(), "ward"), k)
        return torch.from_numpy(labels).to(x.device)
    found = semi_supervised_kmeans(
        x, None, None, max(groups, k), seed=seed, n_init=1, max_iter=10, init="random"
    )
    used, group = found.labels.unique(return_inverse=True)
    sizes = group.bincount().double()
    means = torch.zeros(len(used), x.shape[1], dtype=torch.float64, device=x.device)
    means = means.index_add_(0, group, x.double()) / sizes[:, None]
    merges = weighted_ward(means.cpu().numpy(), sizes.cpu().numpy())
    return torch.from_numpy(cut(merges, k)).to(x.device)[group]


def cut(merges: Rows, k: int) -> NDArray[np.int64]:
    """Return cluster ids from 0: merges up to the k-th largest height are made."""
    rows = len(merges) + 1
    if k >= rows:
        return np.arange(rows)
    height = np.sort(merges[:, 2])[-k]
    return fcluster(merges, height, criterion="distance").astype(np.int64) - 1


def weighted_ward(means: Rows, weights: Rows) -> Rows:
    """Return Ward's merges as scipy writes them, for rows that stand for several equal ones.

    The height of a merge is sqrt(2 u v / (u + v)) times the distance of the means, u and v the
    weights. Found by chains of nearest neighbours; sorted by height in the end.
    """
    number = len(means)
    size = weights.astype(float).copy()
    products = means @ means.T
    squares = np.diag(products)
    gap = np.maximum(squares[:, None] + squares - 2 * products, 0)
    gap *= 2 * size[:, None] * size / (size[:, None] + size)  # squared heights
    np.fill_diagonal(gap, np.inf)
    alive = np.ones(number, dtype=bool)
    pairs, heights = np.empty((number - 1, 2), dtype=np.int64), np.empty(number - 1)
    chain: list[int] = []
    for step in range(number - 1):
        if not chain:
            chain.append(int(alive.argmax()))
        while True:
            tip = chain[-1]
            near = int(gap[tip].argmin())
            if len(chain) > 1 and gap[tip, chain[-2]] <= gap[tip, near]:
                near = chain[-2]  # of equally near ones the last, or the chain would never end
                break
            chain.append(near)
        del chain[-2:]
        pairs[step], heights[step] = (tip, near), gap[tip, near]
        _merge(gap, size, alive, tip, near)
    return _as_merges(pairs, np.sqrt(heights), weights)


def _merge(gap: Rows, size: Rows, alive: NDArray[np.bool_], gone: int, kept: int) -> None:
    """Put a cluster into another one, by the update of Lance and Williams."""
    total = size + size[gone] + size[kept]
    between = gap[gone, kept]
    row = (size + size[gone]) * gap[gone] + (size + size[kept]) * gap[kept] - size * between
    alive[gone] = False
    size[kept] += size[gone]
    row = np.where(alive, row / total, np.inf)
    row[kept] = np.inf
    gap[kept], gap[:, kept] = row, row
    gap[gone], gap[:, gone] = np.inf, np.inf


def _as_merges(pairs: NDArray[np.int64], heights: Rows, weights: Rows) -> Rows:
    """Return scipy's table: in order of height, with a new id for every merged cluster."""
    number = len(weights)
    parent, sizes = np.arange(2 * number - 1), np.ones(2 * number - 1)
    merges = np.empty((number - 1, 4))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = int(parent[node])
        return node

    for new, step in enumerate(np.argsort(heights, kind="stable"), start=number):
        first, second = sorted(root(int(node)) for node in pairs[step])
        parent[first] = parent[second] = new
        sizes[new] = sizes[first] + sizes[second]
        merges[new - number] = first, second, heights[step], sizes[new]
    return merges
