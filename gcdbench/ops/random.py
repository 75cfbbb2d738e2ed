"""Random draws from a given generator, on the generator's device.

The result is moved to the target device afterwards, so that a run on a GPU sees the same random
numbers as a run on a CPU. The copy is asynchronous: what was drawn is not used again on the CPU.
"""

from __future__ import annotations

import hashlib
from typing import Any

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
    return torch.rand(shape, generator=generator, device=generator.device).to(
        device, non_blocking=True
    )


def draw_integers(
    high: int, count: int, *, generator: Generator, device: torch.device | str | None = None
) -> Tensor:
    """Draw `count` integers below `high`, with replacement."""
    drawn = torch.randint(high, (count,), generator=generator, device=generator.device)
    return drawn.to(device, non_blocking=True)


def draw_permutation(
    n: int, *, generator: Generator, device: torch.device | str | None = None
) -> Tensor:
    """Draw a permutation of 0..n-1."""
    return torch.randperm(n, generator=generator, device=generator.device).to(
        device, non_blocking=True
    )


def draw_beta(
    a: float | Tensor,
    b: float | Tensor,
    *shape: int,
    generator: Generator,
    device: torch.device | str | None = None,
) -> Tensor:
    """Draw from Beta(a, b); a sample passes gradients to concentrations that ask for them."""
    if isinstance(a, Tensor) and isinstance(b, Tensor) and a.device != generator.device:
        return _BetaElsewhere.apply(torch.stack([a, b]), shape, generator).to(device)
    first, second = (_gamma(concentration, shape, generator) for concentration in (a, b))
    return (first / (first + second)).float().to(device, non_blocking=True)


class _BetaElsewhere(torch.autograd.Function):
    """Beta samples for concentrations (2,) on another device: one copy there, one back.

    The slopes of the samples are computed where they are drawn, so that the backward pass needs
    nothing of the generator's device.
    """

    @staticmethod
    def forward(ctx: Any, both: Tensor, shape: tuple[int, ...], generator: Generator) -> Tensor:
        a, b = both.detach().to(generator.device)
        first, second = (_gamma(concentration, shape, generator) for concentration in (a, b))
        total = first + second
        if both.requires_grad:
            slope_a = (
                second / total**2 * torch._standard_gamma_grad(a.double().expand(shape), first)
            )
            slope_b = (
                -first / total**2 * torch._standard_gamma_grad(b.double().expand(shape), second)
            )
            slopes = torch.stack([slope_a, slope_b]).float()
            ctx.save_for_backward(slopes.to(both.device, non_blocking=True))
        return (first / total).float().to(both.device, non_blocking=True)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (slopes,) = ctx.saved_tensors
        return (grads[0] * slopes).flatten(1).sum(1), None, None


def _gamma(concentration: float | Tensor, shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Draw from Gamma(concentration, 1), above zero even for the small concentrations of mixing."""
    c = torch.as_tensor(concentration, dtype=torch.float64, device=generator.device)
    # The public torch.distributions.Gamma calls this function with the global generator.
    return torch._standard_gamma(c.expand(shape), generator=generator)
