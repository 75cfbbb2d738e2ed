"""Heads: what a method puts on the backbone's features.

Weights are drawn from the `generator` a head is given; without one, from PyTorch's global one.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from gcdbench.precision import full_precision


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
        _uniform_(self.weight, fan_in=in_dim, generator=generator)

    @full_precision  # cosines are divided by temperatures down to 0.04: half precision shows there
    def forward(self, features: Tensor) -> Tensor:
        """Return (n, K) logits."""
        prototypes = F.normalize(self.weight, dim=1)
        return self.scale * F.linear(F.normalize(features, dim=1), prototypes)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, scale={self.scale}"


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
        _uniform_(layer.weight, fan_in=in_dim, generator=generator)
        _uniform_(layer.bias, fan_in=in_dim, generator=generator)
    else:
        # The originals cut the tails at +-2, a hundred deviations out: no draw gets there.
        nn.init.normal_(layer.weight, std=std, generator=generator)
        nn.init.zeros_(layer.bias)
    return layer


def _uniform_(parameter: Tensor, *, fan_in: int, generator: Generator | None) -> None:
    """Fill with PyTorch's default for linear layers, uniform within 1/sqrt(fan_in)."""
    bound = 1 / math.sqrt(fan_in)
    nn.init.uniform_(parameter, -bound, bound, generator=generator)
