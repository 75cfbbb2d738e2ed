"""A timm vision transformer whose last blocks are trained and whose trunk is frozen.

The trunk (patch embedding, positions and frozen blocks) runs without autograd. In the blocks that
are trained, only what is used is computed: in the last block that is the CLS token alone, unless
patch tokens are needed. Both shortcuts give the same numbers as the plain forward pass.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import Attention, Block, VisionTransformer
from torch import Tensor, nn

from gcdbench.nn.parallel import ProcessGroup, SingleProcess

TokenHook = Callable[[Tensor, int], Tensor]
AddHook = Callable[[Tensor], Tensor | None]
TapHook = Callable[[int, Tensor], None]
# how deep into the backbone a view may be precomputed; traced: tokens with the data of a recording
CacheDepth = Literal["images", "patches", "traced", "tokens"]
CPU_CACHE = 20 << 20  # bytes of the widest activations; 8 images of a ViT-B/16


@dataclass(frozen=True)
class Patches:
    """State of images after the patch embedding, before CLS token and positions."""

    x: Tensor  # (n, p, d)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: Tensor) -> Patches:
        return Patches(self.x[rows])

    def to(self, device: torch.device) -> Patches:
        """Move to a device."""
        return Patches(self.x.to(device, non_blocking=True))


@dataclass(frozen=True)
class Trace:
    """What a recording holds of images that have passed the trunk."""

    patches: Tensor  # (n, p, d)
    maps: Tensor  # (n, frozen blocks, heads, p) CLS attention

    def __getitem__(self, rows: Tensor) -> Trace:
        return Trace(self.patches[rows], self.maps[rows])

    def to(self, device: torch.device) -> Trace:
        """Move to a device."""
        parts = (part.to(device, non_blocking=True) for part in (self.patches, self.maps))
        return Trace(*parts)


@dataclass(frozen=True)
class Tokens:
    """State of images after the frozen trunk."""

    x: Tensor  # (n, prefix + p, d)
    taps: dict[int, Tensor] = field(default_factory=dict)  # block -> CLS (n, d), normalised
    trace: Trace | None = None  # if it may be needed

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: Tensor) -> Tokens:
        trace = None if self.trace is None else self.trace[rows]
        return Tokens(self.x[rows], {b: cls[rows] for b, cls in self.taps.items()}, trace)

    def to(self, device: torch.device) -> Tokens:
        """Move to a device."""
        taps = {block: cls.to(device, non_blocking=True) for block, cls in self.taps.items()}
        trace = None if self.trace is None else self.trace.to(device)
        return Tokens(self.x.to(device, non_blocking=True), taps, trace)


@dataclass(frozen=True)
class Encoded:
    """Output of the backbone: what the heads get of an image."""

    cls: Tensor  # (n, d) CLS token after the last block and the final norm
    taps: dict[int, Tensor] = field(default_factory=dict)  # block -> CLS (n, d), same norm


@dataclass
class Recording:
    """Patch embedding and CLS attention of the latest images."""

    patches: Tensor = field(default_factory=lambda: torch.empty(0))  # (n, p, d), before the hooks
    kept: Tensor | None = None  # (n, blocks, heads, p) maps of the blocks that were not run
    scores: list[Tensor] = field(default_factory=list)  # of the others, before the softmax
    gradient: bool = False  # whether the maps of trained blocks pass one
    added: Tensor | None = None  # (m, d) output for the rows that were added to the images

    def begin(self, patches: Tensor, kept: Tensor | None = None) -> None:
        """Forget earlier images."""
        self.patches, self.kept, self.scores = patches, kept, []

    def note(self, scores: Tensor) -> None:
        """Keep the scores (n + m, heads, tokens) of the images' CLS tokens."""
        self.scores.append(scores[: len(self.patches)])

    @property
    def attention(self) -> Tensor:
        """CLS-to-patch attention (blocks, n, heads, p)."""
        found = [] if self.kept is None else [self.kept.transpose(0, 1)]
        if self.scores:  # all blocks in one softmax, which saves launches
            found.append(torch.stack(self.scores).softmax(-1)[..., -self.patches.shape[1] :])
        return found[0] if len(found) == 1 else torch.cat(found)


class Backbone(nn.Module):
    """Vision transformer with CLS token, frozen except for its last ``train_blocks`` blocks."""

    mean: Tensor
    std: Tensor
    _apart: Tensor

    def __init__(
        self,
        vit: VisionTransformer,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        image_size: int,
        train_blocks: int = 1,
    ) -> None:
        super().__init__()
        if not 0 <= train_blocks <= len(vit.blocks):
            raise ValueError(
                f"train_blocks is {train_blocks}, the backbone has {len(vit.blocks)} blocks"
            )
        self.vit = vit
        self.image_size = image_size
        self.dim: int = vit.embed_dim
        self.num_blocks = len(vit.blocks)
        self.num_heads: int = vit.blocks[0].attn.num_heads  # type: ignore[union-attr, assignment]
        self.num_frozen = self.num_blocks - train_blocks
        self.output_block = self.num_blocks
        self.tapped: set[int] = set()
        self._hooks: Sequence[TokenHook] = ()
        self._cls_hook: Callable[[Tensor], Tensor] | None = None
        self._add_hook: AddHook | None = None
        self._tap_hook: TapHook | None = None
        self._recording: Recording | None = None
        self.run_for_cls = run_for_cls  # or a compiled version of it
        self._cast: tuple[object, list[nn.Module]] = (None, [])
        self.group: ProcessGroup = SingleProcess()
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)
        apart = ~torch.eye(self.num_heads, dtype=torch.bool)[:, None]
        self.register_buffer("_apart", apart, persistent=False)
        vit.requires_grad_(False)
        for block in vit.blocks[self.num_frozen :]:
            block.requires_grad_(True)

    def tap(self, block: int) -> None:
        """Add the CLS token after a block, counted from 1, to ``Encoded.taps``."""
        if not 1 <= block <= self.num_blocks:
            raise ValueError(f"block {block} cannot be tapped: the blocks are 1..{self.num_blocks}")
        self.tapped.add(block)

    def read_from(self, block: int) -> None:
        """Use the CLS token after an earlier block as the output, in place of the last one's."""
        self.tap(block)
        self.output_block = block

    @contextlib.contextmanager
    def recording(self, *, gradient: bool = False) -> Iterator[Recording]:
        """Keep the patch embedding and the CLS attention of what is encoded in the context.

        With ``gradient``, what is made of the attention can teach the trained blocks.
        """
        outer, self._recording = self._recording, Recording(gradient=gradient)
        try:
            yield self._recording
        finally:
            self._recording = outer

    @contextlib.contextmanager
    def hooked(
        self,
        tokens: Sequence[TokenHook],
        cls: Callable[[Tensor], Tensor],
        add: AddHook | None = None,
    ) -> Iterator[None]:
        """Apply functions to the tokens after each block and to the CLS output, in the context.

        ``add`` makes further patch embeddings (m, p, d) of those of the images. They are encoded in
        the same pass, which takes half the launches of two; ``Recording.added`` is the output. With
        token hooks, which may mix all rows that they see, nothing is added.
        """
        self._hooks, self._cls_hook, self._add_hook = tokens, cls, None if tokens else add
        try:
            yield
        finally:
            self._hooks, self._cls_hook, self._add_hook = (), None, None

    @contextlib.contextmanager
    def when_tapped(self, hook: TapHook) -> Iterator[None]:
        """Call a function with a block and its tap (n, d) as soon as that is computed.

        A GPU then works on the later blocks while the CPU works on the tap. It is not called by a
        process that encodes only a share of the rows.
        """
        self._tap_hook = hook
        try:
            yield
        finally:
            self._tap_hook = None

    def _tapped(self, number: int, cls: Tensor) -> None:
        if self._tap_hook is not None and self.group.size == 1:
            with torch.enable_grad():
                self._tap_hook(number, cls)

    def normalise(self, images: Tensor) -> Tensor:
        """Normalise images with values in [0, 1] as the weights expect them."""
        return (images - self.mean) / self.std

    def patches(self, images: Tensor) -> Tensor:
        """Return the patch embedding (n, p, d), before CLS token and positions."""
        with torch.no_grad():
            return self.vit.patch_embed(self.normalise(images))

    def trunk(
        self, patches: Tensor, taps: Collection[int] | None = None, *, images: int | None = None
    ) -> Tokens:
        """Run the frozen blocks on a patch embedding; only mixed patches may need gradients.

        A recording takes in the first ``images`` rows, by default all.
        """
        tapped = self.tapped if taps is None else taps
        if len(patches) > (most := self._at_a_time(patches)):
            hook, self._tap_hook = self._tap_hook, None
            parts = [self.trunk(part, tapped) for part in patches.split(most)]
            taps_of = {b: torch.cat([part.taps[b] for part in parts]) for b in parts[0].taps}
            self._tap_hook = hook
            for number, cls in taps_of.items():
                self._tapped(number, cls)
            return Tokens(torch.cat([part.x for part in parts]), taps_of)
        if self._recording is not None:
            self._recording.begin(patches[:images])
        with torch.set_grad_enabled(patches.requires_grad and torch.is_grad_enabled()):
            x = self._embedded(self._apply_hooks(patches, 0))
            found: dict[int, Tensor] = {}
            for number, block in enumerate(self._frozen_blocks(), start=1):
                x = self._apply_hooks(self._run(block, x), number)
                if number in tapped:
                    found[number] = self.vit.norm(x[:, 0])
                    self._tapped(number, found[number][:images])
        return Tokens(x, found)

    def _frozen_blocks(self) -> Sequence[nn.Module]:
        """Return the frozen blocks; on CUDA under autocast copies whose weights are cast already.

        Autocast would cast weights that are not trained again in every forward pass.
        """
        blocks = list(self.vit.blocks[: self.num_frozen])
        device = self.mean.device
        if device.type != "cuda" or not torch.is_autocast_enabled("cuda"):
            return blocks
        dtype = torch.get_autocast_dtype("cuda")
        if self._cast[0] != (device, dtype):
            self._cast = (device, dtype), [_with_cast_weights(block, dtype) for block in blocks]
        return self._cast[1]

    def _at_a_time(self, patches: Tensor) -> int:
        """Return how many rows the trunk computes at once: on a CPU as many as fit its cache."""
        watched = self._recording is not None or self._hooks or patches.requires_grad
        if watched or patches.device.type != "cpu":
            return len(patches)
        return max(CPU_CACHE // (4 * max(patches[:1].nbytes, 1)), 1)  # 4: the widest layer

    def traced(self, patches: Tensor, taps: Collection[int] | None = None) -> Tokens:
        """Run the frozen blocks and keep the data of a recording."""
        with torch.no_grad(), self.recording() as recording:
            tokens = self.trunk(patches, taps)
        none = patches.new_empty(len(patches), 0, self.num_heads, patches.shape[1])
        maps = recording.attention.transpose(0, 1) if recording.scores else none
        return replace(tokens, trace=Trace(patches, maps))

    def _embedded(self, patches: Tensor) -> Tensor:
        """Return the input of the first block."""
        return self.vit.norm_pre(self.vit._pos_embed(patches))

    def tail(self, tokens: Tokens) -> Encoded:
        """Run the trained blocks; of the last one only the CLS token is computed."""
        x, taps = tokens.x, dict(tokens.taps)
        if self._recording is not None and tokens.trace is not None:
            self._recording.begin(tokens.trace.patches, tokens.trace.maps)
        for number in range(self.num_frozen + 1, self.num_blocks + 1):
            block = self.vit.blocks[number - 1]
            last = number == self.num_blocks and not self._hooks
            x = self._run(block, x, cls_only=last)
            x = x if last else self._apply_hooks(x, number)
            if number in self.tapped:
                taps[number] = self.vit.norm(x[:, 0])
        last = self.output_block == self.num_blocks
        cls = self.vit.norm(x[:, 0]) if last else taps[self.output_block]
        return Encoded(cls, taps)

    def forward(self, images: Tensor | Patches | Tokens) -> Encoded:
        """Encode images (n, 3, H, W) with values in [0, 1], or their precomputed state."""
        # token hooks may mix rows, so they must see all of them
        whole = self.group.size == 1 or self._hooks or not len(images)
        encoded = self._encode(images) if whole else self._encode_share(images)
        cls = encoded.cls if self._cls_hook is None else self._cls_hook(encoded.cls)
        return Encoded(cls, encoded.taps)

    def _encode(self, images: Tensor | Patches | Tokens) -> Encoded:
        if isinstance(images, Tensor):
            images = Patches(self.patches(images))
        added = None if self._add_hook is None else self._add_hook(_patches_of(images))
        return self._encode_with(images, added)

    def _encode_with(self, images: Patches | Tokens, added: Tensor | None) -> Encoded:
        """Encode images and the patches that are added to them."""
        if isinstance(images, Tokens):
            for block, cls in images.taps.items():
                self._tapped(block, cls)
        if added is None:
            return self.tail(self.trunk(images.x) if isinstance(images, Patches) else images)
        number, recording, hook = len(images), self._recording, self._tap_hook
        if isinstance(images, Patches) and not added.requires_grad:
            tokens = self.trunk(torch.cat([images.x, added]), images=number)
        else:
            first = self.trunk(images.x) if isinstance(images, Patches) else images
            self._recording, self._tap_hook = None, None
            second = self.trunk(added)
            self._recording, self._tap_hook = recording, hook
            taps = {b: torch.cat([cls, second.taps[b]]) for b, cls in first.taps.items()}
            tokens = Tokens(torch.cat([first.x, second.x]), taps, first.trace)
        encoded = self.tail(tokens)
        if recording is not None:
            recording.added = encoded.cls[number:]
        return Encoded(encoded.cls[:number], {b: cls[:number] for b, cls in encoded.taps.items()})

    def _encode_share(self, images: Tensor | Patches | Tokens) -> Encoded:
        """Encode this process's share of the rows and gather the shares of the others."""
        group, number, recording = self.group, len(images), self._recording
        added = None
        if self._add_hook is not None:  # rows are made of any others, so all embeddings are needed
            images = Patches(self.patches(images)) if isinstance(images, Tensor) else images
            added = self._add_hook(_patches_of(images))
        mine = images[self._share(number)]
        mine = Patches(self.patches(mine)) if isinstance(mine, Tensor) else mine
        part = None if added is None else added[self._share(len(added))]
        encoded = self._encode_with(mine, part)
        if recording is not None:
            if isinstance(images, Tensor):
                recording.patches = group.gather(recording.patches, number)
            else:
                recording.patches = _patches_of(images)
            recording.scores = [group.gather(scores, number) for scores in recording.scores]
            if recording.kept is not None and isinstance(images, Tokens):
                recording.kept = None if images.trace is None else images.trace.maps
            if recording.added is not None and added is not None:
                recording.added = group.gather(recording.added, len(added))
        taps = {block: group.gather(tap, number) for block, tap in encoded.taps.items()}
        return Encoded(group.gather(encoded.cls, number), taps)

    def _share(self, number: int) -> Tensor:
        return self.group.rows(number).to(self.mean.device, non_blocking=True)

    def attention(self, images: Tensor) -> Tensor:
        """Return the CLS-to-patch attention (blocks, n, heads, p) of every block."""
        return self.attend(self.patches(images))

    @torch.no_grad()
    def attend(self, patches: Tensor) -> Tensor:
        """Return the CLS-to-patch attention (blocks, n, heads, p) for a patch embedding."""
        with self.recording() as recording:
            self.tail(self.trunk(patches))
        return recording.attention

    def _run(self, block: Any, x: Tensor, *, cls_only: bool = False) -> Tensor:
        """Run a block, for the CLS token alone if that suffices, and record its CLS attention."""
        if (recording := self._recording) is None:
            return self.run_for_cls(block, x)[0] if cls_only else block(x)
        if is_plain(block):
            x, scores = (
                self.run_for_cls(block, x) if cls_only else run_with_scores(block, x, self._apart)
            )
        else:
            x, scores = (
                (block(x)[:, :1] if cls_only else block(x)),
                cls_scores(block, x, self._apart),
            )
        taught = recording.gradient and torch.is_grad_enabled()
        recording.note(scores if taught else scores.detach())
        return x

    def _apply_hooks(self, x: Tensor, number: int) -> Tensor:
        for hook in self._hooks:
            x = hook(x, number)
        return x


def _with_cast_weights(block: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy of a block with the weights of its linear layers in another type."""
    made = copy.deepcopy(block)
    for module in made.modules():
        if isinstance(module, nn.Linear):
            module.to(dtype)
    return made


def is_plain(block: Any) -> bool:
    """Return whether a block is timm's plain one, whose parts can be run one by one."""
    attn = getattr(block, "attn", None)
    return type(block) is Block and type(attn) is Attention and getattr(attn, "gate", None) is None


def run_for_cls(block: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return a block's output for the CLS token alone (n, 1, d), and its scores (n, heads, t).

    The softmax of the scores is the attention. A block that is not timm's plain one has none here.
    """
    if not is_plain(block):
        return block(x)[:, :1], x.new_empty(0, 0, 0)
    attn, normed = block.attn, block.norm1(x)
    linear = isinstance(attn.k_norm, nn.Identity)
    mixed, scores = _attended_by_factors(attn, normed) if linear else _attended(attn, normed)
    return _after_attention(block, x[:, :1], mixed), scores


def run_with_scores(block: Any, x: Tensor, apart: Tensor) -> tuple[Tensor, Tensor]:
    """Return a plain block's output (n, t, d) and its CLS scores (n, heads, t).

    ``apart`` (heads, 1, heads) is true off the diagonal.
    """
    attn = block.attn
    q, k, v = _projections(attn, block.norm1(x), "qkv")
    mixed = F.scaled_dot_product_attention(q, k, v, scale=attn.scale).transpose(1, 2).flatten(2)
    return _after_attention(block, x, mixed), _cls_scores(attn, q, k, apart)


def cls_scores(block: Any, x: Tensor, apart: Tensor) -> Tensor:
    """Return the CLS scores (n, heads, t) of a block that tokens x are about to enter."""
    x = block.norm1(x)
    (q,), (k,) = _projections(block.attn, x[:, :1], "q"), _projections(block.attn, x, "k")
    return _cls_scores(block.attn, q, k, apart)


def _cls_scores(attn: Any, q: Tensor, k: Tensor, apart: Tensor) -> Tensor:
    # All heads of an image in one product with a block-diagonal matrix: a product per head would
    # first copy the keys, which lie side by side.
    heads = q.shape[1]
    queries = q[:, :, 0, :, None].expand(-1, -1, -1, heads).masked_fill(apart, 0.0).flatten(1, 2)
    none = q.new_empty(1)  # is not read
    keys = k.transpose(1, 2).flatten(2)
    return torch.baddbmm(none, keys, queries, beta=0, alpha=attn.scale).transpose(1, 2)


def _after_attention(block: Any, x: Tensor, mixed: Tensor) -> Tensor:
    """Return a block's output for tokens x whose attention output is ``mixed``."""
    attn = block.attn
    if getattr(attn, "norm", None) is not None:
        mixed = attn.norm(mixed)
    y = x + block.drop_path1(block.ls1(attn.proj_drop(attn.proj(mixed))))
    return y + block.drop_path2(block.ls2(block.mlp(block.norm2(y))))


def _attended(attn: Any, normed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the attention output of the CLS token (n, 1, d) before its projection, and scores."""
    (q,) = _projections(attn, normed[:, :1], "q")
    k, v = _projections(attn, normed, "kv")
    mixed = F.scaled_dot_product_attention(q, k, v, scale=attn.scale)
    return mixed.transpose(1, 2).flatten(2), (q * attn.scale @ k.transpose(-2, -1))[:, :, 0]


def _attended_by_factors(attn: Any, normed: Tensor) -> tuple[Tensor, Tensor]:
    """Return the same without computing a key and a value of every token.

    The products are computed in another order: the query is multiplied by the keys' weights once
    and then by the tokens, and the values' weights are applied after the attention. The keys' bias
    adds the same number to all scores of a query, so it is left out.
    """
    (q,) = _projections(attn, normed[:, :1], "q")
    _, keys, values = attn.qkv.weight.unflatten(0, (3, attn.num_heads, -1))  # each (heads, e, d)
    asked = torch.einsum("nhe,hed->nhd", q[:, :, 0] * attn.scale, keys)
    scores = asked @ normed.transpose(1, 2)
    mixed = torch.einsum("nhd,hed->nhe", scores.softmax(-1) @ normed, values)
    if attn.qkv.bias is not None:
        mixed = mixed + attn.qkv.bias[-values.shape[0] * values.shape[1] :].view(values.shape[:2])
    return mixed.flatten(1)[:, None], scores


def _patches_of(images: Patches | Tokens) -> Tensor:
    """Return the patch embedding (n, p, d) of images."""
    if isinstance(images, Patches):
        return images.x
    assert images.trace is not None
    return images.trace.patches


def _projections(attn: Any, x: Tensor, names: str) -> list[Tensor]:
    """Return the projections in ``names``, a part of "qkv", each (n, heads, tokens, d/heads)."""
    width, first = attn.qkv.weight.shape[0] // 3, "qkv".index(names)
    rows = slice(first * width, (first + len(names)) * width)
    bias = attn.qkv.bias
    joint = F.linear(x, attn.qkv.weight[rows], None if bias is None else bias[rows])
    heads = joint.unflatten(-1, (len(names), attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    norms = {"q": attn.q_norm, "k": attn.k_norm}
    return [norms[name](t) if name in norms else t for name, t in zip(names, heads, strict=True)]
