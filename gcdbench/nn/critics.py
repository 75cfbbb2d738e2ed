"""Jensen-Shannon estimate of the mutual information between two features of the same images.

A critic scores all pairs (x_i, y_j). Pairs on the diagonal belong to one image and follow the joint
distribution, the others the product of the marginals. Both critics here score n^2 pairs without
forming n^2 concatenated inputs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from gcdbench.nn.heads import ProjectionHead, uniform_
from gcdbench.ops.losses import mean_or_zero
from gcdbench.ops.precision import full_precision
from gcdbench.ops.unit import unit_rows

# bytes of hidden activations at a time: fits a CPU's cache; enough work for another device
CPU_CHUNK, CHUNK = 1 << 19, 1 << 26


@full_precision
def js_mutual_information(scores: Tensor) -> Tensor:
    """Return E_joint[-softplus(-S)] - E_marginals[softplus(S)] of an (n, n) score matrix.

    The best critic reaches -2 log 2 if the features are independent, and approaches 0 with growing
    dependence. With a single row there are no marginals to sample, and the result is 0.
    """
    n = len(scores)
    if n < 2:
        return mean_or_zero(scores[:0])
    joint = F.logsigmoid(scores.diagonal()).mean()  # log sigmoid(s) = -softplus(-s)
    itself = torch.eye(n, dtype=torch.bool, device=scores.device)
    marginals = F.logsigmoid(-scores.masked_fill(itself, -torch.inf)).sum() / (n * (n - 1))
    return joint + marginals


class CosineCritic(nn.Module):
    """Score pairs by the cosine between the concatenation of x and y and one learnt direction w.

    This is the critic of HiLo's released code. It factorises: the dot product is the sum of one
    number per row of x and one per row of y, and so is the squared length.
    """

    def __init__(self, x_dim: int, y_dim: int, *, generator: Generator | None = None) -> None:
        super().__init__()
        self.x_dim = x_dim
        self.weight = nn.Parameter(torch.empty(1, x_dim + y_dim))
        uniform_(self.weight, fan_in=x_dim + y_dim, generator=generator)

    @full_precision
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return (n, m) scores of all pairs of rows of x and y."""
        w = unit_rows(self.weight)[0]
        dot = (x @ w[: self.x_dim])[:, None] + y @ w[self.x_dim :]
        squared = x.square().sum(1)[:, None] + y.square().sum(1)
        return dot * squared.clamp(min=1e-24).rsqrt()


class MLPCritic(nn.Module):
    """Score pairs by a perceptron with one hidden layer on the concatenation of x and y.

    The first layer is linear in the concatenation, so it is applied once per row of x and of y, and
    the results are added per pair. Hidden activations are computed for a few rows of x at a time,
    in both passes.
    """

    def __init__(
        self,
        x_dim: int,
        y_dim: int,
        *,
        hidden_dim: int = 512,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.x_dim = x_dim
        self.head = ProjectionHead(
            x_dim + y_dim, hidden_dim=hidden_dim, out_dim=1, layers=2, generator=generator
        )

    @full_precision
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return (n, m) scores of all pairs of rows of x and y."""
        weight, bias, out_weight, out_bias = self.head.parameters()
        of_x = F.linear(x, weight[:, : self.x_dim], bias)
        of_y = F.linear(y, weight[:, self.x_dim :])
        return _Pairs.apply(of_x, of_y, out_weight[0]) + out_bias


class _Pairs(torch.autograd.Function):
    """Products gelu(x_i + y_j) . w, (n, m), whose backward pass computes the hidden layer again."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, y, w)
        return torch.cat([F.gelu(part[:, None] + y) @ w for part in x.split(_rows(y))])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, y, w = ctx.saved_tensors
        of_x, of_y, of_w = [], torch.zeros_like(y), torch.zeros_like(w)
        for part, upper in zip(x.split(_rows(y)), grad.split(_rows(y)), strict=True):
            before = part[:, None] + y
            of_w += upper.flatten() @ F.gelu(before).flatten(0, 1)
            inner = torch.ops.aten.gelu_backward(upper[..., None] * w, before)
            of_x.append(inner.sum(1))
            of_y += inner.sum(0)
        return torch.cat(of_x), of_y, of_w


def _rows(y: Tensor) -> int:
    """Return how many rows of x are paired with all rows of y at a time."""
    return max((CPU_CHUNK if y.device.type == "cpu" else CHUNK) // max(y.nbytes, 1), 1)
