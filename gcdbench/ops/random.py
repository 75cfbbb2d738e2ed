"""Random draws from a given generator, on the generator's device.

The result is moved to the target device afterwards, so that a run on a GPU sees the same random
numbers as a run on a CPU.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Generator, Tensor


def seeded(*parts: object, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator that is a pure function of its arguments: a seed, a purpose, a step."""
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def draw_uniform(
    *shape: int, generator: Generator, device: torch.device | str | None = None
) -> Tensor:
    """Draw from the uniform distribution on [0, 1)."""
    return torch.rand(shape, generator=generator, device=generator.device).to(device)


def draw_integers(
    high: int, count: int, *, generator: Generator, device: torch.device | str | None = None
) -> Tensor:
    """Draw `count` integers below `high`, with replacement."""
    drawn = torch.randint(high, (count,), generator=generator, device=generator.device)
    return drawn.to(device)


def draw_permutation(
    n: int, *, generator: Generator, device: torch.device | str | None = None
) -> Tensor:
    """Draw a permutation of 0..n-1."""
    return torch.randperm(n, generator=generator, device=generator.device).to(device)


def draw_beta(
    a: float | Tensor,
    b: float | Tensor,
    *shape: int,
    generator: Generator,
    device: torch.device | str | None = None,
) -> Tensor:
    """Draw from Beta(a, b); samples have gradients for concentrations that require them."""
    first, second = (_gamma(concentration, shape, generator) for concentration in (a, b))
    return (first / (first + second)).float().to(device)


def _gamma(concentration: float | Tensor, shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Draw from Gamma(concentration, 1), above zero even for the small concentrations of mixing."""
    c = torch.as_tensor(concentration, dtype=torch.float64, device=generator.device)
    # The public torch.distributions.Gamma calls this function with the global generator.
    return torch._standard_gamma(c.expand(shape), generator=generator)
