"""The frozen trunk of a backbone: whether it was changed, and its output as one tensor."""

from __future__ import annotations

import hashlib
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gcdbench.nn.backbone import Backbone, CacheDepth, Patches, Tokens, Trace
from gcdbench.training.features.store import digest

CPU_CHUNK = 64  # few enough that activations stay in a CPU's cache, which halves the time


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
        self.parts = trunk_parts(backbone)
        self.digest = self._digest(self.parts, backbone)

    def key(self, backbone: Backbone) -> str:
        """Return the key of features that this backbone computes now."""
        parts = trunk_parts(backbone)
        found = self._digest(parts, backbone)
        return digest(self.owner, found) if self._differs(backbone, parts) else found

    def is_changed(self, backbone: Backbone) -> bool:
        """Return whether weights or modules of the trunk are not those that were loaded.

        An adapter shortens the trunk; what is left of it is unchanged.
        """
        return self._differs(backbone, trunk_parts(backbone))

    def _differs(self, backbone: Backbone, parts: list[str]) -> bool:
        return backbone is not self.loaded or parts != self.parts[: len(parts)]

    def _digest(self, parts: list[str], backbone: Backbone) -> str:
        found = _digest_of(parts, backbone, self.device)
        return found if self.mixed is None else digest(found, self.mixed)


def autocast(device: torch.device, mixed: torch.dtype | None) -> torch.autocast:
    """Return the context in which matrix products are made in a type, or as they are."""
    return torch.autocast(device.type, mixed, enabled=mixed is not None)


def trunk_digest(backbone: Backbone, device: torch.device) -> str:
    """Return a hash of everything that determines the trunk's output for given pixels."""
    return _digest_of(trunk_parts(backbone), backbone, device)


def _digest_of(parts: list[str], backbone: Backbone, device: torch.device) -> str:
    if device.type == "cuda":
        machine = f"{torch.cuda.get_device_name(device)} {torch.version.cuda}"
    else:
        machine = f"{torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()}"
    facts = (backbone.num_frozen, backbone.image_size, machine, torch.__version__)
    return digest(*parts, *facts)


def trunk_parts(backbone: Backbone) -> list[str]:
    """Return hashes of modules and weights: of all but the blocks, then of each frozen block."""
    found = [hashlib.sha256() for _ in range(1 + backbone.num_frozen)]
    for name, module in backbone.named_modules():
        words = name.split(".")
        number = int(words[2]) if words[:2] == ["vit", "blocks"] and len(words) > 2 else -1
        if number >= backbone.num_frozen or words[0] == "adapters":
            continue
        part = found[number + 1]
        part.update(f"{name} {_description(module)}\n".encode())
        for tensor_name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None:
                part.update(f"{tensor_name} {tensor.dtype} {tuple(tensor.shape)}".encode())
                part.update(_bytes(tensor))
    return [part.hexdigest() for part in found]


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


def packed_shape(
    backbone: Backbone, device: torch.device, depth: CacheDepth, side: int | None = None
) -> tuple[int, ...]:
    """Return the shape of one packed image, or of a view with another side."""
    side = backbone.image_size if side is None else side
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
