"""Choose the initial centres of k-means: class means for labelled classes, rows for the others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gcdbench.ops.kmeans.assign import Nearest, blocks, squared_gaps, squared_lengths

Init = Literal["k-means++", "greedy", "means", "random"]
MEMORY = 128 * 2**20  # bytes for restarts that are computed together


@dataclass(frozen=True)
class Start:
    """Initial centres and, if the search has computed them, the scores of all rows."""

    centers: Tensor
    scores: Tensor | None


def starts(
    x: Tensor, means: Tensor, k: int, *, init: Init, n_init: int, seed: int, keep: bool
) -> Iterator[Start]:
    """Yield the start of each restart.

    Args:
        x: rows that may become centres, ``(n, d)``.
        means: of the labelled classes, the first centres of every start.
        k: number of centres.
        init: how the others are found, see ``semi_supervised_kmeans``.
        n_init: number of starts.
        seed: of the random numbers.
        keep: whether to return the scores, which take ``4 n k`` bytes.
    """
    new, blind = k - len(means), not len(means)
    if init == "random":
        random = np.random.RandomState(seed)
        for _ in range(n_init):
            rows = np.resize(random.permutation(len(x)), new)
            yield Start(torch.cat([means, x[torch.as_tensor(rows, device=x.device)]]), None)
        return
    trials = 2 + int(math.log(k)) if init == "greedy" else 1
    first, draws = _draw(n_init, new - blind, trials, rows=len(x) if blind else 0, seed=seed)
    keep = keep and init != "means"
    lengths = squared_lengths(x)
    gap, known = x.new_empty(0), x.new_empty(len(x), 0)
    if not blind:
        nearest = Nearest(x, kept=len(x) if keep else 0)
        gap, known = squared_gaps(x, means, nearest(means)), nearest.scores
    group = max(1, MEMORY // ((32 * trials + 4 * new * keep) * len(x)))
    for at in range(0, n_init, group):
        here = slice(at, at + group)
        places = (torch.as_tensor(part[here], device=x.device) for part in (first, draws))
        picks, products = _walk(x, lengths, gap, *places, keep=keep)
        for restart, pick in enumerate(picks):
            if init == "means":
                seeds = _neighbourhoods(x, lengths, pick, 2 * len(x) // k)
                yield Start(torch.cat([means, seeds]), None)
                continue
            scores = None
            if keep:
                scores = torch.cat([known, products[restart].T - 0.5 * lengths[pick]], 1)
            yield Start(torch.cat([means, x[pick]]), scores)


def _draw(
    n_init: int, picks: int, trials: int, *, rows: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Draw the random numbers of all restarts, in the order of restarts run one by one.

    Returns:
        A first row for each restart, if ``rows`` says from how many, ``(r,)`` or empty, and
        uniform numbers for the other picks, ``(r, picks, trials)``.
    """
    random = np.random.RandomState(seed)
    first, draws = np.zeros(n_init if rows else 0, np.int64), np.zeros((n_init, picks, trials))
    for restart in range(n_init):
        if rows:
            first[restart] = random.randint(0, rows)
        draws[restart] = random.rand(picks, trials)
    return first, draws


def _walk(
    x: Tensor, lengths: Tensor, gap: Tensor, first: Tensor, draws: Tensor, *, keep: bool
) -> tuple[Tensor, Tensor]:
    """Pick rows with probability proportional to their squared distance from the nearest centre.

    The restarts are computed together, so that one pass over the rows serves all of them.

    Args:
        x: candidates, ``(n, d)``.
        lengths: their squared lengths, ``(n,)``.
        gap: their squared distances from the nearest labelled mean, ``(n,)`` or empty.
        first: the first pick of each restart if there are no labelled means, ``(r,)`` or empty.
        draws: uniform numbers, ``(r, picks, trials)``.
        keep: whether to return products.

    Returns:
        Rows picked by each restart, ``(r, picks)``, and their products with all rows,
        ``(r, picks, n)`` or empty.
    """
    restarts, steps, trials = draws.shape
    blind = len(first) > 0
    picks = torch.zeros(restarts, steps + blind, dtype=torch.long, device=x.device)
    kept = x.new_empty(restarts, (steps + blind) * keep, len(x))
    gaps = gap.repeat(restarts, 1)
    if blind:
        picks[:, 0] = first
        gaps, products = _gaps(x, lengths, first)
        if keep:
            kept[:, 0] = products
    one = torch.arange(restarts, device=x.device)
    pick = first if blind else torch.zeros_like(one)
    for at, draw in enumerate(draws.float().transpose(0, 1).contiguous(), start=int(blind)):
        total = gaps.sum(1, keepdim=True)
        # Summed in double and rounded to float on every device, as torch does on a CPU.
        reached = (gaps / total).cumsum(1, dtype=torch.float64).float()
        tried = torch.searchsorted(reached, draw)
        # All rows are centres already, or rounding left the end short: the previous pick again.
        tried = torch.where((tried < len(x)) & (total > 0), tried, pick[:, None])
        options, products = _gaps(x, lengths, tried.flatten())
        gaps = torch.minimum(options.view(restarts, trials, -1), gaps[:, None])
        best = gaps.sum(2).argmin(1) if trials > 1 else torch.zeros_like(one)
        gaps, pick = gaps[one, best], tried[one, best]
        picks[:, at] = pick
        if keep:
            kept[:, at] = products.view(restarts, trials, -1)[one, best]
    return picks, kept


def _gaps(x: Tensor, lengths: Tensor, picks: Tensor) -> tuple[Tensor, Tensor]:
    """Return squared distances of the picked rows to all rows, and the products they come from.

    Small ones are computed again from differences, because of cancellation.
    """
    products = x[picks] @ x.T
    gaps = torch.add(lengths, products, alpha=-2).add_(lengths[picks][:, None])
    gaps.scatter_(1, picks[:, None], 0.0)
    near, row = (gaps < 0.01 * lengths).nonzero(as_tuple=True)
    if len(near) > len(picks):  # others than the picked rows themselves
        for block in blocks(len(near), x.shape[1]):
            i, j = near[block], row[block]
            gaps[i, j] = (x[picks[i]] - x[j]).square().sum(1)
    return gaps, products


def _neighbourhoods(x: Tensor, lengths: Tensor, picks: Tensor, size: int) -> Tensor:
    """Return the mean of the ``size`` rows nearest to each picked row."""
    size = min(max(size, 1), len(x))
    seeds = x[picks]
    for block in blocks(len(picks), len(x) + size * x.shape[1]):
        near = torch.addmm(lengths, x[picks[block]], x.T, beta=-0.5).topk(size).indices
        seeds[block] = x[near].mean(1)
    return seeds
