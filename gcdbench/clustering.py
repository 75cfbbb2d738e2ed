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
    runs = (
        _lloyd(x, anchors, start, max_iter=max_iter, tol=tol, spherical=spherical, memory=memory)
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
    return _nearest(rows, places, longest=_longest(rows))


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
    _add(sums, sizes, rows, torch.arange(len(rows), device=rows.device), labels)
    return _Anchors(rows, labels, sums, sizes)


def _lloyd(
    x: Tensor,
    anchors: _Anchors,
    centers: Tensor,
    *,
    max_iter: int,
    tol: float,
    spherical: bool,
    memory: int,
) -> KMeansResult:
    """Alternate assignment and means until the centres rest."""
    centers = normalize(centers, dim=1) if spherical else centers
    k, longest = len(centers), _longest(x)
    sums = torch.zeros_like(centers, dtype=torch.float64)
    sums[: len(anchors)] = anchors.sums
    sizes = torch.zeros(k, dtype=torch.long, device=x.device)
    sizes[: len(anchors)] = anchors.sizes
    kept = x.new_empty(min(len(x), memory // (4 * k)), k)
    moved = torch.arange(k, device=x.device)
    labels = torch.full((len(x),), -1, device=x.device)
    for step in range(1, max_iter + 1):
        before, labels = labels, _nearest(x, centers, longest=longest, kept=kept, moved=moved)
        if step == max_iter:
            break
        changed = (labels != before).nonzero().squeeze(1)
        _add(sums, sizes, x, changed, labels)
        if step > 1:
            _add(sums, sizes, x, changed, before, sign=-1)
        means = torch.where(sizes[:, None] > 0, sums / sizes[:, None], centers).float()
        means = normalize(means, dim=1) if spherical else means
        if float(torch.linalg.vector_norm(means - centers, dim=1).sum()) ** 2 < tol:
            break
        moved = (means != centers).any(1).nonzero().squeeze(1)
        centers = means
    inertia = _inertia(x, centers, labels) + _inertia(anchors.rows, centers, anchors.labels)
    return KMeansResult(labels, anchors.labels, centers, inertia, step)


def _add(
    sums: Tensor, sizes: Tensor, x: Tensor, rows: Tensor, labels: Tensor, sign: int = 1
) -> None:
    """Add rows to the sums and sizes of their clusters, or take them away, in double precision."""
    sizes.add_(torch.bincount(labels[rows], minlength=len(sizes)), alpha=sign)
    for block in _blocks(len(rows), x.shape[1]):
        part = rows[block]
        sums.index_add_(0, labels[part], x[part].double(), alpha=sign)


def _nearest(
    x: Tensor,
    centers: Tensor,
    *,
    longest: float,
    kept: Tensor | None = None,
    moved: Tensor | None = None,
) -> Tensor:
    """Assign each row to the centre with the largest ``x.c - |c|^2 / 2``, block by block.

    Where the two best scores are closer than the product's rounding error the row is decided again
    in double precision.

    Args:
        x: rows, ``(n, d)``.
        centers: centres, ``(k, d)``.
        longest: norm of the longest row, which bounds the rounding error.
        kept: place for the scores of the first rows, which the next call finds there.
        moved: the centres whose kept scores are out of date; None for all.
    """
    offset = -0.5 * centers.square().sum(1)
    reach = float(torch.linalg.vector_norm(centers, dim=1).max())
    error = _unit_roundoff() * math.sqrt(x.shape[1]) * reach * (longest + reach)
    labels = torch.empty(len(x), dtype=torch.long, device=x.device)
    for block in _blocks(len(x), len(centers)):
        place = kept[block] if kept is not None and block.stop <= len(kept) else None
        # With most centres moving, writing to scattered columns would cost what it saves.
        if place is None or moved is None or len(moved) > 0.8 * len(centers):
            scores = torch.addmm(offset, x[block], centers.T, out=place)
        else:
            fresh = torch.addmm(offset[moved], x[block], centers[moved].T)
            scores = place.scatter_(1, moved.expand(len(fresh), -1), fresh)
        top, label = scores.max(1, keepdim=True)
        second = scores.scatter_(1, label, -math.inf).amax(1, keepdim=True)
        scores.scatter_(1, label, top)
        label = label.squeeze(1)
        close = (top - second).squeeze(1) <= 2 * error
        if bool(close.any()):
            label[close] = _nearest_exactly(x[block][close], centers)
        labels[block] = label
    return labels


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
        gap = _gaps(x, anchors.means)
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
    scale = lengths[picks][:, None] + lengths
    gaps = torch.addmm(scale, x[picks], x.T, alpha=-2)
    near, row = (gaps < 1e-2 * scale).nonzero(as_tuple=True)
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


def _gaps(x: Tensor, centers: Tensor) -> Tensor:
    """Return the squared distance of each row from its nearest centre."""
    return _squared_gaps(x, centers, _nearest(x, centers, longest=_longest(x)))


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


def _longest(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dim=1).max())


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
