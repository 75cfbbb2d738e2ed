"""Semi-supervised k-means: labelled rows keep their class, the rest of the centres is discovered.

The default follows the official GCD implementation (Vaze et al., CVPR 2022) step by step - the same
random stream, the same tie rules - with two repairs: a cluster that loses its last member keeps its
centre (there it becomes NaN and freezes the run), and centres, labels and inertia belong to the
same step. Plain k-means is the case of no labelled rows.
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

Init = Literal["k-means++", "greedy"]
CHUNK_BYTES = 4 * 2**20  # of one block of scores: it stays in a core's share of the cache


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
    unlabelled: Tensor | np.ndarray,
    labelled: Tensor | np.ndarray | None,
    targets: Tensor | np.ndarray | None,
    k: int,
    *,
    seed: int = 0,
    n_init: int = 10,
    max_iter: int = 100,
    tol: float = 1e-4,
    init: Init = "k-means++",
    device: torch.device | str | None = None,
    normalise: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
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
        init: ``"k-means++"`` as published, or ``"greedy"``, which tries ``2 + log k`` candidates
            for each new centre and keeps the best, as scikit-learn does.
        device: where to compute; the device of ``unlabelled`` if None.
        normalise: scale every row to unit length first, as GCD does with its features.
        chunk_bytes: bound on one block of scores; it changes speed, not results.
    """
    x = _rows(unlabelled, "unlabelled", device=device, normalise=normalise)
    anchors = _anchors(labelled, targets, like=x, normalise=normalise)
    _check(x, anchors, k=k, n_init=n_init, max_iter=max_iter, init=init)
    starts = _starts(x, anchors, k, init=init, n_init=n_init, seed=seed)
    best: KMeansResult | None = None
    for start in starts:
        result = _lloyd(x, anchors, start, max_iter, tol, chunk_bytes)
        # Restarts often find one optimum under other names; rounding must not choose among them.
        if best is None or result.inertia < best.inertia * (1 - 1e-7):
            best = result
    assert best is not None
    return best


def assign(
    x: Tensor | np.ndarray,
    centers: Tensor,
    *,
    normalise: bool = False,
    chunk_bytes: int = CHUNK_BYTES,
) -> Tensor:
    """Return the index of the nearest centre of each row; the lowest index among equals."""
    rows = _rows(x, "x", device=centers.device, normalise=normalise)
    return _nearest(rows, centers, _longest(rows), chunk_bytes)


@dataclass(frozen=True)
class _Anchors:
    """The labelled rows, and what of them never changes: class ids, sums and sizes."""

    rows: Tensor
    labels: Tensor
    sums: Tensor  # (classes, d), float64
    sizes: Tensor  # (classes,)

    def __len__(self) -> int:
        return len(self.sizes)


def _anchors(
    labelled: Tensor | np.ndarray | None,
    targets: Tensor | np.ndarray | None,
    *,
    like: Tensor,
    normalise: bool,
) -> _Anchors:
    if labelled is None or len(labelled) == 0:
        labelled, targets = like[:0], like.new_zeros(0, dtype=torch.long)
    rows = _rows(labelled, "labelled", device=like.device, normalise=normalise, may_be_empty=True)
    ids = torch.as_tensor(targets, device=like.device).long()
    if ids.shape != rows.shape[:1]:
        raise ValueError(f"{len(rows)} labelled rows need one target each, not {tuple(ids.shape)}")
    classes, labels, sizes = ids.unique(return_inverse=True, return_counts=True)
    sums = rows.new_zeros(len(classes), like.shape[1], dtype=torch.float64)
    _add(sums, rows, labels)
    return _Anchors(rows, labels, sums, sizes)


def _lloyd(
    x: Tensor, anchors: _Anchors, centers: Tensor, max_iter: int, tol: float, chunk_bytes: int
) -> KMeansResult:
    """Alternate assignment and means until the centres rest."""
    k, longest = len(centers), _longest(x)
    sums = torch.zeros_like(centers, dtype=torch.float64)
    sums[: len(anchors)] = anchors.sums
    sizes = torch.zeros(k, dtype=torch.long, device=x.device)
    sizes[: len(anchors)] = anchors.sizes
    labels = torch.full((len(x),), -1, device=x.device)
    for step in range(1, max_iter + 1):
        before, labels = labels, _nearest(x, centers, longest, chunk_bytes)
        if step == max_iter:
            break
        moved = (labels != before).nonzero().squeeze(1)
        _add(sums, x, labels, moved)
        sizes += torch.bincount(labels, minlength=k)
        if step > 1:
            _add(sums, x, before, moved, sign=-1)
            sizes -= torch.bincount(before, minlength=k)
        means = torch.where(sizes[:, None] > 0, sums / sizes[:, None], centers).float()
        if float((means - centers).norm(dim=1).sum()) ** 2 < tol:
            break
        centers = means
    inertia = _inertia(x, centers, labels) + _inertia(anchors.rows, centers, anchors.labels)
    return KMeansResult(labels, anchors.labels, centers, inertia, step)


def _nearest(x: Tensor, centers: Tensor, longest: float, chunk_bytes: int) -> Tensor:
    """Assign each row to the centre with the largest ``x.c - |c|^2 / 2``, block by block.

    One matrix product per block. Where the two best scores are closer than its rounding error the
    row is decided again in double precision, so that neither block size nor device matters.
    """
    offset = -0.5 * centers.double().square().sum(1).float()
    reach = float(centers.norm(dim=1).max())
    error = _unit_roundoff() * math.sqrt(x.shape[1]) * reach * (longest + reach)
    out = torch.empty(len(x), dtype=torch.long, device=x.device)
    for block in _blocks(len(x), 4 * len(centers), chunk_bytes):
        scores = torch.addmm(offset, x[block], centers.T)
        top, label = scores.max(1)
        scores.scatter_(1, label[:, None], -math.inf)
        close = top - scores.amax(1) <= 2 * error
        if bool(close.any()):
            label[close] = _nearest_exactly(x[block][close], centers)
        out[block] = label
    return out


def _nearest_exactly(x: Tensor, centers: Tensor) -> Tensor:
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(x.double(), centers.double(), compute_mode=mode).argmin(1)


def _starts(
    x: Tensor, anchors: _Anchors, k: int, *, init: Init, n_init: int, seed: int
) -> Iterator[Tensor]:
    """Yield the initial centres of each restart: class means, then points by k-means++."""
    random = np.random.RandomState(seed)
    means = (anchors.sums / anchors.sizes[:, None]).float()
    new = k - len(anchors)
    trials = 2 + int(math.log(k)) if init == "greedy" else 1
    first, draws = [], []
    for _ in range(n_init):
        first.append(0 if len(anchors) else random.randint(0, len(x)))
        draws.append(random.rand(max(new - (len(anchors) == 0), 0), trials))
    if not new:
        yield from [means] * n_init
        return
    group = max(1, 2**26 // (16 * trials * len(x)))
    nearest = _distances_to_nearest(x, means) if len(anchors) else None
    for at in range(0, n_init, group):
        r = torch.as_tensor(np.stack(draws[at : at + group]), device=x.device)
        f = torch.as_tensor(first[at : at + group], device=x.device)
        picks = _plus_plus(x, nearest, f, r.float())
        yield from (torch.cat([means, x[row]]) for row in picks)


def _distances_to_nearest(x: Tensor, centers: Tensor) -> Tensor:
    labels = _nearest(x, centers, _longest(x), CHUNK_BYTES)
    out = torch.empty(len(x), device=x.device)
    for block in _blocks(len(x), 4 * x.shape[1], CHUNK_BYTES):
        out[block] = (x[block] - centers[labels[block]]).square().sum(1)
    return out


def _plus_plus(x: Tensor, nearest: Tensor | None, first: Tensor, draws: Tensor) -> Tensor:
    """Pick points with a chance in proportion to their squared distance from the nearest centre.

    All restarts walk in step, so that one pass over the rows serves them all.

    Args:
        x: candidates, ``(n, d)``.
        nearest: their squared distances to the nearest labelled mean, or None.
        first: the first pick of each restart where there are no labelled means, ``(r,)``.
        draws: uniform numbers, ``(r, picks, trials)``.
    """
    restarts, steps, trials = draws.shape
    length = x.square().sum(1)
    picks = []
    if nearest is None:
        picks.append(first)
        gap = _squared_distances(x, length, first)
    else:
        gap = nearest.repeat(restarts, 1)
    last = first
    rows = torch.arange(restarts, device=x.device)
    for step in range(steps):
        chance = gap / gap.sum(1, keepdim=True)
        # Summed in double and rounded to float: what torch's CPU cumsum does, on any device.
        reached = chance.cumsum(1, dtype=torch.float64).float()
        tried = torch.searchsorted(reached, draws[:, step].contiguous())
        stuck = (tried == len(x)) | ~(gap.sum(1, keepdim=True) > 0)
        tried = torch.where(stuck, last[:, None], tried)
        gaps = _squared_distances(x, length, tried.flatten()).view(restarts, trials, -1)
        gaps = torch.minimum(gaps, gap[:, None])
        best = gaps.sum(2).argmin(1)
        gap, last = gaps[rows, best], tried[rows, best]
        picks.append(last)
    return torch.stack(picks, 1)


def _squared_distances(x: Tensor, length: Tensor, picks: Tensor) -> Tensor:
    """Squared distances of the rows at ``picks`` to all rows; small ones without cancellation."""
    scale = length[picks][:, None] + length
    gaps = torch.addmm(scale, x[picks], x.T, alpha=-2)
    near, row = (gaps < 1e-2 * scale).nonzero(as_tuple=True)
    for block in _blocks(len(near), 4 * x.shape[1], CHUNK_BYTES):
        i, j = near[block], row[block]
        gaps[i, j] = (x[picks[i]] - x[j]).square().sum(1)
    return gaps


def _add(
    sums: Tensor, x: Tensor, labels: Tensor, rows: Tensor | None = None, sign: int = 1
) -> None:
    """Add rows to the sums of their clusters; blocks sum in float32, their totals in double."""
    size = len(x) if rows is None else len(rows)
    for block in _blocks(size, 4 * x.shape[1], CHUNK_BYTES):
        at = block if rows is None else rows[block]
        part = torch.zeros_like(sums, dtype=torch.float32).index_add_(0, labels[at], x[at])
        sums.add_(part, alpha=sign)


def _inertia(x: Tensor, centers: Tensor, labels: Tensor) -> float:
    total = 0.0
    for block in _blocks(len(x), 4 * x.shape[1], CHUNK_BYTES):
        total += float((x[block] - centers[labels[block]]).square_().sum(dtype=torch.float64))
    return total


def _blocks(size: int, row_bytes: int, budget: int) -> Iterator[slice]:
    step = max(1, budget // row_bytes)
    return (slice(at, min(at + step, size)) for at in range(0, size, step))


def _longest(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dim=1).max())


def _unit_roundoff() -> float:
    """Half the spacing of numbers near one in the products torch is set to compute."""
    return {"highest": 2.0**-24, "high": 2.0**-11}.get(
        torch.get_float32_matmul_precision(), 2.0**-8
    )


def _rows(
    x: Tensor | np.ndarray,
    name: str,
    *,
    device: torch.device | str | None,
    normalise: bool,
    may_be_empty: bool = False,
) -> Tensor:
    """Return finite float32 rows on the device, or say what is wrong with them."""
    rows = torch.as_tensor(x, device=device).detach().float()
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise ValueError(f"{name} must be a table of rows, not of shape {tuple(rows.shape)}")
    if not len(rows) and not may_be_empty:
        raise ValueError(f"{name} is empty; there is nothing to cluster")
    if not bool(torch.isfinite(rows.sum())) and not bool(torch.isfinite(rows).all()):
        raise ValueError(f"{name} has NaN or infinite features; look for the row that made them")
    return normalize(rows, dim=1) if normalise else rows


def _check(x: Tensor, anchors: _Anchors, *, k: int, n_init: int, max_iter: int, init: str) -> None:
    if anchors.rows.shape[1] != x.shape[1]:
        raise ValueError(f"labelled rows have {anchors.rows.shape[1]} features, not {x.shape[1]}")
    if k < max(len(anchors), 1):
        raise ValueError(f"k is {k}, below the {len(anchors)} labelled classes; raise it")
    if n_init < 1 or max_iter < 1:
        raise ValueError(f"n_init ({n_init}) and max_iter ({max_iter}) must be at least 1")
    if init not in get_args(Init):
        raise ValueError(f"init {init!r} is unknown; use one of {get_args(Init)}")
