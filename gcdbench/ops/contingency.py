"""The cluster x class table of a prediction, and the scores that depend on it only.

``w[p, t]`` samples of class ``t`` were put into cluster ``p``. Small tables are dense; a large one,
as for ten thousand classes, is stored as the list of its occupied cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import min_weight_full_bipartite_matching

if TYPE_CHECKING:
    import torch

Counts = NDArray[np.int64]
Row: TypeAlias = Union["torch.Tensor", NDArray[np.int64]]  # torch is not needed to score arrays

DENSE_CELLS = 2**22  # a larger table (32 MB) is never made


@dataclass(frozen=True)
class Cells:
    """Occupied cells: cluster, class and number of samples of each."""

    cluster: Counts
    label: Counts
    count: Counts


class Contingency:
    """Counts of the samples of each (cluster, class) pair."""

    def __init__(self, table: Counts | Cells) -> None:
        self._table = table

    @cached_property
    def cells(self) -> Cells:
        if isinstance(self._table, Cells):
            return self._table
        cluster, label = self._table.nonzero()
        return Cells(cluster, label, self._table[cluster, label])

    @cached_property
    def cluster_sizes(self) -> Counts:
        return self._sizes(1)

    @cached_property
    def class_sizes(self) -> Counts:
        return self._sizes(0)

    def _sizes(self, axis: int) -> Counts:
        if isinstance(self._table, Cells):
            return _tally((self.cells.label, self.cells.cluster)[axis], self.cells.count)
        return self._table.sum(axis)

    def match(self) -> Counts:
        """Return the assignment of clusters to classes with the most samples in their own class.

        Rows are clusters and costs are ``max(w) - w`` on the square table, as in the official code:
        the total is unique, but this also settles ties between Old and New the way it does. A
        cluster beyond the number of classes may be left with an id that no class has, or -1.
        """
        if isinstance(self._table, Cells):
            return _sparse_match(self._table)
        clusters, classes = self._table.shape
        most = self._table.max(initial=0)
        cost = np.full((max(clusters, classes),) * 2, most, dtype=np.float64)
        np.subtract(most, self._table, out=cost[:clusters, :classes])
        return linear_sum_assignment(cost)[1]

    def hits(self, assignment: Counts) -> Counts:
        """Return, for each class, the number of its samples in the cluster assigned to it."""
        if isinstance(self._table, Cells):
            right = assignment[self.cells.cluster] == self.cells.label
            hits = _tally(self.cells.label[right], self.cells.count[right])
            return np.pad(hits, (0, len(self.class_sizes) - len(hits)))
        clusters, classes = self._table.shape
        hits = np.zeros(classes, dtype=np.int64)
        used = assignment[:clusters] < classes
        given = assignment[:clusters][used]
        hits[given] = self._table[used.nonzero()[0], given]
        return hits


def contingency(preds: Row, labels: Row) -> Contingency:
    """Return the counts of each pair of non-negative ids, computed on the ids' device."""
    if not len(labels):
        return Contingency(np.zeros((0, 0), dtype=np.int64))
    clusters, classes = 1 + int(preds.max()), 1 + int(labels.max())
    keys = preds * classes + labels
    if max(clusters, classes) ** 2 <= DENSE_CELLS:
        return Contingency(occurrences(keys, clusters * classes).reshape(clusters, classes))
    if isinstance(keys, np.ndarray):
        occupied, counts = np.unique(keys, return_counts=True)
    else:
        occupied, counts = (part.cpu().numpy() for part in keys.unique(return_counts=True))
    return Contingency(Cells(occupied // classes, occupied % classes, counts))


def occurrences(ids: Row, number: int) -> Counts:
    """Return how often each of the ids below a number occurs."""
    if isinstance(ids, np.ndarray):
        return np.bincount(ids, minlength=number)
    return ids.bincount(minlength=number).cpu().numpy()


def normalised_mutual_information(table: Contingency) -> float:
    """Return the mutual information over the mean of the two entropies."""
    joint = _entropy(table.cells.count)
    if joint == 0:  # one cluster, one class: the partitions agree
        return 1.0
    entropies = _entropy(table.cluster_sizes) + _entropy(table.class_sizes)
    return max(0.0, 2 * (entropies - joint) / entropies)


def adjusted_rand_index(table: Contingency) -> float:
    """Return the share of sample pairs on which both partitions agree, corrected for chance."""
    together, every = _pairs(table.cells.count), _pairs(table.cells.count.sum(keepdims=True))
    in_cluster, in_class = _pairs(table.cluster_sizes), _pairs(table.class_sizes)
    by_chance = in_cluster * in_class / every if every else 0.0
    most = (in_cluster + in_class) / 2
    return 1.0 if most == by_chance else (together - by_chance) / (most - by_chance)


def _sparse_match(cells: Cells) -> Counts:
    """Match without a square table.

    Every cluster and every class gets a dummy partner at no cost, and the dummies of a matched pair
    may be matched with each other, so that a perfect matching always exists.
    """
    clusters, row = np.unique(cells.cluster, return_inverse=True)
    classes, col = np.unique(cells.label, return_inverse=True)
    p, t = len(clusters), len(classes)
    free = cells.count.max() + 1  # zero-cost edges would vanish from the sparse matrix
    rows = np.concatenate([row, np.arange(p), p + np.arange(t), p + col])
    cols = np.concatenate([col, t + np.arange(p), np.arange(t), t + row])
    cost = np.concatenate([free - cells.count, np.full(p + t + len(row), free)])
    graph = coo_matrix((cost.astype(np.float64), (rows, cols)), shape=(p + t, p + t)).tocsr()
    left, right = min_weight_full_bipartite_matching(graph)
    real = (left < p) & (right < t)
    assignment = np.full(clusters[-1] + 1, -1)
    assignment[clusters[left[real]]] = classes[right[real]]
    return assignment


def _tally(ids: Counts, count: Counts) -> Counts:
    """Sum counts by id; exact, since a double holds every count below 2**53."""
    return np.bincount(ids, weights=count).astype(np.int64)


def _entropy(sizes: Counts) -> float:
    p = sizes[sizes > 0] / sizes.sum()
    return float(-(p * np.log(p)).sum())


def _pairs(sizes: Counts) -> float:
    return float((sizes * (sizes - 1) // 2).sum())
