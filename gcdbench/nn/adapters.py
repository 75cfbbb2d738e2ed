"""Adapters of a frozen backbone: pixel prompts, added tokens, prompts at every block, LoRA.

A method builds adapters in ``__init__`` and gives them to ``Backbone.adapt``. An adapter says at
which depth it acts: the blocks before it stay frozen, and their output can be precomputed; what
comes after it passes gradients. All parameters of an adapter are trained. What a token adapter adds
comes after CLS token and registers and before the patches, without a position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

PIXELS = -1  # the depth of an adapter that changes images: nothing can be precomputed


class Adapter(nn.Module):
    """Base class of adapters; each of the hooks does nothing by default."""

    depth: int  # how many blocks come before it; PIXELS if it changes images
    active: bool = True  # see ``Backbone.without``

    def attach(self, vit: Any) -> None:
        """Change modules of a timm model, in blocks after ``depth`` only."""

    def images(self, images: Tensor) -> Tensor:
        """Change normalised images (n, 3, H, W); needs ``depth = PIXELS``."""
        return images

    def tokens(self, block: int) -> Tensor | None:
        """Return tokens (m, d) that enter a block, counted from 1, in place of the adapter's last.

        None leaves the adapter's tokens as the block before returned them.
        """
        return None


class PixelPrompt(Adapter):
    """Adds one trained image to all normalised images, where a mask is 1."""

    depth = PIXELS
    mask: Tensor

    def __init__(self, value: Tensor, mask: Tensor | None = None) -> None:
        super().__init__()
        self.value = nn.Parameter(value)  # (3, H, W)
        mask = torch.ones_like(value) if mask is None else mask.expand_as(value).to(value)
        self.register_buffer("mask", mask.contiguous())

    def images(self, images: Tensor) -> Tensor:
        """Return the prompted images."""
        return images + self.value * self.mask


class AddedTokens(Adapter):
    """Adds trained tokens before block ``depth + 1``; all blocks from there on transform them."""

    def __init__(self, value: Tensor, depth: int) -> None:
        super().__init__()
        self.value = nn.Parameter(value)  # (m, d)
        self.depth = depth

    def tokens(self, block: int) -> Tensor | None:
        """Return the tokens at their first block."""
        return self.value if block == self.depth + 1 else None


class DeepPrompts(Adapter):
    """Adds trained tokens of its own to every block after ``depth``, which replace the last."""

    def __init__(self, value: Tensor, depth: int = 0) -> None:
        super().__init__()
        self.value = nn.Parameter(value)  # (blocks after depth, m, d)
        self.depth = depth

    def tokens(self, block: int) -> Tensor | None:
        """Return the tokens of a block."""
        return self.value[block - self.depth - 1] if block > self.depth else None


class LoRA(Adapter):
    """Adds a trained matrix of low rank to linear layers of all blocks after ``depth``.

    ``layers`` are paths inside a block. The update starts at zero and is scaled by alpha / rank.
    """

    def __init__(
        self,
        *,
        rank: int,
        depth: int = 0,
        alpha: float | None = None,
        layers: tuple[str, ...] = ("attn.qkv",),
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.rank, self.depth, self.layers = rank, depth, layers
        self.scale = 1.0 if alpha is None else alpha / rank
        self.generator = generator

    def attach(self, vit: Any) -> None:
        """Let the layers compute with their weight plus the update."""
        for block in vit.blocks[self.depth :]:
            for path in self.layers:
                linear = block.get_submodule(path)
                update = _LowRank(linear.weight, self)
                parametrize.register_parametrization(linear, "weight", update)
        del self.generator


class _LowRank(nn.Module):
    """A weight plus scale * up @ down."""

    def __init__(self, weight: Tensor, owner: LoRA) -> None:
        super().__init__()
        out, into = weight.shape
        down = torch.randn(owner.rank, into, generator=owner.generator) / into**0.5
        self.down = nn.Parameter(down.to(weight))
        self.up = nn.Parameter(weight.new_zeros(out, owner.rank))
        self._owner = (owner,)  # in a tuple: not a submodule of its own

    def forward(self, weight: Tensor) -> Tensor:
        (owner,) = self._owner
        return weight + owner.scale * (self.up @ self.down) if owner.active else weight


class AddedRows:
    """The tokens that adapters add on the way through the blocks."""

    def __init__(self, adapters: Sequence[Adapter], prefix: int) -> None:
        self.adapters, self.prefix = adapters, prefix
        self.rows = [0] * len(adapters)  # of each adapter, in their order

    @property
    def number(self) -> int:
        """Number of added tokens."""
        return sum(self.rows)

    def of(self, x: Tensor) -> Tensor:
        """Return the added tokens (n, m, d)."""
        return x[:, self.prefix : self.prefix + self.number]

    def replaced(self, x: Tensor, tokens: Tensor) -> Tensor:
        """Return the tokens with others in place of the added ones."""
        return torch.cat([x[:, : self.prefix], tokens, x[:, self.prefix + self.number :]], dim=1)

    def enter(self, x: Tensor, block: int) -> Tensor:
        """Return the tokens that enter a block."""
        new = [one.tokens(block) for one in self.adapters]
        if all(tokens is None for tokens in new):
            return x
        parts = []
        for old, tokens in zip(self.of(x).split(self.rows, dim=1), new, strict=True):
            parts.append(old if tokens is None else tokens.to(x).expand(len(x), -1, -1))
        x = self.replaced(x, torch.cat(parts, dim=1))
        self.rows = [part.shape[1] for part in parts]
        return x
