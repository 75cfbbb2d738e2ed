"""A vision transformer whose last blocks are trained and whose trunk is frozen.

The trunk (patch embedding, positions and the blocks before the first one that is trained or
adapted) runs without autograd, and its output can be precomputed. In the blocks after it, only what
is used is computed: of the last one that is the CLS token alone, unless other tokens are needed.
Both shortcuts give the same numbers as the plain forward pass.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gcdbench.errors import UserError
from gcdbench.nn.adapters import PIXELS, Adapter, AddedRows
from gcdbench.nn.parallel import ProcessGroup, SingleProcess
from gcdbench.nn.tokens import (
    Encoded,
    Patches,
    Recording,
    Share,
    State,
    Tokens,
    Trace,
    first_of,
    join,
    size_of,
    stack,
)
from gcdbench.nn.transformer import transformer_of

TokenHook = Callable[[Tensor, int], Tensor]
AddHook = Callable[[Tensor], Tensor | None]
TapHook = Callable[[int, Tensor], None]
# how deep into the backbone a view may be precomputed; traced: tokens with the data of a recording
CacheDepth = Literal["images", "patches", "traced", "tokens"]
CPU_CACHE = 20 << 20  # bytes of the widest activations; 8 images of a ViT-B/16


class Backbone(nn.Module):
    """Vision transformer with CLS token, frozen except for its last ``train_blocks`` blocks."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        vit: Any,
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
        self.transformer = transformer_of(vit)
        self.image_size = image_size
        self.dim = self.transformer.dim
        self.num_blocks = self.transformer.num_blocks
        self.num_heads = self.transformer.num_heads
        self.num_prefix = self.transformer.num_prefix
        # blocks of the trunk: those before the first one that is trained or adapted
        self.num_frozen = self.num_blocks - train_blocks
        self.output_block = self.num_blocks
        self.tapped: set[int] = set()
        self.reads_patches = False  # whether ``Encoded.patches`` is computed
        self.final_norm = True  # whether the outputs pass the final norm
        self.adapters = nn.ModuleList()
        self._hooks: Sequence[TokenHook] = ()
        self._cls_hook: Callable[[Tensor], Tensor] | None = None
        self._add_hook: AddHook | None = None
        self._tap_hook: TapHook | None = None
        self._recording: Recording | None = None
        self._cast: tuple[object, list[nn.Module]] = (None, [])
        self.group: ProcessGroup = SingleProcess()
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)
        vit.requires_grad_(False)
        for block in vit.blocks[self.num_frozen :]:
            block.requires_grad_(True)
        self._pretrained = [p for p in vit.parameters() if not p.requires_grad]

    def __deepcopy__(self, memo: dict[int, Any]) -> Backbone:
        """Return a copy that shares the trunk, which nobody changes, with the original."""
        blocks = self.vit.blocks
        trunk = [m for name, m in self.vit.named_children() if name != "blocks"]
        trunk += list(blocks[: self.num_frozen])
        shared = [*trunk, *self.vit._parameters.values(), self.group]
        memo.update({id(one): one for one in shared if one is not None})
        for module in trunk:  # tensors that are held elsewhere as well
            memo.update({id(p): p for p in module.parameters()})
        made = type(self).__new__(type(self))
        memo[id(self)] = made
        state = {**self.__dict__, "_cast": (None, []), "_hooks": (), "_cls_hook": None}
        state |= {"_recording": None, "_add_hook": None, "_tap_hook": None}
        made.__dict__ = copy.deepcopy(state, memo)
        return made

    def untouched(self) -> list[Tensor]:
        """Return the pretrained tensors that training leaves alone; checkpoints need not hold them.

        They are the parameters that were frozen when the backbone was built and still are, and the
        buffers of the pretrained model.
        """
        return [*(p for p in self._pretrained if not p.requires_grad), *self.vit.buffers()]

    def tap(self, block: int) -> None:
        """Add the CLS token after a block, counted from 1, to ``Encoded.taps``."""
        if not 1 <= block <= self.num_blocks:
            raise ValueError(f"block {block} cannot be tapped: the blocks are 1..{self.num_blocks}")
        self.tapped.add(block)

    def read_from(self, block: int) -> None:
        """Use the CLS token after an earlier block as the output, in place of the last one's."""
        self.tap(block)
        self.output_block = block

    def adapt(self, adapter: Adapter) -> None:
        """Add an adapter; what comes after its depth is no longer precomputed."""
        if not PIXELS <= adapter.depth < self.num_blocks:
            raise ValueError(
                f"{type(adapter).__name__}: depth is {adapter.depth}, expected PIXELS (-1) or the "
                f"number of blocks before it, 0..{self.num_blocks - 1}"
            )
        adapter.attach(self.vit)
        self.adapters.append(adapter)
        self.num_frozen = min(self.num_frozen, max(adapter.depth, 0))

    @property
    def adapts_pixels(self) -> bool:
        """Whether an adapter changes the images."""
        return any(one.depth == PIXELS for one in self.adapters)

    @contextlib.contextmanager
    def without(self, *adapters: Adapter) -> Iterator[None]:
        """Encode without some adapters in the context; without all of them if none is named."""
        resting = adapters or tuple(self._active())
        before = [one.active for one in resting]
        for one in resting:
            one.active = False
        try:
            yield
        finally:
            for one, active in zip(resting, before, strict=True):
                one.active = active

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

        A GPU then works on the later blocks while the CPU works on the tap. It is not called for
        blocks after the trunk, nor by a process that encodes only a share of the rows.
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
        acting = [one for one in self._active() if one.depth == PIXELS]
        if not acting:
            with torch.no_grad():
                return self.transformer.embed(self.normalise(images))
        x = self.normalise(images)
        for adapter in acting:
            x = adapter.images(x)
        return self.transformer.embed(x)

    def trunk(
        self, patches: Tensor, taps: Collection[int] | None = None, *, images: int | None = None
    ) -> Tokens:
        """Run the frozen blocks on a patch embedding; only changed patches may need gradients.

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
            x = self.transformer.start(self._apply_hooks(patches, 0))
            rotation = self.transformer.rotation(x)
            found: dict[int, Tensor] = {}
            for number, block in enumerate(self._frozen_blocks(), start=1):
                x = self._apply_hooks(self._run(number, block, x, rotation), number)
                if number in tapped:
                    found[number] = self.transformer.norm(x[:, 0])
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

    def tail(self, tokens: Tokens) -> Encoded:
        """Run the blocks after the trunk; of the last one only the rows that are read."""
        x, taps = tokens.x, dict(tokens.taps)
        if self._recording is not None and tokens.trace is not None:
            self._recording.begin(tokens.trace.patches, tokens.trace.maps)
        transformer, added = self.transformer, AddedRows(self._active(), self.num_prefix)
        rotation = transformer.rotation(x) if self.num_frozen < self.num_blocks else None
        for number in range(self.num_frozen + 1, self.num_blocks + 1):
            block = self.vit.blocks[number - 1]
            x = added.enter(x, number)
            cut = number == self.num_blocks and not (self._hooks or self.reads_patches)
            if cut:
                rows = self.num_prefix + added.number if added.number else 1
                x = self._run(number, block, x, rotation, added.number, rows)
            else:
                x = self._run(number, block, x, rotation, added.number)
                x = self._apply_hooks(x, number, added)
            if number in self.tapped:
                taps[number] = transformer.norm(x[:, 0])
        norm = transformer.norm if self.final_norm else nn.Identity()
        last = self.output_block == self.num_blocks
        cls = norm(x[:, 0]) if last else taps[self.output_block]
        first = self.num_prefix + added.number
        patches = norm(x[:, first:]) if self.reads_patches else None
        return Encoded(cls, taps, patches, norm(added.of(x)) if added.number else None)

    def forward(self, images: State | tuple[State, ...]) -> Encoded:
        """Encode images (n, 3, H, W) with values in [0, 1], or their precomputed state.

        Of a tuple, one entry per view, neighbours of the same size are encoded together.
        """
        if isinstance(images, tuple):
            runs = [list(run) for _, run in groupby(images, key=size_of)]
            if len(runs) > 1 and (self._recording is not None or self._add_hook is not None):
                raise UserError("a technique blends patches, but the views are of several sizes")
            encoded = join([self._encode_rows(stack(run)) for run in runs])
        else:
            encoded = self._encode_rows(images)
        cls = encoded.cls if self._cls_hook is None else self._cls_hook(encoded.cls)
        return replace(encoded, cls=cls)

    def _encode_rows(self, images: State) -> Encoded:
        # token hooks may mix rows, so they must see all of them
        if self.group.size == 1 or self._hooks or not len(images):
            return self._encode(images.fetch() if isinstance(images, Share) else images)
        return self._encode_share(images)

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
        return first_of(encoded, number)

    def _encode_share(self, images: State) -> Encoded:
        """Encode this process's share of the rows and gather the features of the others."""
        recording, added = self._recording, None
        if self._add_hook is not None:  # rows are made of any others, so all embeddings are needed
            images = images.fetch() if isinstance(images, Share) else images
            images = Patches(self.patches(images)) if isinstance(images, Tensor) else images
            added = self._add_hook(_patches_of(images))
        if isinstance(images, Share):
            mine, whole = images.mine, partial(self._gather_places, images.places)
        else:
            mine = images[self._share(len(images))]
            whole = partial(self.group.gather, number=len(images))
        mine = Patches(self.patches(mine)) if isinstance(mine, Tensor) else mine
        part = None if added is None else added[self._share(len(added))]
        encoded = self._encode_with(mine, part)
        if recording is not None:
            self._gather_recording(recording, images, whole)
            if recording.added is not None and added is not None:
                recording.added = self.group.gather(recording.added, len(added))
        taps = {block: whole(tap) for block, tap in encoded.taps.items()}
        patches, tokens = (
            None if part is None else whole(part) for part in (encoded.patches, encoded.added)
        )
        return Encoded(whole(encoded.cls), taps, patches, tokens)

    def _gather_places(self, places: Tensor, part: Tensor) -> Tensor:
        return self.group.gather(part, self.group.size * len(part))[places]

    def _gather_recording(
        self, recording: Recording, images: State, whole: Callable[[Tensor], Tensor]
    ) -> None:
        """Complete a recording of this process's share; embeddings only if they are asked for."""
        if isinstance(images, Tensor | Share):
            recording.gather = whole
        else:
            recording.found = _patches_of(images)
        if isinstance(images, Tokens) and images.trace is not None:
            recording.kept = images.trace.maps
        recording.scores = [whole(scores) for scores in recording.scores]

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

    def _run(
        self,
        number: int,
        block: Any,
        x: Tensor,
        rotation: Any,
        extra: int = 0,
        rows: int | None = None,
    ) -> Tensor:
        """Run a block, for its first rows alone if ``rows`` suffice, and record its attention."""
        given = (number, block, x, rotation, extra)
        if (recording := self._recording) is None:
            if rows is None:
                return self.transformer.run(*given)
            return self.transformer.first(number, block, x, rows, rotation, extra)[0]
        if rows is None:
            x, scores = self.transformer.run_scored(*given)
        else:
            x, scores = self.transformer.first(number, block, x, rows, rotation, extra)
        taught = recording.gradient and torch.is_grad_enabled()
        recording.note(scores if taught else scores.detach())
        return x

    def _apply_hooks(self, x: Tensor, number: int, added: AddedRows | None = None) -> Tensor:
        if not self._hooks:
            return x
        mine = None if added is None or not added.number else added.of(x)
        if mine is not None and added is not None:  # hooks see the tokens of the pretrained model
            x = added.replaced(x, x[:, :0])
        for hook in self._hooks:
            x = hook(x, number)
        if mine is not None:
            x = torch.cat([x[:, : self.num_prefix], mine, x[:, self.num_prefix :]], dim=1)
        return x

    def _active(self) -> list[Adapter]:
        return [one for one in self.adapters if one.active]  # type: ignore[misc]


def _patches_of(images: Patches | Tokens) -> Tensor:
    """Return the patch embedding (n, p, d) of images."""
    if isinstance(images, Patches):
        return images.x
    assert images.trace is not None
    return images.trace.patches


def _with_cast_weights(block: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy of a block with the weights of its linear layers in another type."""
    made = copy.deepcopy(block)
    for module in made.modules():
        if isinstance(module, nn.Linear):
            module.to(dtype)
    return made


__all__ = [
    "AddHook",
    "Backbone",
    "CacheDepth",
    "Encoded",
    "Patches",
    "Recording",
    "State",
    "TokenHook",
    "Tokens",
    "Trace",
]
