"""Losses of unsupervised domain adaptation: class confusion (MCC) and nuclear norms (NWD)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gcdbench.ops.losses import mean_or_zero
from gcdbench.ops.precision import full_precision


@full_precision
def minimum_class_confusion(logits: Tensor, *, temperature: float = 2.5) -> Tensor:
    """Return the share of the rows' class correlation that is off the diagonal, in [0, 1].

    With posteriors q and certainty weights w, C = q^T diag(w) q is the class correlation; since the
    rows of q sum to one, its diagonal and its row sums need no K x K matrix.

    Args:
        logits: (n, K) of unlabelled rows, scaled so that their softmax is the posterior: on bare
            cosines the loss stays near 1 - 1/K and hardly has a gradient.
        temperature: softens the posteriors.
    """
    if not len(logits):
        return mean_or_zero(logits)
    q = (logits / temperature).softmax(1)
    p = q.detach()
    weight = 1 + (p * (p + 1e-5).log()).sum(1, keepdim=True).exp()
    own = (weight * q.square()).sum(0)
    mass = (weight * q).sum(0)
    return 1 - (own / mass.clamp(min=torch.finfo(q.dtype).tiny)).mean()


@full_precision
def nuclear_discrepancy(source: Tensor, target: Tensor) -> Tensor:
    """Return (|source|_* - |target|_*) / n for the posteriors of the two sides.

    Nuclear norms do not grow in proportion to the number of rows: give both sides equally many, n.

    Args:
        source: (n, K) posteriors of labelled rows.
        target: (n, K) posteriors of unlabelled rows.
    """
    if not (len(source) and len(target)):
        return mean_or_zero(source[:0]) + mean_or_zero(target[:0])
    norms = [torch.linalg.matrix_norm(p, ord="nuc") for p in (source, target)]
    return (norms[0] - norms[1]) / len(target)


def warm_start(step: int, *, length: int = 1000) -> float:
    """Return the strength 2 / (1 + exp(-step/length)) - 1 of a reversal that sets in slowly.

    >>> [round(warm_start(i), 2) for i in (0, 1000, 5000)]
    [0.0, 0.46, 0.99]
    """
    return math.tanh(step / (2 * length))


def reverse_gradient(x: Tensor, strength: float = 1.0) -> Tensor:
    """Return x unchanged; what flows back is multiplied by -strength."""
    return _Reversal.apply(x, strength)


class _Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, strength: float) -> Tensor:
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return -ctx.strength * grads[0], None
