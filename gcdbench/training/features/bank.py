"""Training batches whose views were drawn and encoded up to the trunk's end in advance."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from gcdbench.data.views import Views
from gcdbench.data.views.kinds import get_kind
from gcdbench.nn.backbone import Backbone, CacheDepth, Patches, Tokens
from gcdbench.nn.tokens import Share
from gcdbench.ops.random import seeded
from gcdbench.training.batch import Batch, as_views
from gcdbench.training.features.store import CHUNK, FeatureRequest, FeatureStore, digest, stamps
from gcdbench.training.features.trunk import autocast, pack, packed_shape, unpack, unpack_trace
from gcdbench.training.loader import Loader, Request


class BankedLoader:
    """A loader whose batches hold pre-drawn views as frozen features.

    Every image has ``number`` views of each kind, or as many as a batch needs, drawn once and the
    same for all methods and seeds; a batch takes different ones of each image.
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
        self.labels = loader.labels
        self.steps_per_epoch = loader.steps_per_epoch
        self.kinds = loader.kinds
        self.group = backbone.group
        # deeper hooks need the rows of all processes
        self.shared = self.group.size > 1 and depth == "tokens"
        self.banks = {
            kind: _Bank(
                *(loader, backbone, depth, max(number, self.kinds.count(kind)), store, trunk_key),
                *(device, mixed, kind),
            )
            for kind in dict.fromkeys(self.kinds)
        }

    def epoch(self, epoch: int, weights: Tensor) -> Iterator[Batch]:
        """Yield the batches of an epoch; the images are those of the plain loader."""
        index, draws = self.loader.draws(epoch, weights)
        chosen = torch.empty(draws.shape[:3], dtype=torch.long)  # (steps, V, B)
        for kind, bank in self.banks.items():
            places = [place for place, other in enumerate(self.kinds) if other == kind]
            chosen[:, places] = different(draws[:, places, :, 0], bank.number)
        for i, views in zip(index, chosen, strict=True):
            yield Batch(self._views(i, views), self.labels[i], i)

    def _views(self, images: Tensor, chosen: Tensor) -> Patches | Tokens | Share | tuple:
        if len(self.banks) == 1:
            bank, rows, views = self.banks[self.kinds[0]], images.repeat(len(chosen)), chosen
            if not self.shared:
                return bank.at(rows, views.flatten())
            mine = self.group.rows(len(rows))
            part = bank.at(rows[mine], views.flatten()[mine])
            return Share(part, torch.arange(len(rows)), lambda: bank.at(rows, views.flatten()))
        return as_views(  # type: ignore[return-value]
            [self.banks[kind].at(images, c) for kind, c in zip(self.kinds, chosen, strict=True)]
        )


def different(draws: Tensor, number: int) -> Tensor:
    """Return for numbers in [0, 1) (n, V, B) which of ``number`` views to take, all different.

    >>> different(torch.tensor([[[0.9], [0.6], [0.0]]]), 4).flatten().tolist()
    [3, 1, 0]
    """
    first = (draws[:, 0] * number).long()
    taken = torch.zeros(*first.shape, number, dtype=torch.bool).scatter_(-1, first[..., None], True)
    found, cyclic = [first], (first[..., None] + 1 + torch.arange(number)) % number
    for place in range(1, draws.shape[1]):
        rank = (draws[:, place] * (number - place)).long()
        if place == 1:
            found.append((first + 1 + rank) % number)
        else:  # the view of that rank among those that are left, in cyclic order after the first
            free = ~taken.gather(-1, cyclic)
            at = (free.cumsum(-1) <= rank[..., None]).sum(-1, keepdim=True)
            found.append(cyclic.gather(-1, at)[..., 0])
        taken.scatter_(-1, found[-1][..., None], True)
    return torch.stack(found, dim=1)


class _Bank:
    """The pre-drawn views of one kind of all images."""

    def __init__(
        self,
        loader: Loader,
        backbone: Backbone,
        depth: CacheDepth,
        number: int,
        store: FeatureStore,
        trunk_key: str,
        device: torch.device,
        mixed: torch.dtype | None,
        kind: str,
    ) -> None:
        self.loader = loader
        self.backbone = backbone
        self.depth = depth
        self.number = number
        self.device = device
        self.mixed = mixed
        self.kind = kind
        self.ids = [loader.images.images.ids[row] for row in loader.pool]
        self._parts = torch.arange(len(self.ids)).split(max(CHUNK // number, 1))
        self.views = self._keep(store, trunk_key, "tokens" if depth == "traced" else depth)
        self.traces = self._keep(store, trunk_key, "traced") if depth == "traced" else None

    def _keep(self, store: FeatureStore, trunk_key: str, depth: CacheDepth) -> Tensor:
        """Return all views at a depth (n, V, rows, d)."""
        loader, side = self.loader, self.loader.images.views.side(self.kind)
        recipe = recipe_of(self.kind, loader.images.views)
        request = FeatureRequest(
            title=f"{self.number} views of {len(self.ids):,} training images",
            key=("bank", depth, str(self.number), recipe, digest(*self.ids), trunk_key),
            sizes=tuple(map(len, self._parts)),
            shape=(self.number, *packed_shape(self.backbone, self.device, depth, side)),
            dtype=torch.float16,
            compute=partial(self._compute, depth),
            stamps=lambda: stamps(loader.images.images, loader.pool),
            complete=lambda: not loader.unreadable,
            shared=True,
        )
        return store.get(request, whole=True)

    def _compute(self, depth: CacheDepth, chunks: Sequence[int]) -> Iterator[Tensor]:
        """Yield the views of chunks of images."""
        parts = [self._parts[chunk].tolist() for chunk in chunks]
        kinds = (self.kind,) * self.number
        asked = [Request(self.loader.pool[p], self._views_of(p), kinds) for p in parts]
        for images in tqdm(
            self.loader.serve(asked),
            desc="features of the training images, computed once",
            total=len(parts),
            unit="batch",
            disable=None,
            leave=False,
        ):
            pixels = images.to(self.device, non_blocking=True).float() / 255
            with autocast(self.device, self.mixed):
                packed = pack(self.backbone, pixels, depth)
            yield packed.unflatten(0, (self.number, -1)).transpose(0, 1).cpu().half()

    def _views_of(self, positions: list[int]) -> np.ndarray:
        """Return the fixed draws (V, b, numbers) of images, which depend on the image's id only."""
        numbers = self.loader.images.views.numbers(self.kind)
        purpose = ("view bank",) if self.kind == "plain" else ("view bank", self.kind)
        draws = [
            torch.rand(self.number, numbers, generator=seeded(*purpose, self.ids[i]))
            for i in positions
        ]
        return torch.stack(draws, dim=1).numpy()

    def at(self, images: Tensor, views: Tensor) -> Patches | Tokens:
        """Return some views of some images."""
        shallow: CacheDepth = "patches" if self.depth == "patches" else "tokens"
        found = unpack(self.backbone, self.views[images, views].float(), shallow)
        if self.traces is None or isinstance(found, Patches):
            return found
        patches = found.x.shape[1] - self.backbone.num_prefix
        trace = unpack_trace(self.backbone, self.traces[images, views].float(), patches)
        return replace(found, trace=trace)


def recipe_of(kind: str, views: Views) -> str:
    """Return what determines the pixels of a kind's views; a plug-in's own by its file."""
    if kind == "plain":
        return views.plain_recipe
    file = inspect.getsourcefile(inspect.unwrap(get_kind(kind).make)) or ""
    code = digest(Path(file).read_text(encoding="utf-8")) if file else ""
    return f"{kind} {views.side(kind)} {views.augment} {sorted(views.changes)} {code}"
