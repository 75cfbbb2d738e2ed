"""Contrast by any score of pairs, and the distances that serve as one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gcdbench.ops.losses import mean_or_zero
from gcdbench.ops.precision import full_precision

COINCIDE = 1e-6  # squared distances below this share of the squared lengths are rounding


@full_precision
def contrast_by_score(scores: Tensor, positive: Tensor) -> Tensor:
    """Contrast every row's positives with all other rows, a mean over rows.

    Args:
        scores: (n, n) of pairs, divided by the temperature.
        positive: (n, n) which pairs belong together; the diagonal is ignored.
    """
    positive = positive & ~identity(scores)
    log_prob = log_prob_of_others(scores)
    return mean_or_zero(-(log_prob * positive).sum(1) / positive.sum(1).clamp(min=1))


def log_prob_of_others(scores: Tensor) -> Tensor:
    """Return log p(j | i) over j != i as an (n, n) matrix; its diagonal means nothing."""
    lowest = torch.finfo(scores.dtype).min  # not -inf: a single row has no other rows to sum over
    others = scores.masked_fill(identity(scores), lowest)
    return scores - others.logsumexp(1, keepdim=True)


def identity(scores: Tensor) -> Tensor:
    """Return the diagonal of a square matrix as a mask."""
    return torch.eye(len(scores), dtype=torch.bool, device=scores.device)


def other_view(rows: int, device: torch.device | None = None) -> Tensor:
    """Return (n, n): which row is the other view of each row, view-major."""
    return torch.eye(rows, dtype=torch.bool, device=device).roll(rows // 2, dims=0)


@full_precision
def euclidean_distances(z: Tensor, leading: Sequence[int] = ()) -> list[Tensor]:
    """Return (n, n) distances by all dimensions and by each number of leading ones.

    Distances that are rounding errors of their rows' lengths are zero, without gradient.
    """
    ends = sorted({*leading, z.shape[1]})
    product, start, found = z.new_zeros(len(z), len(z)), 0, {}
    for end in ends:
        part = z[:, start:end]
        product, start = product + part @ part.T, end
        found[end] = _distances(product)
    return [found[end] for end in (z.shape[1], *leading)]


def _distances(product: Tensor) -> Tensor:
    squares = product.diagonal()
    scale = squares[:, None] + squares
    gap = scale - 2 * product
    apart = (gap > COINCIDE * scale) & ~identity(product)
    return gap.masked_fill(~apart, 1.0).sqrt().masked_fill(~apart, 0.0)  # no root of 0 in the graph
