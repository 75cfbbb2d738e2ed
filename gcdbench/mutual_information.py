"""Jensen-Shannon estimate of the mutual information between two features of the same images.

A critic scores all pairs (x_i, y_j). Pairs on the diagonal belong to one image and follow the joint
distribution, the others the product of the marginals. Both critics here score n^2 pairs without
forming n^2 concatenated inputs.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.utils.checkpoint import checkpoint

from gcdbench.losses import mean_or_zero
from gcdbench.nn.heads import ProjectionHead, uniform_
from gcdbench.precision import full_precision

SMALL = 64 << 20  # bytes of hidden activations that are kept for the backward pass


@full_precision
def js_mutual_information(scores: Tensor) -> Tensor:
    """Return E_joint[-softplus(-S)] - E_marginals[softplus(S)] of an (n, n) score matrix.

    The best critic reaches -2 log 2 where the features are independent and tends to 0 the more they
    tell about each other. With a single row there are no marginals to sample, and the result is 0.
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

    This is what the released code of HiLo computes. It factorises: the dot product is a sum of one
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
        w = F.normalize(self.weight, dim=1)[0]
        dot = (x @ w[: self.x_dim])[:, None] + y @ w[self.x_dim :]
        squared = x.square().sum(1)[:, None] + y.square().sum(1)
        return dot * squared.clamp(min=1e-24).rsqrt()


class MLPCritic(nn.Module):
    """Score pairs by a perceptron with one hidden layer on the concatenation of x and y.

    The first layer is linear in the concatenation, so it is applied to x and to y once per row and
    only added per pair. Hidden activations exist for `chunk` rows of x at a time; the backward pass
    computes them again, unless all of them together are small.
    """

    def __init__(
        self,
        x_dim: int,
        y_dim: int,
        *,
        hidden_dim: int = 512,
        chunk: int = 32,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.x_dim = x_dim
        self.chunk = chunk
        self.head = ProjectionHead(
            x_dim + y_dim, hidden_dim=hidden_dim, out_dim=1, layers=2, generator=generator
        )

    @full_precision
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return (n, m) scores of all pairs of rows of x and y."""
        weight, bias = self.head.mlp[0].parameters()
        of_x = F.linear(x, weight[:, : self.x_dim], bias)
        of_y = F.linear(y, weight[:, self.x_dim :])
        chunks = of_x.split(self.chunk)
        if of_x.nbytes * len(of_y) <= SMALL:
            return torch.cat([self._pairs(chunk, of_y) for chunk in chunks])
        rows = [
            checkpoint(self._pairs, chunk, of_y, use_reentrant=False, preserve_rng_state=False)
            for chunk in chunks
        ]
        return torch.cat(rows)

    def _pairs(self, of_x: Tensor, of_y: Tensor) -> Tensor:
        """Score the pairs of a few rows of x with all rows of y."""
        return self.head.mlp[1:](of_x[:, None] + of_y).squeeze(-1)
