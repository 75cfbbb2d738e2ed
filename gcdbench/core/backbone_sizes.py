"""Sizes of backbones and what a pass of an image costs, without torch.

A FLOP is a multiplication or an addition, so a multiply-accumulate counts as two. Matrix products
and convolutions are counted, as ``torch.utils.flop_counter`` does; norms and activations are not.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BackboneSize:
    """Width, depth and number of tokens of a vision transformer."""

    width: int
    depth: int
    heads: int
    tokens: int  # patches, CLS and registers
    embed_flops: int  # of the patch embedding of one image
    hidden: int  # width inside a block's MLP

    @classmethod
    def vit(
        cls, width: int, depth: int, *, patch: int, side: int = 224, prefix: int = 1
    ) -> BackboneSize:
        """Return the size of a plain ViT for images of ``side`` pixels; heads are 64 wide."""
        patches = (side // patch) ** 2
        embed = 2 * patches * width * 3 * patch**2
        return cls(width, depth, width // 64, patches + prefix, embed, 4 * width)

    @property
    def block_flops(self) -> int:
        """Forward pass of one block: four projections, two attention products, the MLP."""
        n, d = self.tokens, self.width
        return 2 * n * (4 * d * d + 2 * d * self.hidden) + 4 * n * n * d

    @property
    def cls_block_flops(self) -> int:
        """Forward pass of a last block that computes the CLS token only (``cls_only``)."""
        d = self.width
        return 2 * (4 * d * d + 2 * d * self.hidden) + 4 * self.heads * self.tokens * d

    def trunk_flops(self, train_blocks: int) -> int:
        """Forward pass of the frozen part."""
        return self.embed_flops + (self.depth - train_blocks) * self.block_flops

    def tail_flops(self, train_blocks: int) -> int:
        """Forward pass of the trained blocks."""
        if train_blocks == 0:
            return 0
        return (train_blocks - 1) * self.block_flops + self.cls_block_flops

    def kept_bytes(self, train_blocks: int, precision: str) -> int:
        """Bytes of one image's frozen features: its tokens and the CLS of every frozen block."""
        rows = self.tokens + self.depth - train_blocks
        return rows * self.width * {"float32": 4, "float16": 2}[precision]


# of the names in ``settings.BACKBONES``; the size of any other timm model is found by building it
SIZES = {
    # 64 px: convolutions to 16 tokens, then four blocks, see nn/embedded
    "embedded": BackboneSize(192, 4, 3, 17, 40_552_960, 768),
    "dino-vitb16": BackboneSize.vit(768, 12, patch=16),
    "dino-vits16": BackboneSize.vit(384, 12, patch=16),
    "dinov2-vits14": BackboneSize.vit(384, 12, patch=14),
    "dinov2-vitb14": BackboneSize.vit(768, 12, patch=14),
    "dinov2-vitl14": BackboneSize.vit(1024, 24, patch=14),
    # four register tokens next to CLS
    "dinov3-vits16": BackboneSize.vit(384, 12, patch=16, prefix=5),
    "dinov3-vitb16": BackboneSize.vit(768, 12, patch=16, prefix=5),
    "dinov3-vitl16": BackboneSize.vit(1024, 24, patch=16, prefix=5),
    "clip-vitb16": BackboneSize.vit(768, 12, patch=16),
}
