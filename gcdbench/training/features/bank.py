"""Training batches whose views were drawn and encoded up to the trunk's end in advance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gcdbench.nn.backbone import Backbone, CacheDepth, Patches, Tokens
from gcdbench.ops.random import seeded
from gcdbench.training.batch import Batch
from gcdbench.training.features.store import CHUNK, FeatureRequest, FeatureStore, digest, stamps
from gcdbench.training.features.trunk import autocast, pack, packed_shape, unpack, unpack_trace
from gcdbench.training.loader import Loader


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
        return self.loader.images.views.augment, digest(*self.ids), trunk_key

    def _compute(self, depth: CacheDepth, chunks: Sequence[int]) -> Iterator[Tensor]:
        """Yield the views of chunks of images."""
        parts = [self._parts[chunk].tolist() for chunk in chunks]
        served = self.loader.serve([(self.loader.pool[p], self._views_of(p)) for p in parts])
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
        numbers = self.loader.numbers
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
