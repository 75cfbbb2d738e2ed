"""Frozen features of views: computed once, then shared by all epochs, methods and seeds.

The trunk of a backbone is not trained, so what it makes of a fixed view never changes.
``TokenStore`` keeps it per image. The evaluator uses it for the centre crops, ``BankedLoader`` for
a few pre-drawn training views per image (``train.view_bank``): then a training step costs the
trained blocks only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gcdbench.data.loader import Loader
from gcdbench.method import Batch, seeded
from gcdbench.nn.backbone import Backbone, Level, Patches, Tokens

CHUNK = 256
CPU_CHUNK = 64  # activations of so few images stay in a CPU's cache: half the time per image


class TokenStore:
    """Packed features by image, one shelf per kind of view; what does not fit is not kept."""

    def __init__(self, budget: int = 4 << 30) -> None:
        self.budget = budget
        self._shelves: dict[Any, dict[str, Tensor]] = {}

    def shelf(self, key: Any) -> dict[str, Tensor]:
        """Return the features of one kind of view, by image id."""
        return self._shelves.setdefault(key, {})

    def has_room(self, number: int, one: Tensor) -> bool:
        """Tell whether ``number`` more features like ``one`` fit into the budget."""
        kept = sum(
            len(shelf) * next(iter(shelf.values())).nbytes
            for shelf in self._shelves.values()
            if shelf
        )
        return kept + number * one.nbytes <= self.budget


@torch.no_grad()
def pack(backbone: Backbone, images: Tensor, level: Level) -> Tensor:
    """Compute images up to a level and return it as one tensor (n, rows, d).

    Behind the tokens stand the CLS taps of all frozen blocks, so that methods which tap different
    blocks can share what is kept.
    """
    if images.device.type == "cpu" and len(images) > CPU_CHUNK:
        return torch.cat([pack(backbone, part, level) for part in images.split(CPU_CHUNK)])
    patches = backbone.patches(images)
    if level == "patches":
        return patches
    tokens = backbone.trunk(patches, taps=range(1, backbone.num_frozen + 1))
    return torch.cat([tokens.x, *(cls[:, None] for cls in tokens.taps.values())], dim=1)


def unpack(backbone: Backbone, packed: Tensor, level: Level) -> Patches | Tokens:
    """Undo ``pack``, with the taps that were asked for."""
    if level == "patches":
        return Patches(packed)
    length = packed.shape[1] - backbone.num_frozen
    frozen = [block for block in sorted(backbone.tapped) if block <= backbone.num_frozen]
    return Tokens(packed[:, :length], {b: packed[:, length + b - 1] for b in frozen})


class BankedLoader:
    """A loader whose batches hold pre-drawn views as frozen features.

    Every image has ``number`` views, drawn once and the same for all methods and seeds; a batch
    takes two different ones of each image.
    """

    def __init__(
        self,
        loader: Loader,
        backbone: Backbone,
        level: Level,
        number: int,
        store: TokenStore,
        trunk_key: Any,
        device: torch.device,
    ) -> None:
        self.loader = loader
        self.backbone = backbone
        self.level = level
        self.number = number
        self.labels = loader.labels
        self.steps_per_epoch = loader.steps_per_epoch
        self.ids = [loader.images.images.ids[row] for row in loader.pool]
        self.shelf = store.shelf(("bank", trunk_key, level, number))
        self._fill(device)

    def _fill(self, device: torch.device) -> None:
        """Compute the views of the images that are not on the shelf yet."""
        missing = [i for i, name in enumerate(self.ids) if name not in self.shelf]
        per_request = max(CHUNK // self.number, 1)
        parts = [missing[i : i + per_request] for i in range(0, len(missing), per_request)]
        requests = [(self.loader.pool[part], self._views_of(part)) for part in parts]
        served = self.loader.serve(requests)
        bar = tqdm(parts, desc="view bank", unit="chunk", disable=None, leave=False)
        for part, images in zip(bar, served, strict=True):
            packed = pack(self.backbone, images.to(device).float() / 255, self.level)
            by_image = packed.unflatten(0, (self.number, -1)).transpose(0, 1).cpu().half()
            for position, features in zip(part, by_image, strict=True):
                self.shelf[self.ids[position]] = features

    def _views_of(self, positions: list[int]) -> np.ndarray:
        """Return the fixed draws (V, b, 3) of images, a function of the image's name alone."""
        draws = [
            torch.rand(self.number, 3, generator=seeded("view bank", self.ids[i]))
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
            names = [self.ids[position] for position in i.tolist()]
            stack = torch.stack(
                [
                    self.shelf[name][view]
                    for one_view in views.tolist()
                    for name, view in zip(names, one_view, strict=True)
                ]
            ).float()
            yield Batch(unpack(self.backbone, stack, self.level), self.labels[i], i)
