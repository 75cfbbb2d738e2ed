"""Semi-supervised k-means: labelled rows keep their class, the other centres are discovered.

The default follows the official GCD implementation (Vaze et al., CVPR 2022) step by step - the same
random stream, the same tie rules - with two repairs: a cluster that loses its last member keeps its
centre (there it becomes NaN and freezes the run), and centres, labels and inertia belong to the
same step. Plain k-means is the case of no labelled rows.

Nearly all time goes into one matrix product per assignment step, ``x.c - |c|^2 / 2`` of every row
and centre. It is computed in blocks that fit the cache, only for centres that have moved, and its
near ties are settled in double precision, so that neither block size nor device changes a label.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

Init = Literal["k-means++", "greedy", "means"]
Table = Tensor | np.ndarray

BLOCK = 2 * 2**20  # bytes worked on at a time: about what a core's cache holds
MEMORY = 128 * 2**20  # bytes kept between steps: scores of centres that rest


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
        device: where to compute; the device of ``unlabelled`` if None.
        normalise: scale every row to unit length first, as GCD does with its features.
        spherical: scale every centre to unit length, too: rows go to the centre of highest cosine.
        memory: bound in bytes on the scores kept between steps; it changes speed, not results.
    """
    x = _rows(unlabelled, "unlabelled", device=device, normalise=normalise)
    anchors = _anchors(labelled, targets, like=x, normalise=normalise)
    _check(anchors, k=k, n_init=n_init, max_iter=max_iter, init=init)
    nearest = _Nearest(x, kept=min(len(x), memory // (4 * k)))
    runs = (
        _lloyd(nearest, anchors, start, max_iter=max_iter, tol=tol, spherical=spherical)
        for start in _starts(x, anchors, k, init=init, n_init=n_init, seed=seed)
    )
    best = next(runs)
    for run in runs:
        # Restarts often find one optimum under other names; rounding must not choose among them.
        if run.inertia < best.inertia * (1 - 1e-7):
            best = run
    return best


def assign(x: Table, centers: Table, *, normalise: bool = False) -> Tensor:
    """Return the index of the nearest centre of each row; the lowest index among equals."""
    places = _rows(centers, "centers", device=None, normalise=False)
    rows = _rows(x, "x", device=places.device, normalise=normalise)
    if rows.shape[1] != places.shape[1]:
        raise ValueError(f"x has {rows.shape[1]} features but the centers have {places.shape[1]}")
    return _Nearest(rows)(places)


@dataclass(frozen=True)
class _Anchors:
    """The labelled rows, and what of them never changes: class ids, sums and sizes."""

    rows: Tensor
    labels: Tensor
    sums: Tensor  # (classes, d), float64
    sizes: Tensor  # (classes,)

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def means(self) -> Tensor:
        return (self.sums / self.sizes[:, None]).float()


def _anchors(
    labelled: Table | None, targets: Table | None, *, like: Tensor, normalise: bool
) -> _Anchors:
    rows = like[:0]
    if labelled is not None and len(labelled):
        rows = _rows(labelled, "labelled", device=like.device, normalise=normalise)
    if rows.shape[1] != like.shape[1]:
        raise ValueError(f"labelled rows have {rows.shape[1]} features, unlabelled {like.shape[1]}")
    ids = torch.as_tensor([] if targets is None else targets, device=like.device).long()
    if ids.shape != rows.shape[:1]:
        raise ValueError(f"{len(rows)} labelled rows do not go with targets {tuple(ids.shape)}")
    classes, labels = ids.unique(return_inverse=True)
    sums = rows.new_zeros(len(classes), rows.shape[1], dtype=torch.float64)
    sizes = sums.new_zeros(len(classes), dtype=torch.long)
    _carry(sums, sizes, rows, torch.full_like(labels, -1), labels)
    return _Anchors(rows, labels, sums, sizes)


def _lloyd(
    nearest: _Nearest,
    anchors: _Anchors,
    centers: Tensor,
    *,
    max_iter: int,
    tol: float,
    spherical: bool,
) -> KMeansResult:
    """Alternate assignment and means until the centres rest."""
    x = nearest.x
    centers = normalize(centers, dim=1) if spherical else centers
    sums = torch.zeros_like(centers, dtype=torch.float64)
    sums[: len(anchors)] = anchors.sums
    sizes = torch.zeros(len(centers), dtype=torch.long, device=x.device)
    sizes[: len(anchors)] = anchors.sizes
    labels = torch.full((len(x),), -1, device=x.device)
    for step in range(1, max_iter + 1):
        before, labels = labels, nearest(centers)
        if step == max_iter:
            break
        _carry(sums, sizes, x, before, labels)
        means = torch.where(sizes[:, None] > 0, sums / sizes[:, None], centers).float()
        means = normalize(means, dim=1) if spherical else means
        if float(torch.linalg.vector_norm(means - centers, dim=1).sum()) ** 2 < tol:
            break
        centers = means
    inertia = _inertia(x, centers, labels) + _inertia(anchors.rows, centers, anchors.labels)
    return KMeansResult(labels, anchors.labels, centers, inertia, step)


def _carry(sums: Tensor, sizes: Tensor, x: Tensor, before: Tensor, after: Tensor) -> None:
    """Carry rows that changed cluster (-1: none so far) from sum to sum, in double precision."""
    changed = (before != after).nonzero().squeeze(1)
    for block in _blocks(len(changed), x.shape[1]):
        rows = changed[block]
        values = x[rows].double()
        for labels, sign in ((after[rows], 1), (before[rows], -1)):
            if int(labels[0]) >= 0:
                sums.index_add_(0, labels, values, alpha=sign)
                sizes.add_(torch.bincount(labels, minlength=len(sizes)), alpha=sign)


class _Nearest:
    """Assign each row to the centre with the largest ``x.c - |c|^2 / 2``, block by block.

    The scores of the first ``kept`` rows are remembered: from call to call only centres that have
    moved are multiplied again, and only rows that these concern are decided again.
    """

    def __init__(self, x: Tensor, kept: int = 0) -> None:
        self.x = x
        self.kept = kept
        self.longest = float(torch.linalg.vector_norm(x, dim=1).max())
        self.scores = self.centers = self.labels = x.new_empty(0, 0)

    def __call__(self, centers: Tensor) -> Tensor:
        """Return the index of the nearest centre of each row."""
        moved = self._moved(centers)
        if not bool(moved.any()):
            return self.labels
        # With most centres moving, writing to scattered columns would cost what it saves.
        partly = int(moved.sum()) <= 0.8 * len(centers)
        offset = -0.5 * centers.square().sum(1)
        labels = torch.empty(len(self.x), dtype=torch.long, device=self.x.device)
        for block in _blocks(len(self.x), len(centers)):
            x, scores = self.x[block], self.scores[block] if block.stop <= self.kept else None
            if partly and scores is not None:
                labels[block] = self._revise(scores, x, centers, offset, moved, self.labels[block])
            else:
                scores = torch.addmm(offset, x, centers.T, out=scores)
                labels[block] = self._decide(scores, x, centers)
        self.centers, self.labels = centers, labels
        return labels

    def _moved(self, centers: Tensor) -> Tensor:
        if self.centers.shape == centers.shape:
            return (centers != self.centers).any(1)
        self.scores = centers.new_empty(self.kept, len(centers))
        return torch.ones(len(centers), dtype=torch.bool, device=centers.device)

    def _revise(
        self,
        scores: Tensor,
        x: Tensor,
        centers: Tensor,
        offset: Tensor,
        moved: Tensor,
        labels: Tensor,
    ) -> Tensor:
        """Decide again where the row's own centre moved or another one came as near."""
        columns = moved.nonzero().squeeze(1)
        fresh = torch.addmm(offset[columns], x, centers[columns].T)
        scores.scatter_(1, columns.expand(len(x), -1), fresh)
        own = scores.gather(1, labels[:, None]).squeeze(1)
        rivalled = fresh.amax(1) >= own - self._error(centers)
        doubtful = (moved[labels] | rivalled).nonzero().squeeze(1)
        return labels.index_put((doubtful,), self._decide(scores[doubtful], x, centers, doubtful))

    def _decide(
        self, scores: Tensor, x: Tensor, centers: Tensor, rows: Tensor | None = None
    ) -> Tensor:
        """Return the best of each row of scores, by exact distances where rounding may decide."""
        top, label = scores.max(1, keepdim=True)
        second = scores.scatter_(1, label, -math.inf).amax(1, keepdim=True)
        scores.scatter_(1, label, top)
        close = (top - second <= self._error(centers)).squeeze(1).nonzero().squeeze(1)
        label = label.squeeze(1)
        if len(close):
            label[close] = _nearest_exactly(x[close if rows is None else rows[close]], centers)
        return label

    def _error(self, centers: Tensor) -> float:
        """Bound the rounding error of the difference of two scores."""
        reach = float(torch.linalg.vector_norm(centers, dim=1).max())
        size = math.sqrt(self.x.shape[1]) * reach * (self.longest + reach)
        return 2 * _unit_roundoff() * size


def _nearest_exactly(x: Tensor, centers: Tensor) -> Tensor:
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(x.double(), centers.double(), compute_mode=mode).argmin(1)


def _starts(
    x: Tensor, anchors: _Anchors, k: int, *, init: Init, n_init: int, seed: int
) -> Iterator[Tensor]:
    """Yield the initial centres of each restart: the class means, then the new ones."""
    random = np.random.RandomState(seed)
    new, blind = k - len(anchors), not len(anchors)
    trials = 2 + int(math.log(k)) if init == "greedy" else 1
    # What is drawn does not depend on the data, so that all restarts can be drawn at once.
    first, draws = np.zeros(n_init, np.int64), np.zeros((n_init, new - blind, trials))
    for restart in range(n_init):
        first[restart] = random.randint(0, len(x)) if blind else 0
        draws[restart] = random.rand(new - blind, trials)
    gap = torch.full((len(x),), math.inf, device=x.device)
    if not blind:
        gap = _squared_gaps(x, anchors.means, _Nearest(x)(anchors.means))
    group = max(1, MEMORY // (32 * trials * len(x)))
    for at in range(0, n_init, group):
        here = slice(at, at + group)
        places = (torch.as_tensor(part[here], device=x.device) for part in (first, draws))
        for picks in _plus_plus(x, gap, *places, blind=blind):
            seeds = _neighbourhoods(x, picks, 2 * len(x) // k) if init == "means" else x[picks]
            yield torch.cat([anchors.means, seeds])


def _plus_plus(x: Tensor, gap: Tensor, first: Tensor, draws: Tensor, *, blind: bool) -> Tensor:
    """Pick rows with a chance in proportion to their squared distance from the nearest centre.

    All restarts walk in step, so that one pass over the rows serves them all.

    Args:
        x: candidates, ``(n, d)``.
        gap: their squared distances from the nearest labelled mean, ``(n,)``.
        first: the first pick of each restart, ``(r,)``; used if ``blind``: there are no means.
        draws: uniform numbers, ``(r, picks, trials)``.
        blind: whether ``first`` is a pick.

    Returns:
        Rows picked by each restart, ``(r, picks)``.
    """
    restarts, steps, trials = draws.shape
    lengths = x.square().sum(1)
    one = torch.arange(restarts, device=x.device)
    pick, picks = first, [first] if blind else []
    gaps = _squared_distances(x, lengths, first) if blind else gap.repeat(restarts, 1)
    for step in range(steps):
        total = gaps.sum(1, keepdim=True)
        # Summed in double and rounded to float, as torch does on a CPU, wherever this runs.
        reached = (gaps / total).cumsum(1, dtype=torch.float64).float()
        tried = torch.searchsorted(reached, draws[:, step].float())
        # All rows are centres already, or rounding left the end short: the previous pick again.
        tried = torch.where((tried < len(x)) & (total > 0), tried, pick[:, None])
        options = _squared_distances(x, lengths, tried.flatten()).view(restarts, trials, -1)
        options = torch.minimum(options, gaps[:, None])
        best = options.sum(2).argmin(1)
        gaps, pick = options[one, best], tried[one, best]
        picks.append(pick)
    return torch.stack(picks, 1) if picks else first.new_empty(restarts, 0)


def _squared_distances(x: Tensor, lengths: Tensor, picks: Tensor) -> Tensor:
    """Return the squared distances of the picked rows to all; small ones without cancellation."""
    gaps = torch.addmm(lengths, x[picks], x.T, alpha=-2).add_(lengths[picks][:, None])
    near, row = (gaps < 0.01 * lengths).nonzero(as_tuple=True)
    for block in _blocks(len(near), x.shape[1]):
        i, j = near[block], row[block]
        gaps[i, j] = (x[picks[i]] - x[j]).square().sum(1)
    return gaps


def _neighbourhoods(x: Tensor, picks: Tensor, size: int) -> Tensor:
    """Return the mean of the ``size`` rows nearest to each picked row."""
    half = 0.5 * x.square().sum(1)
    size = min(max(size, 1), len(x))
    seeds = x[picks]
    for block in _blocks(len(picks), len(x) + size * x.shape[1]):
        near = torch.addmm(half, x[picks[block]], x.T, beta=-1).topk(size).indices
        seeds[block] = x[near].mean(1)
    return seeds


def _inertia(x: Tensor, centers: Tensor, labels: Tensor) -> float:
    return float(_squared_gaps(x, centers, labels).sum(dtype=torch.float64))


def _squared_gaps(x: Tensor, centers: Tensor, labels: Tensor) -> Tensor:
    gaps = x.new_empty(len(x))
    for block in _blocks(len(x), x.shape[1]):
        torch.linalg.vector_norm(x[block] - centers[labels[block]], dim=1, out=gaps[block])
    return gaps.square_()


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    """Cut rows of float32 into blocks."""
    step = max(1, BLOCK // (4 * max(columns, 1)))
    return (slice(at, min(at + step, rows)) for at in range(0, rows, step))


def _unit_roundoff() -> float:
    """Return the rounding error of the products that torch is set to compute."""
    by_precision = {"highest": 2.0**-24, "high": 2.0**-11, "medium": 2.0**-8}
    return by_precision[torch.get_float32_matmul_precision()]


def _rows(x: Table, name: str, *, device: torch.device | str | None, normalise: bool) -> Tensor:
    """Return finite float32 rows on the device, or say what is wrong with them."""
    rows = torch.as_tensor(x, device=device).detach().float()
    if rows.ndim != 2 or not rows.numel():
        raise ValueError(f"{name} needs rows of features, but its shape is {tuple(rows.shape)}")
    if not bool(torch.isfinite(rows.sum())) and not bool(torch.isfinite(rows).all()):
        raise ValueError(f"{name} has NaN or infinite features; look for the row that made them")
    return normalize(rows, dim=1) if normalise else rows


def _check(anchors: _Anchors, *, k: int, n_init: int, max_iter: int, init: str) -> None:
    if k < max(len(anchors), 1):
        raise ValueError(f"k is {k}, below the {len(anchors)} labelled classes; raise it")
    if n_init < 1 or max_iter < 1:
        raise ValueError(f"n_init ({n_init}) and max_iter ({max_iter}) must be at least 1")
    if init not in get_args(Init):
        raise ValueError(f"init {init!r} is unknown; use one of {get_args(Init)}")
