"""Features of all images of a problem under the current weights, and what methods ask of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcdbench.data.problem import Problem
from gcdbench.nn.backbone import Backbone, Encoded, State
from gcdbench.ops.labels import UNLABELLED
from gcdbench.ops.random import seeded
from gcdbench.training.features.store import CHUNK, FeatureRequest, FeatureStore, digest, stamps
from gcdbench.training.features.trunk import autocast, pack, packed_shape, unpack
from gcdbench.training.loader import Loader, Request
from gcdbench.training.method import FitContext, PoolFeatures


class PoolEncoder:
    """Computes features of all images of a problem with the current weights, once per change.

    ``trunk_key`` returns the key under which a backbone's frozen features are kept; ``precision``
    is that of the frozen features, whether they are kept or not, and ``mixed`` the type in which
    matrix products are made. ``encode`` turns images, or their frozen features, into features: the
    method's own way, or the backbone if there is no method yet.
    """

    def __init__(
        self,
        problem: Problem,
        loader: Loader,
        backbone: Backbone,
        device: torch.device,
        store: FeatureStore,
        trunk_key: Callable[[Backbone], str],
        precision: str = "float32",
        mixed: torch.dtype | None = None,
        encode: Callable[[State], Encoded] | None = None,
        reads_images: bool = False,
    ) -> None:
        self.loader = loader
        self.backbone = backbone
        self.encode = backbone if encode is None else encode
        self.reads_images = reads_images
        self.device = device
        self.mixed = mixed
        self.store = store
        evaluated = [s.rows for s in problem.sets.values()]
        self.rows = np.unique(np.concatenate([problem.pool, *evaluated]))
        self.query_rows = np.unique(np.concatenate(evaluated))
        self._parts = np.split(self.rows, range(CHUNK, len(self.rows), CHUNK))
        images = problem.images
        self.trunk_key = trunk_key
        self._request = FeatureRequest(
            title=f"{len(self.rows):,} evaluation images of {problem.name}",
            key=("centre crop", precision, digest(*(images.ids[r] for r in self.rows))),
            sizes=tuple(map(len, self._parts)),
            shape=packed_shape(backbone, device, "tokens"),
            dtype=getattr(torch, precision),
            compute=self._compute,
            stamps=lambda: stamps(images, self.rows),
            complete=lambda: not loader.unreadable,
        )
        self._positions = {
            "labelled": self._find(problem.labelled),
            "unlabelled": self._find(problem.unlabelled),
            "queries": self._find(self.query_rows),
        }
        labels = torch.full((len(self.rows),), UNLABELLED)
        labels[self._positions["labelled"]] = torch.from_numpy(problem.labels[problem.labelled])
        self._labels = labels.to(device)
        self.sets = tuple(self._find(one) for one in evaluated)
        self._features: PoolFeatures | None = None

    @property
    def request(self) -> FeatureRequest:
        """The request to the feature store, with the key of the backbone as it is now."""
        key = (*self._request.key, self.trunk_key(self.backbone))
        return replace(self._request, key=key)

    def forget(self) -> None:
        """Drop the features: the weights have changed."""
        self._features = None

    @torch.no_grad()
    def compute_features(self) -> PoolFeatures:
        """Return the features computed with the current weights."""
        if self._features is None:
            encoded = list(self._encode(range(len(self._parts))))
            taps = {
                block: torch.cat([e.taps[block] for e in encoded])
                for block in sorted(encoded[0].taps)
            }
            positions: Any = {k: v.to(self.device) for k, v in self._positions.items()}
            features = torch.cat([e.cls for e in encoded])
            self._features = PoolFeatures(features, taps, self._labels, **positions)
        return self._features

    @torch.no_grad()
    def compute_unlabelled(self) -> Tensor:
        """Return the features of the unlabelled training images under the current weights.

        Chunks without any of them are passed over; a chunk is computed whole, as for all images.
        """
        if self._features is not None:
            return self._features.features[self._features.unlabelled]
        wanted = self._positions["unlabelled"]
        chunks = (wanted // CHUNK).unique()
        if not len(chunks):
            return self.compute_features().features[:0]
        features = torch.cat([e.cls for e in self._encode(chunks.tolist())])
        starts = torch.cumsum(torch.tensor([len(self._parts[c]) for c in chunks]), 0)
        before = torch.cat([starts.new_zeros(1), starts[:-1]])
        rows = before[torch.searchsorted(chunks, wanted // CHUNK)] + wanted % CHUNK
        return features[rows.to(self.device, non_blocking=True)]

    @torch.no_grad()
    def compute_views(self, kind: str, number: int, *purpose: object) -> Tensor:
        """Return features (number, n, d) of fresh views of the training images, in their order."""
        loader, generator = self.loader, seeded(self.loader.seed, "sweep", kind, *purpose)
        numbers, kinds = loader.images.views.numbers(kind), (kind,) * number
        parts = np.split(loader.pool, range(CHUNK, len(loader.pool), CHUNK))
        draws = [torch.rand(number, len(p), numbers, generator=generator).numpy() for p in parts]
        asked = [Request(part, draw, kinds) for part, draw in zip(parts, draws, strict=True)]
        found = [
            self._through(images.to(self.device, non_blocking=True).float() / 255).cls
            for images in loader.serve(asked)
        ]
        return torch.cat([part.unflatten(0, (number, -1)) for part in found], dim=1)

    def _encode(self, chunks: Sequence[int]) -> Iterator[Encoded]:
        """Yield what heads see of chunks of images, from the store as far as it holds them."""
        if self.reads_images:
            yield from map(self._through, self._pixels(chunks))
            return
        request = self.request
        kept = self.store.get(request)
        there = sum(end <= len(kept) for end in request.ends)
        held = (kept[CHUNK * c : CHUNK * (c + 1)] for c in chunks if c < there)
        rest = self._packed([c for c in chunks if c >= there])
        for packed in itertools.chain(held, rest):
            tokens = packed.to(self.device, non_blocking=True).float()
            yield self._through(unpack(self.backbone, tokens, "tokens"))

    def _through(self, images: State) -> Encoded:
        with autocast(self.device, self.mixed):
            return self.encode(images)

    def _compute(self, chunks: Sequence[int]) -> Iterator[Tensor]:
        """Yield the packed features of chunks of images, to be kept."""
        return (packed.cpu() for packed in self._packed(chunks))

    def _packed(self, chunks: Sequence[int]) -> Iterator[Tensor]:
        """Yield the packed features of chunks of images, on the device that computes them."""
        for pixels in self._pixels(chunks):
            with autocast(self.device, self.mixed):
                packed = pack(self.backbone, pixels, "tokens")
            yield packed.to(self._request.dtype)

    def _pixels(self, chunks: Sequence[int]) -> Iterator[Tensor]:
        """Yield the centre crops of chunks of images."""
        for images in self.loader.serve([Request(self._parts[chunk]) for chunk in chunks]):
            yield images.to(self.device, non_blocking=True).float() / 255

    def _find(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.searchsorted(self.rows, rows))


def make_fit_context(encoder: PoolEncoder, seed: int) -> FitContext:
    """Return the context of a method's hooks outside of its step."""

    def generator(*purpose: object) -> torch.Generator:
        return seeded(seed, *purpose)

    sweeps = (encoder.compute_unlabelled, encoder.compute_views)
    return FitContext(encoder.compute_features, generator, *sweeps)
