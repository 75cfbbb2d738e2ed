"""Heads: modules that methods apply to the backbone's features.

Weights are drawn from the `generator` passed to a head; without one, from PyTorch's global one.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from gcdbench.ops.precision import full_precision
from gcdbench.ops.unit import unit_rows


class ProjectionHead(nn.Module):
    """Multi-layer perceptron without batch norm; its output is not normalised.

    Args:
        in_dim: width of the features.
        hidden_dim: width of each hidden layer.
        out_dim: width of the projection.
        layers: number of linear layers.
        activation: between them; GELU is the exact one.
        init_std: deviation of the normal weights, with zero biases; None for PyTorch's uniform
            initialisation of both.
        generator: source of the initial weights.
    """

    def __init__(
        self,
        in_dim: int,
        *,
        hidden_dim: int = 2048,
        out_dim: int = 256,
        layers: int = 3,
        activation: type[nn.Module] = nn.GELU,
        init_std: float | None = 0.02,
        generator: Generator | None = None,
    ) -> None:
        widths = [in_dim, *[hidden_dim] * (layers - 1), out_dim]
        modules: list[nn.Module] = []
        for before, after in pairwise(widths):
            modules += [_linear(before, after, init_std, generator), activation()]
        super().__init__()
        self.mlp = nn.Sequential(*modules[:-1])

    def forward(self, features: Tensor) -> Tensor:
        """Return (n, out_dim) projections."""
        return self.mlp(features)


class CosineClassifier(nn.Module):
    """Classifier whose logits are `scale` times the cosines of feature and class prototypes.

    Neither the length of the feature nor that of a prototype matters, and there is no bias.
    """

    def __init__(
        self,
        in_dim: int,
        num_classes: int,
        *,
        scale: float = 1.0,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.empty(num_classes, in_dim))
        uniform_(self.weight, fan_in=in_dim, generator=generator)

    def forward(self, features: Tensor) -> Tensor:
        """Return (n, K) logits."""
        cosines = _cosines(features, unit_rows(self.weight))
        return cosines if self.scale == 1 else self.scale * cosines

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, scale={self.scale}"


class Prototypes(nn.Module):
    """Bias-free classifier on unit features; the caller keeps its rows at length one.

    In contrast to `CosineClassifier`, the forward pass does not normalise the prototypes: call
    `normalise_` before it or after the optimiser's step, as UNO and UniOT do.
    """

    def __init__(
        self, in_dim: int, num_classes: int, *, generator: Generator | None = None
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_classes, in_dim))
        uniform_(self.weight, fan_in=in_dim, generator=generator)
        self.normalise_()

    def normalise_(self) -> None:
        """Bring all prototypes to length one, in place."""
        unit_rows_(self.weight)

    def forward(self, features: Tensor) -> Tensor:
        """Return (n, K) cosines; the features are normalised here."""
        return _cosines(features, self.weight)


class MultiHeadPrototypes(nn.Module):
    """UNO's independent clustering heads, evaluated as one: perceptron, unit output, prototypes.

    Args:
        in_dim: width of the features.
        num_classes: prototypes of each head.
        heads: number of heads.
        hidden_dim: width of each head's hidden layer (linear, batch norm, ReLU).
        out_dim: width of the space of the prototypes.
        generator: source of the initial weights.
    """

    def __init__(
        self,
        in_dim: int,
        num_classes: int,
        *,
        heads: int = 4,
        hidden_dim: int = 2048,
        out_dim: int = 256,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        # Batch norm treats every channel by itself, so the heads' first layers are one wide layer.
        self.hidden = _linear(in_dim, heads * hidden_dim, None, generator)
        self.norm = nn.BatchNorm1d(heads * hidden_dim)
        self.weight = nn.Parameter(torch.empty(heads, out_dim, hidden_dim))
        self.bias = nn.Parameter(torch.empty(heads * out_dim))
        self.prototypes = nn.Parameter(torch.empty(heads, num_classes, out_dim))
        uniform_(self.weight, fan_in=hidden_dim, generator=generator)
        uniform_(self.bias, fan_in=hidden_dim, generator=generator)
        uniform_(self.prototypes, fan_in=out_dim, generator=generator)
        self.normalise_()

    def normalise_(self) -> None:
        """Bring all prototypes to length one, in place."""
        unit_rows_(self.prototypes)

    def forward(self, features: Tensor) -> Tensor:
        """Return (heads, n, K) cosines; call once per view, because of the batch norm."""
        hidden = F.relu(self._normalised(self.hidden(features)))
        per_head = hidden.unflatten(1, (self.heads, -1)).transpose(0, 1)
        z = per_head @ self.weight.mT + self.bias.view(self.heads, 1, -1)
        return _cosines(z, self.prototypes)

    def _normalised(self, hidden: Tensor) -> Tensor:
        """Apply batch norm; a single row has no deviation and uses the running statistics."""
        if len(hidden) > 1:
            return self.norm(hidden)
        norm = self.norm
        return F.batch_norm(
            hidden, norm.running_mean, norm.running_var, norm.weight, norm.bias, eps=norm.eps
        )


class GCDHead(nn.Module):
    """Head of GCD: a projection whose cosines with 65,536 prototypes are the embedding."""

    def __init__(
        self,
        in_dim: int,
        *,
        hidden_dim: int = 2048,
        bottleneck_dim: int = 256,
        out_dim: int = 65_536,
        generator: Generator | None = None,
    ) -> None:
        super().__init__()
        self.projector = ProjectionHead(
            in_dim, hidden_dim=hidden_dim, out_dim=bottleneck_dim, generator=generator
        )
        self.last_layer = CosineClassifier(bottleneck_dim, out_dim, generator=generator)

    def forward(self, features: Tensor) -> Tensor:
        """Return (n, out_dim) embeddings, to be normalised by the contrastive losses."""
        return self.last_layer(self.projector(features))


def _linear(in_dim: int, out_dim: int, std: float | None, generator: Generator | None) -> nn.Linear:
    """Build a linear layer whose weights come from `generator` alone."""
    layer = nn.Linear(in_dim, out_dim, device="meta").to_empty(device=torch.get_default_device())
    if std is None:
        uniform_(layer.weight, fan_in=in_dim, generator=generator)
        uniform_(layer.bias, fan_in=in_dim, generator=generator)
    else:
        # The originals truncate at +-2, a hundred deviations: no draw is that large.
        nn.init.normal_(layer.weight, std=std, generator=generator)
        nn.init.zeros_(layer.bias)
    return layer


def uniform_(parameter: Tensor, *, fan_in: int, generator: Generator | None) -> None:
    """Fill with PyTorch's default for linear layers, uniform within 1/sqrt(fan_in)."""
    bound = 1 / math.sqrt(fan_in)
    nn.init.uniform_(parameter, -bound, bound, generator=generator)


@torch.no_grad()
def unit_rows_(weight: Tensor) -> None:
    """Bring the last dimension of a parameter to length one, in place and without gradient."""
    weight.copy_(F.normalize(weight, dim=-1))


@full_precision
def _cosines(z: Tensor, prototypes: Tensor) -> Tensor:
    """Return cosines with unit prototypes, in full precision: temperatures go down to 0.04."""
    return unit_rows(z) @ prototypes.mT
