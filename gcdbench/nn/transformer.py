"""What the benchmark needs of a vision transformer, for the families of timm that have it.

Patch embedding, the input of the first block, the blocks, the first rows of a block's output, the
CLS token's attention and the final norm. ``PlainTransformer`` is timm's ``VisionTransformer``
(DINO, DINOv2, CLIP), ``RotaryTransformer`` its ``Eva`` (DINOv3, EVA-02), whose blocks rotate the
queries and keys of patches by their positions. Both may have register tokens after the CLS token.
Views smaller than the model's images get resampled positions.
"""

from __future__ import annotations

import copy
from math import isqrt
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import apply_rot_embed_cat, resample_abs_pos_embed
from timm.models.eva import Eva, EvaBlockPostNorm
from timm.models.vision_transformer import Attention, Block, VisionTransformer
from torch import Tensor, nn

from gcdbench.errors import UserError


def transformer_of(vit: nn.Module, name: str = "this model") -> Transformer:
    """Return the transformer of a timm model; raise a UserError that says what it lacks."""
    for kind in (PlainTransformer, RotaryTransformer):
        if isinstance(vit, kind.models):
            if vit.cls_token is None:
                raise UserError(
                    f"backbone {name!r} cannot be used: it has no CLS token, which all methods read"
                )
            return kind(vit)
    raise UserError(
        f"backbone {name!r} cannot be used: a VisionTransformer or Eva of timm is needed, and "
        f"{type(vit).__name__} is none"
    )


class Transformer:
    """A timm model, as the backbone uses it; blocks are counted from 1."""

    models: type[nn.Module]  # of timm

    def __init__(self, vit: Any) -> None:
        self.vit = vit
        self.dim: int = vit.embed_dim
        self.num_blocks = len(vit.blocks)
        self.num_heads: int = vit.blocks[0].attn.num_heads
        self.num_prefix: int = vit.num_prefix_tokens  # CLS and registers

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches in an image of the model's own size."""
        return tuple(self.vit.patch_embed.grid_size)

    def norm(self, x: Tensor) -> Tensor:
        """Apply the final norm; models that average patches keep it under another name."""
        own = self.vit.norm
        return self.vit.fc_norm(x) if isinstance(own, nn.Identity) else own(x)

    def embed(self, images: Tensor) -> Tensor:
        """Return the patch embedding (n, p, d) of normalised images."""
        layer = self.vit.patch_embed
        if tuple(images.shape[-2:]) == tuple(layer.img_size):
            return layer(images)
        strict, layer.strict_img_size = layer.strict_img_size, False
        try:
            return layer(images)
        finally:
            layer.strict_img_size = strict

    def start(self, patches: Tensor) -> Tensor:
        """Return the input of the first block: CLS token, registers and patches, with positions."""
        raise NotImplementedError

    def rotation(self, x: Tensor, extra: int = 0) -> Any:
        """Return what all blocks need to know of the positions of tokens; ``extra`` are added."""
        return None

    def run(self, number: int, block: Any, x: Tensor, rotation: Any, extra: int = 0) -> Tensor:
        """Return the output of a block, or of a copy of it."""
        return block(x)

    def first(
        self, number: int, block: Any, x: Tensor, rows: int, rotation: Any, extra: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return the first rows of a block's output, and its CLS token's scores."""
        x, scores = self.run_scored(number, block, x, rotation, extra)
        return x[:, :rows], scores

    def run_scored(
        self, number: int, block: Any, x: Tensor, rotation: Any, extra: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return the output of a block, and the scores (n, heads, tokens) of its CLS token.

        Their softmax is the attention of the CLS token.
        """
        scores = self.cls_scores(number, block, x, rotation)
        return self.run(number, block, x, rotation, extra), scores

    def cls_scores(self, number: int, block: Any, x: Tensor, rotation: Any) -> Tensor:
        """Return the scores (n, heads, tokens) of the CLS token in a block."""
        raise NotImplementedError

    def _resampled(self, positions: Tensor, patches: int) -> Tensor:
        """Return absolute positions for a square of patches of another size."""
        prefix = 0 if self.vit.no_embed_class else self.num_prefix
        if positions.shape[1] == prefix + patches:
            return positions
        side = isqrt(patches)
        return resample_abs_pos_embed(
            positions, new_size=[side, side], old_size=list(self.grid), num_prefix_tokens=prefix
        )

    def _with_prefix(self, patches: Tensor, positions: Tensor | None) -> Tensor:
        """Return CLS token, registers and patches, with absolute positions if there are any."""
        vit, n = self.vit, len(patches)
        prefix = [t.expand(n, -1, -1) for t in (vit.cls_token, vit.reg_token) if t is not None]
        if positions is None:
            return torch.cat([*prefix, patches], dim=1)
        positions = self._resampled(positions, patches.shape[1])
        if vit.no_embed_class:
            return torch.cat([*prefix, patches + positions], dim=1)
        return torch.cat([*prefix, patches], dim=1) + positions


class PlainTransformer(Transformer):
    """timm's VisionTransformer: absolute positions, the last block can be cut short."""

    models = VisionTransformer

    def start(self, patches: Tensor) -> Tensor:
        """Return the input of the first block."""
        return self.vit.norm_pre(self._with_prefix(patches, self.vit.pos_embed))

    def __init__(self, vit: Any) -> None:
        super().__init__(vit)
        self.first_rows = first_rows  # or a compiled version of it
        self._apart: Tensor | None = None

    def apart(self, device: torch.device) -> Tensor:
        """Return a mask (heads, 1, heads) that is true off the diagonal; it is made once."""
        if self._apart is None or self._apart.device != device:
            self._apart = ~torch.eye(self.num_heads, dtype=torch.bool, device=device)[:, None]
        return self._apart

    def first(
        self, number: int, block: Any, x: Tensor, rows: int, rotation: Any, extra: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return the first rows of a block's output without computing the others, and scores."""
        if not is_plain(block):
            return super().first(number, block, x, rows, rotation, extra)
        return self.first_rows(block, x, rows)

    def run_scored(
        self, number: int, block: Any, x: Tensor, rotation: Any, extra: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return the output of a block and its CLS token's scores, of the same queries and keys."""
        if not is_plain(block):
            return super().run_scored(number, block, x, rotation, extra)
        attn = block.attn
        q, k, v = projections(attn, block.norm1(x), "qkv")
        mixed = F.scaled_dot_product_attention(q, k, v, scale=attn.scale)
        scores = _scores(attn, q, k, self.apart(x.device))
        return _after_attention(block, x, mixed.transpose(1, 2).flatten(2)), scores

    def cls_scores(self, number: int, block: Any, x: Tensor, rotation: Any) -> Tensor:
        """Return the scores (n, heads, tokens) of the CLS token in a block."""
        x = block.norm1(x)
        (q,), (k,) = projections(block.attn, x[:, :1], "q"), projections(block.attn, x, "k")
        return _scores(block.attn, q, k, self.apart(x.device))


class RotaryTransformer(Transformer):
    """timm's Eva: blocks rotate the queries and keys of patches by their positions."""

    models = Eva

    def start(self, patches: Tensor) -> Tensor:
        """Return the input of the first block."""
        return self.vit.norm_pre(self._with_prefix(patches, self.vit.pos_embed))

    def rotation(self, x: Tensor, extra: int = 0) -> Any:
        """Return sines and cosines of the patches' positions, for all blocks or for each."""
        if self.vit.rope is None:
            return None
        rope, side = self.vit.rope, isqrt(x.shape[1] - self.num_prefix - extra)
        if (side, side) != self.grid and getattr(rope, "pos_embed", None) is not None:
            rope = copy.deepcopy(rope)  # it knows the positions of the model's own size only
            rope.update_feat_shape([side, side])
        return rope.get_embed(shape=[side, side])

    def run(self, number: int, block: Any, x: Tensor, rotation: Any, extra: int = 0) -> Tensor:
        """Return the output of a block; added tokens have no position, as the CLS token."""
        block.attn.num_prefix_tokens = self.num_prefix + extra
        return block(x, rope=self._of(number, rotation))

    def cls_scores(self, number: int, block: Any, x: Tensor, rotation: Any) -> Tensor:
        """Return the scores (n, heads, tokens) of the CLS token in a block."""
        attn, rope = block.attn, self._of(number, rotation)
        x = x if isinstance(block, EvaBlockPostNorm) else block.norm1(x)
        q, k = _query_and_key(attn, x)
        if rope is not None:  # the CLS token itself is not rotated
            prefix = k.shape[2] - rope.shape[-2]
            turned = apply_rot_embed_cat(k[:, :, prefix:], rope, half=attn.rotate_half)
            k = torch.cat([k[:, :, :prefix], turned], dim=2)
        return (q[:, :, :1] * attn.scale @ k.transpose(-2, -1))[:, :, 0]

    def _of(self, number: int, rotation: Any) -> Any:
        return rotation[number - 1] if self.vit.rope_mixed and rotation is not None else rotation


def _query_and_key(attn: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys (n, heads, tokens, d/heads) of an attention layer of Eva."""
    if attn.qkv is None:
        q, k = attn.q_proj(x), attn.k_proj(x)
    else:
        bias = attn.qkv.bias
        if getattr(attn, "q_bias", None) is not None:
            bias = torch.cat([attn.q_bias, attn.k_bias, attn.v_bias])
        q, k, _ = F.linear(x, attn.qkv.weight, bias).chunk(3, dim=-1)
    q, k = (t.unflatten(-1, (-1, attn.head_dim)).transpose(1, 2) for t in (q, k))
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return attn.q_norm(q), attn.k_norm(k)


def is_plain(block: Any) -> bool:
    """Return whether a block is timm's plain one, whose parts can be run one by one."""
    attn = getattr(block, "attn", None)
    return type(block) is Block and type(attn) is Attention and getattr(attn, "gate", None) is None


def first_rows(block: Any, x: Tensor, rows: int = 1) -> tuple[Tensor, Tensor]:
    """Return the first rows (n, rows, d) of a plain block's output, and the CLS token's scores."""
    attn, normed = block.attn, block.norm1(x)
    linear = rows == 1 and isinstance(attn.k_norm, nn.Identity)
    mixed, scores = _attended_by_factors(attn, normed) if linear else _attended(attn, normed, rows)
    return _after_attention(block, x[:, :rows], mixed), scores


def _after_attention(block: Any, x: Tensor, mixed: Tensor) -> Tensor:
    """Return a plain block's output for tokens x whose attention output is ``mixed``."""
    attn = block.attn
    if getattr(attn, "norm", None) is not None:
        mixed = attn.norm(mixed)
    y = x + block.drop_path1(block.ls1(attn.proj_drop(attn.proj(mixed))))
    return y + block.drop_path2(block.ls2(block.mlp(block.norm2(y))))


def _scores(attn: Any, q: Tensor, k: Tensor, apart: Tensor) -> Tensor:
    """Return the scores (n, heads, tokens) of the first query.

    All heads of an image are in one product with a block-diagonal matrix: a product per head would
    first copy the keys, which lie side by side.
    """
    queries = q[:, :, 0, :, None].expand(-1, -1, -1, q.shape[1]).masked_fill(apart, 0.0)
    none = q.new_empty(1)  # is not read
    keys = k.transpose(1, 2).flatten(2)
    scores = torch.baddbmm(none, keys, queries.flatten(1, 2), beta=0, alpha=attn.scale)
    return scores.transpose(1, 2)


def _attended(attn: Any, normed: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return the attention output of the first rows before its projection, and scores."""
    (q,) = projections(attn, normed[:, :rows], "q")
    k, v = projections(attn, normed, "kv")
    mixed = F.scaled_dot_product_attention(q, k, v, scale=attn.scale)
    scores = (q[:, :, :1] * attn.scale @ k.transpose(-2, -1))[:, :, 0]
    return mixed.transpose(1, 2).flatten(2), scores


def _attended_by_factors(attn: Any, normed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same of the CLS token without computing a key and a value of every token.

    The products are computed in another order: the query is multiplied by the keys' weights once
    and then by the tokens, and the values' weights are applied after the attention. The keys' bias
    adds the same number to all scores of a query, so it is left out.
    """
    (q,) = projections(attn, normed[:, :1], "q")
    _, keys, values = attn.qkv.weight.unflatten(0, (3, attn.num_heads, -1))  # each (heads, e, d)
    asked = torch.einsum("nhe,hed->nhd", q[:, :, 0] * attn.scale, keys)
    scores = asked @ normed.transpose(1, 2)
    mixed = torch.einsum("nhd,hed->nhe", scores.softmax(-1) @ normed, values)
    if attn.qkv.bias is not None:
        mixed = mixed + attn.qkv.bias[-values.shape[0] * values.shape[1] :].view(values.shape[:2])
    return mixed.flatten(1)[:, None], scores


def projections(attn: Any, x: Tensor, names: str) -> list[Tensor]:
    """Return the projections in ``names``, a part of "qkv", each (n, heads, tokens, d/heads)."""
    weight, bias = attn.qkv.weight, attn.qkv.bias
    width, first = weight.shape[0] // 3, "qkv".index(names)
    rows = slice(first * width, (first + len(names)) * width)
    joint = F.linear(x, weight[rows], None if bias is None else bias[rows])
    heads = joint.unflatten(-1, (len(names), attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    norms = {"q": attn.q_norm, "k": attn.k_norm}
    return [norms[name](t) if name in norms else t for name, t in zip(names, heads, strict=True)]
