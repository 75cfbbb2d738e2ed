"""Frozen features of views: computed once, then shared by all epochs, methods and seeds.

The trunk of a backbone is not trained, so its output for a fixed view never changes.
``FeatureStore`` keeps it, in memory or on disk, under a key of the weights and modules that compute
it (``Trunk``). The evaluator uses it for the centre crops, ``BankedLoader`` for a few pre-drawn
training views per image (``train.view_bank``): a training step then runs the trained blocks only.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from math import prod
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from gcdbench.data.images import Images, Unreadable
from gcdbench.nn.backbone import Backbone, CacheDepth, Patches, Tokens, Trace
from gcdbench.ops.random import seeded
from gcdbench.training.loader import Loader, Request
from gcdbench.training.method import Batch

CHUNK = 256
CPU_CHUNK = 64  # few enough that activations stay in a CPU's cache, which halves the time
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FeatureRequest:
    """Features of a list of images, to be computed in chunks.

    Their last bits depend on which images are computed together, so a chunk always consists of the
    same images, in every process.
    """

    title: str  # for messages
    key: tuple[str, ...]  # everything that can change the features, except for the pixels
    sizes: tuple[int, ...]  # images in each chunk
    shape: tuple[int, ...]  # of one image's features
    dtype: torch.dtype
    compute: Callable[[Sequence[int]], Iterator[Tensor]]  # chunks by their numbers, in order
    stamps: Callable[[], str]  # a hash that changes when the pixels do
    complete: Callable[[], bool] = lambda: True  # whether all images could be read so far

    @property
    def ends(self) -> list[int]:
        """Number of images up to the end of each chunk."""
        return list(accumulate(self.sizes))

    @property
    def bytes_per_image(self) -> int:
        """Size of one image's features."""
        return prod(self.shape) * self.dtype.itemsize

    def fitting(self, room: int) -> int:
        """Return how many of the first chunks fit into a number of bytes."""
        return sum(end * self.bytes_per_image <= room for end in self.ends)


class Disk(Protocol):
    """Stores features for other processes as well."""

    def get(self, request: FeatureRequest, *, at_least: int) -> Tensor | None:
        """Return the features of the first chunks that fit; None if fewer than ``at_least``."""


class FeatureStore:
    """Stores features per list of images; of a list that does not fit, the first chunks."""

    def __init__(self, budget: int = 4 << 30, disk: Disk | None = None) -> None:
        self.budget = budget
        self.disk = disk
        self._kept: dict[tuple[str, ...], Tensor] = {}
        self._in_memory: dict[tuple[str, ...], int] = {}  # bytes
        self._old: set[tuple[str, ...]] = set()

    def retire(self) -> None:
        """Mark the features in memory as old: they are dropped when others need the space."""
        self._old = set(self._kept)

    def get(self, request: FeatureRequest, *, whole: bool = False) -> Tensor:
        """Return the features of the first chunks that fit, on disk if as many fit there.

        ``whole`` requires all of them, in memory if necessary.
        """
        self._old.discard(request.key)
        if request.key not in self._kept:
            self._kept[request.key] = self._compute(request, whole=whole)
        return self._kept[request.key]

    def _fitting(self, request: FeatureRequest) -> int:
        return request.fitting(self.budget - sum(self._in_memory.values()))

    def _compute(self, request: FeatureRequest, *, whole: bool) -> Tensor:
        total = len(request.sizes)
        if self._fitting(request) < total:
            for key in self._old:
                del self._kept[key]
                self._in_memory.pop(key, None)
            self._old = set()
        here = self._fitting(request)
        if self.disk is not None:
            kept = self.disk.get(request, at_least=total if whole else max(here, 1))
            if kept is not None:
                return kept
        elif here < total and not whole:
            log.info(
                "frozen features of %s do not fit into memory and are computed at every use; "
                "--cache-gb %.0f would keep them on disk",
                *(request.title, request.ends[-1] * request.bytes_per_image / 1e9 + 0.5),
            )
        here = total if whole else here
        number = request.ends[here - 1] if here else 0
        features = torch.empty((number, *request.shape), dtype=request.dtype)
        for end, chunk in zip(request.ends[:here], request.compute(range(here)), strict=True):
            features[end - len(chunk) : end] = chunk
        self._in_memory[request.key] = features.nbytes
        return features


class Trunk:
    """The frozen part of a backbone as it was loaded; detects whether a method has changed it.

    Features of an unchanged trunk are shared by all cells. A method that changes weights or modules
    below the trained blocks gets features of its own, kept under ``owner``, the cell's key. With
    ``mixed`` matrix products are made in that type, as in training.
    """

    def __init__(
        self,
        backbone: Backbone,
        device: torch.device,
        owner: str,
        mixed: torch.dtype | None = None,
    ) -> None:
        self.device = device
        self.owner = owner
        self.mixed = mixed
        self.loaded = backbone
        self.digest = self._digest(backbone)

    def key(self, backbone: Backbone) -> str:
        """Return the key of features that this backbone computes now."""
        now = self._digest(backbone)
        if backbone is self.loaded and now == self.digest:
            return self.digest
        return digest(self.owner, now)

    def _digest(self, backbone: Backbone) -> str:
        found = trunk_digest(backbone, self.device)
        return found if self.mixed is None else digest(found, self.mixed)


def autocast(device: torch.device, mixed: torch.dtype | None) -> torch.autocast:
    """Return the context in which matrix products are made in a type, or as they are."""
    return torch.autocast(device.type, mixed, enabled=mixed is not None)


def trunk_digest(backbone: Backbone, device: torch.device) -> str:
    """Return a hash of everything that determines the trunk's output for given pixels."""
    found = hashlib.sha256()
    trained = tuple(f"vit.blocks.{n}" for n in range(backbone.num_frozen, backbone.num_blocks))
    for name, module in backbone.named_modules():
        if not f"{name}.".startswith(tuple(f"{block}." for block in trained)):
            found.update(f"{name} {_description(module)}\n".encode())
            own = [*module._parameters.items(), *module._buffers.items()]
            for tensor_name, tensor in own:
                if tensor is not None:
                    found.update(f"{tensor_name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                    found.update(_bytes(tensor))
    if device.type == "cuda":
        machine = f"{torch.cuda.get_device_name(device)} {torch.version.cuda}"
    else:
        machine = f"{torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()}"
    facts = (backbone.num_frozen, backbone.image_size, machine, torch.__version__)
    return digest(found.hexdigest(), *facts)


def _description(module: nn.Module) -> str:
    """Return a description of a module's computation, except for its tensors."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    replaced = {name: _name(value) for name, value in vars(module).items() if callable(value)}
    return f"{_name(type(module))} {module.extra_repr()} {list(map(_name, hooks))} {replaced}"


def _name(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


def _bytes(tensor: Tensor) -> Any:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


def weights_digest(backbone: Backbone) -> str:
    """Return a hash of a backbone's weights as they are now."""
    found = hashlib.sha256()
    for name, value in backbone.vit.state_dict().items():
        found.update(name.encode())
        found.update(value.cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


@torch.no_grad()
def pack(backbone: Backbone, images: Tensor, depth: CacheDepth) -> Tensor:
    """Return the state of images at a depth as one tensor (n, rows, d).

    The CLS taps of all frozen blocks follow the tokens, so that methods which tap different blocks
    can share stored features. Of traced images, only the data of a recording is packed.
    """
    if images.device.type == "cpu" and len(images) > CPU_CHUNK:
        return torch.cat([pack(backbone, part, depth) for part in images.split(CPU_CHUNK)])
    patches = backbone.patches(images)
    if depth == "patches":
        return patches
    if depth == "traced":
        trace = backbone.traced(patches).trace
        assert trace is not None
        return pack_trace(trace)
    tokens = backbone.trunk(patches, taps=range(1, backbone.num_frozen + 1))
    return torch.cat([tokens.x, *(cls[:, None] for cls in tokens.taps.values())], dim=1)


def packed_shape(backbone: Backbone, device: torch.device, depth: CacheDepth) -> tuple[int, ...]:
    """Return the shape of one packed image."""
    side = backbone.image_size
    return tuple(pack(backbone, torch.zeros(1, 3, side, side, device=device), depth).shape[1:])


def unpack(backbone: Backbone, packed: Tensor, depth: CacheDepth) -> Patches | Tokens:
    """Undo ``pack``, with the requested taps."""
    if depth == "patches":
        return Patches(packed)
    length = packed.shape[1] - backbone.num_frozen
    frozen = [block for block in sorted(backbone.tapped) if block <= backbone.num_frozen]
    return Tokens(packed[:, :length], {b: packed[:, length + b - 1] for b in frozen})


def pack_trace(trace: Trace) -> Tensor:
    """Return patches and attention as one tensor (n, rows, d), the attention in separate rows."""
    n, _, d = trace.patches.shape
    flat = trace.maps.flatten(1)
    filled = F.pad(flat, (0, -flat.shape[1] % d)).view(n, -1, d)
    return torch.cat([trace.patches, filled], dim=1)


def unpack_trace(backbone: Backbone, packed: Tensor, patches: int) -> Trace:
    """Undo ``pack_trace``; ``patches`` is the number of patches in an image."""
    shape = (backbone.num_frozen, backbone.num_heads, patches)
    flat = packed[:, patches:].flatten(1)[:, : prod(shape)]
    return Trace(packed[:, :patches], flat.unflatten(1, shape))


def digest(*words: object) -> str:
    """Return a hash of some words."""
    return hashlib.sha256("\0".join(map(str, words)).encode()).hexdigest()


def stamps(images: Images, rows: np.ndarray) -> str:
    """Return a hash that changes when the files of some images do."""

    def stamp(row: int) -> str:
        try:
            return images.stamp(row)
        except Unreadable:
            return "unreadable"

    return digest(*map(stamp, rows.tolist()))


class BankedLoader:
    """A loader whose batches hold pre-drawn views as frozen features.

    Every image has ``number`` views, drawn once and the same for all methods and seeds; a batch
    takes two different ones of each image.
    """

    def __init__(
        self,
        loader: Loader,
        backbone: Backbone,
        depth: CacheDepth,
        number: int,
        store: FeatureStore,
        trunk_key: str,
        device: torch.device,
        mixed: torch.dtype | None = None,
    ) -> None:
        self.loader = loader
        self.backbone = backbone
        self.depth = depth
        self.number = number
        self.device = device
        self.mixed = mixed
        self.labels = loader.labels
        self.steps_per_epoch = loader.steps_per_epoch
        self.ids = [loader.images.images.ids[row] for row in loader.pool]
        self._parts = torch.arange(len(self.ids)).split(max(CHUNK // number, 1))
        self.views = self._keep(store, trunk_key, "tokens" if depth == "traced" else depth)
        self.traces = self._keep(store, trunk_key, "traced") if depth == "traced" else None

    def _keep(self, store: FeatureStore, trunk_key: str, depth: CacheDepth) -> Tensor:
        """Return all views at a depth (n, V, rows, d)."""
        loader = self.loader
        request = FeatureRequest(
            title=f"{self.number} views of {len(self.ids):,} training images",
            key=("bank", depth, str(self.number), *self._origin(trunk_key)),
            sizes=tuple(map(len, self._parts)),
            shape=(self.number, *packed_shape(self.backbone, self.device, depth)),
            dtype=torch.float16,
            compute=partial(self._compute, depth),
            stamps=lambda: stamps(loader.images.images, loader.pool),
            complete=lambda: not loader.unreadable,
        )
        return store.get(request, whole=True)

    def _origin(self, trunk_key: str) -> tuple[str, ...]:
        return self.loader.images.views.plain_recipe, digest(*self.ids), trunk_key

    def _compute(self, depth: CacheDepth, chunks: Sequence[int]) -> Iterator[Tensor]:
        """Yield the views of chunks of images."""
        parts = [self._parts[chunk].tolist() for chunk in chunks]
        served = self.loader.serve([Request(self.loader.pool[p], self._views_of(p)) for p in parts])
        for images in tqdm(
            served,
            desc="frozen features of the training images",
            total=len(parts),
            unit="part",
            disable=None,
            leave=False,
        ):
            pixels = images.to(self.device, non_blocking=True).float() / 255
            with autocast(self.device, self.mixed):
                packed = pack(self.backbone, pixels, depth)
            yield packed.unflatten(0, (self.number, -1)).transpose(0, 1).cpu().half()

    def _views_of(self, positions: list[int]) -> np.ndarray:
        """Return the fixed draws (V, b, numbers) of images, which depend on the image's id only."""
        numbers = self.loader.images.views.numbers("plain")
        draws = [
            torch.rand(self.number, numbers, generator=seeded("view bank", self.ids[i]))
            for i in positions
        ]
        return torch.stack(draws, dim=1).numpy()

    def epoch(self, epoch: int, weights: Tensor) -> Iterator[Batch]:
        """Yield the batches of an epoch; the images are those of the plain loader."""
        index, draws = self.loader.draws(epoch, weights)
        first = (draws[:, 0, :, 0] * self.number).long()
        step = 1 + (draws[:, 1, :, 0] * (self.number - 1)).long()
        chosen = torch.stack([first, (first + step) % self.number], dim=1)  # (steps, 2, B)
        for i, views in zip(index, chosen, strict=True):
            yield Batch(self._at(i.repeat(2), views.flatten()), self.labels[i], i)

    def _at(self, images: Tensor, views: Tensor) -> Patches | Tokens:
        shallow: CacheDepth = "patches" if self.depth == "patches" else "tokens"
        found = unpack(self.backbone, self.views[images, views].float(), shallow)
        if self.traces is None or isinstance(found, Patches):
            return found
        patches = found.x.shape[1] - self.backbone.vit.num_prefix_tokens
        trace = unpack_trace(self.backbone, self.traces[images, views].float(), patches)
        return replace(found, trace=trace)
