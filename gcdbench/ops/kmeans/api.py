"""Semi-supervised k-means: labelled rows keep their class, the other centres are discovered.

The default follows the official GCD implementation (Vaze et al., CVPR 2022) step by step, with the
same random numbers and tie rules, and fixes two errors: a cluster that loses its last member keeps
its centre (there it becomes NaN and stays so), and centres, labels and inertia belong to the same
step. Without labelled rows it is plain k-means.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from gcdbench.ops.kmeans.assign import Nearest, blocks, squared_gaps
from gcdbench.ops.kmeans.restarts import fits, lloyd_restarts
from gcdbench.ops.kmeans.rows import Rows, as_rows, parts
from gcdbench.ops.kmeans.seeding import Init, Start, starts

Table = Tensor | np.ndarray | Rows
MEMORY = 256 * 2**20  # bytes kept between steps: scores of centres that did not move
SEEDING_ROWS = 2**16  # of rows that are read in parts, so many are drawn to choose centres from


@dataclass(frozen=True)
class KMeansResult:
    """One clustering: ``labels`` are the nearest of ``centers``, ``inertia`` is what they cost.

    Labelled classes have ids 0.. in sorted order of their targets, new clusters follow.
    """

    labels: Tensor
    labelled_labels: Tensor
    centers: Tensor
    inertia: float
    n_iter: int


def semi_supervised_kmeans(
    unlabelled: Table,
    labelled: Table | None,
    targets: Table | None,
    k: int,
    *,
    seed: int = 0,
    n_init: int = 10,
    max_iter: int = 100,
    tol: float = 1e-4,
    init: Init = "k-means++",
    device: torch.device | str | None = None,
    normalise: bool = False,
    spherical: bool = False,
    memory: int = MEMORY,
) -> KMeansResult:
    """Cluster the unlabelled rows into ``k`` clusters, one of them around each labelled class.

    Rows in half precision that would take more than a gigabyte as float32 are read in parts, from
    a memory-mapped file for example. Their new centres are chosen from a sample.

    Args:
        unlabelled: rows to cluster, ``(n, d)``.
        labelled: rows whose class is known, ``(m, d)``; None or empty for plain k-means.
        targets: their classes, any ids, ``(m,)``.
        k: number of clusters, labelled classes included.
        seed: of the ``RandomState`` that all restarts draw from, in turn.
        n_init: restarts; the lowest inertia wins, the earlier one if equal.
        max_iter: assignment steps per restart.
        tol: stop when the squared sum of the centres' shifts is below this.
        init: how new centres start. ``"k-means++"``, as published: single points. ``"greedy"``:
            the best of ``2 + log k`` such points at a time, as scikit-learn does. ``"means"``:
            means of the neighbourhoods of such points, as a labelled class starts from a mean.
            ``"random"``: any points, as faiss does.
        device: where to compute; the device of ``unlabelled`` if None.
        normalise: scale every row to unit length first, as GCD does with its features.
        spherical: scale every centre to unit length, too: rows go to the centre of highest cosine.
        memory: bound in bytes on the scores kept between steps; it changes speed, not results.
    """
    x = _rows(unlabelled, "unlabelled", device=device, normalise=normalise)
    anchors = _anchors(labelled, targets, like=x, normalise=normalise)
    _check(anchors, k=k, n_init=n_init, max_iter=max_iter, init=init)
    if isinstance(x, Tensor) and fits(x, n_init) and not spherical:
        begins = starts(x, anchors.means, k, init=init, n_init=n_init, seed=seed, keep=False)
        centers = torch.stack([start.centers for start in begins])
        return _best(_runs_together(x, anchors, centers, max_iter=max_iter, tol=tol))
    kept = min(len(x), memory // (4 * k))
    nearest = Nearest(x, kept=kept)
    keep = kept == len(x) and isinstance(x, Tensor)
    choice = _sample(x, seed)
    runs = (
        _lloyd(nearest, anchors, start, max_iter=max_iter, tol=tol, spherical=spherical)
        for start in starts(
            choice, anchors.means, k, init=init, n_init=n_init, seed=seed, keep=keep
        )
    )
    return _best(runs)


def _sample(x: Tensor | Rows, seed: int) -> Tensor:
    """Return the rows that new centres are chosen from."""
    if isinstance(x, Tensor):
        return x
    drawn = np.random.RandomState(seed).permutation(len(x))[:SEEDING_ROWS]
    return x[torch.from_numpy(np.sort(drawn))]


def _best(runs: Iterator[KMeansResult]) -> KMeansResult:
    best = next(runs)
    for run in runs:
        # Restarts often find the same optimum with permuted ids; rounding must not decide.
        if run.inertia < best.inertia * (1 - 1e-7):
            best = run
    return best


def _runs_together(
    x: Tensor, anchors: _Anchors, centers: Tensor, *, max_iter: int, tol: float
) -> Iterator[KMeansResult]:
    """Yield the restarts of a small problem, computed in one loop."""
    sums = torch.zeros_like(centers[0], dtype=torch.float64)
    sizes = torch.zeros(len(sums), dtype=torch.long, device=x.device)
    sums[: len(anchors)], sizes[: len(anchors)] = anchors.sums, anchors.sizes
    found = lloyd_restarts(x, sums, sizes, centers, max_iter=max_iter, tol=tol)
    gaps = anchors.rows[:] - found.centers[:, anchors.labels]
    inertia = found.inertia + gaps.double().square().sum((1, 2))
    steps = zip(inertia.tolist(), found.n_iter.tolist(), strict=True)
    for restart, (cost, n_iter) in enumerate(steps):
        labels, places = found.labels[restart], found.centers[restart]
        yield KMeansResult(labels, anchors.labels, places, cost, n_iter)


def assign(x: Table, centers: Table, *, normalise: bool = False) -> Tensor:
    """Return the index of the nearest centre of each row; the lowest index in case of a tie."""
    places = _rows(centers, "centers", device=None, normalise=False)[:]
    rows = _rows(x, "x", device=places.device, normalise=normalise)
    if rows.shape[1] != places.shape[1]:
        raise ValueError(f"x has {rows.shape[1]} features but the centers have {places.shape[1]}")
    return Nearest(rows)(places)


@dataclass(frozen=True)
class _Anchors:
    """The labelled rows with their class ids, sums and sizes, which never change."""

    rows: Tensor | Rows
    labels: Tensor
    sums: Tensor  # (classes, d), float64
    sizes: Tensor  # (classes,)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def means(self) -> Tensor:
        return (self.sums / self.sizes[:, None]).float()


def _anchors(
    labelled: Table | None, targets: Table | None, *, like: Tensor | Rows, normalise: bool
) -> _Anchors:
    rows: Tensor | Rows = like[:0]
    if labelled is not None and len(labelled):
        rows = _rows(labelled, "labelled", device=like.device, normalise=normalise)
    if rows.shape[1] != like.shape[1]:
        raise ValueError(f"labelled rows have {rows.shape[1]} features, unlabelled {like.shape[1]}")
    ids = torch.as_tensor([] if targets is None else targets, device=like.device).long()
    if ids.shape != rows.shape[:1]:
        raise ValueError(f"{len(rows)} labelled rows do not go with targets {tuple(ids.shape)}")
    classes, labels = ids.unique(return_inverse=True)
    sums = torch.zeros(len(classes), rows.shape[1], dtype=torch.float64, device=ids.device)
    sizes = sums.new_zeros(len(classes), dtype=torch.long)
    _carry(sums, sizes, rows, torch.full_like(labels, -1), labels)
    return _Anchors(rows, labels, sums, sizes)


def _lloyd(
    nearest: Nearest,
    anchors: _Anchors,
    start: Start,
    *,
    max_iter: int,
    tol: float,
    spherical: bool,
) -> KMeansResult:
    """Alternate assignment and means until the centres stop moving."""
    x = nearest.x
    centers = normalize(start.centers, dim=1) if spherical else start.centers
    if start.scores is not None and not spherical:
        nearest.adopt(centers, start.scores)
    sums = torch.zeros_like(centers, dtype=torch.float64)
    sums[: len(anchors)] = anchors.sums
    sizes = torch.zeros(len(centers), dtype=torch.long, device=x.device)
    sizes[: len(anchors)] = anchors.sizes
    labels = torch.full((len(x),), -1, device=x.device)
    for step in range(1, max_iter + 1):
        before, labels = labels, nearest(centers)
        if step == max_iter or (step > 1 and torch.equal(before, labels)):
            break
        _carry(sums, sizes, x, before, labels)
        means = torch.where(sizes[:, None] > 0, sums / sizes[:, None], centers).float()
        means = normalize(means, dim=1) if spherical else means
        if float(torch.linalg.vector_norm(means - centers, dim=1).sum()) ** 2 < tol:
            break
        centers = means
    inertia = _inertia(x, centers, labels) + _inertia(anchors.rows, centers, anchors.labels)
    return KMeansResult(labels, anchors.labels, centers, inertia, step)


def _carry(sums: Tensor, sizes: Tensor, x: Tensor | Rows, before: Tensor, after: Tensor) -> None:
    """Update the sums for rows that changed cluster (-1: none so far), in double precision."""
    changed = (before != after).nonzero().squeeze(1)
    for block in blocks(len(changed), x.shape[1]):
        rows = changed[block]
        values = x[rows].double()
        for labels, sign in ((after[rows], 1), (before[rows], -1)):
            if int(labels[0]) >= 0:
                sums.index_add_(0, labels, values, alpha=sign)
                sizes.add_(torch.bincount(labels, minlength=len(sizes)), alpha=sign)


def _inertia(x: Tensor | Rows, centers: Tensor, labels: Tensor) -> float:
    return float(squared_gaps(x, centers, labels).sum(dtype=torch.float64))


def _rows(
    x: Table, name: str, *, device: torch.device | str | None, normalise: bool
) -> Tensor | Rows:
    """Return the rows as float32 on the device; raise a ValueError if they are not finite."""
    stored = x if isinstance(x, Rows) else torch.as_tensor(x).detach()
    if stored.ndim != 2 or not stored.numel():
        raise ValueError(f"{name} needs rows of features, but its shape is {tuple(stored.shape)}")
    rows = as_rows(stored, device=device, normalise=False)
    for part in parts(rows):
        if not bool(torch.isfinite(part.sum())) and not bool(torch.isfinite(part).all()):
            raise ValueError(
                f"{name} has NaN or infinite features; look for the row that made them"
            )
    if isinstance(rows, Rows):
        rows.normalise = normalise
        return rows
    return normalize(rows, dim=1) if normalise else rows


def _check(anchors: _Anchors, *, k: int, n_init: int, max_iter: int, init: str) -> None:
    if k < max(len(anchors), 1):
        raise ValueError(f"k is {k}, below the {len(anchors)} labelled classes; raise it")
    if n_init < 1 or max_iter < 1:
        raise ValueError(f"n_init ({n_init}) and max_iter ({max_iter}) must be at least 1")
    if init not in get_args(Init):
        raise ValueError(f"init {init!r} is unknown; use one of {get_args(Init)}")
