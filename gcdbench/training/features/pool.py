"""Features of all images of a problem under the current weights, and what methods ask of them."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcdbench.data.problem import Problem
from gcdbench.nn.backbone import Backbone, Encoded, State
from gcdbench.nn.parallel import ProcessGroup
from gcdbench.ops.kmeans.rows import Rows
from gcdbench.ops.labels import UNLABELLED
from gcdbench.ops.random import seeded
from gcdbench.training.features.store import CHUNK, FeatureRequest, FeatureStore, digest, stamps
from gcdbench.training.features.trunk import autocast, pack, packed_shape, unpack
from gcdbench.training.loader import Loader, Request
from gcdbench.training.method import FitContext, PoolFeatures

MOST = 4 << 30  # bytes of features of a sweep that are kept in memory as float32


class PoolEncoder:
    """Computes features of all images of a problem with the current weights, once per change.

    ``trunk_key`` returns the key under which a backbone's frozen features are kept; ``precision``
    is that of the frozen features, whether they are kept or not, ``features`` that of the computed
    ones (see ``eval_features`` of TrainConfig), and ``mixed`` the type in which matrix products are
    made. ``encode`` turns images, or their frozen features, into features: the
    method's own way, or the backbone if there is no method yet. Of a process group, each process
    computes and keeps some chunks of images, and gets the features of the others.
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
        features: str = "auto",
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
        group = backbone.group
        self._own = range(group.rank, len(self._parts), group.size)
        parts = [self._parts[chunk] for chunk in self._own]
        rows = np.concatenate([self.rows[:0], *parts])
        images = problem.images
        self.trunk_key = trunk_key
        self._request = FeatureRequest(
            title=f"{len(rows):,} evaluation images of {problem.name}",
            key=("centre crop", precision, digest(*(images.ids[r] for r in rows))),
            sizes=tuple(map(len, parts)),
            shape=packed_shape(backbone, device, "tokens"),
            dtype=getattr(torch, precision),
            compute=self._compute,
            stamps=lambda: stamps(images, rows),
            complete=lambda: not loader.unreadable,
        )
        self._positions = {
            "labelled": self.find(problem.labelled),
            "unlabelled": self.find(problem.unlabelled),
            "queries": self.find(self.query_rows),
        }
        labels = torch.full((len(self.rows),), UNLABELLED)
        labels[self._positions["labelled"]] = torch.from_numpy(problem.labels[problem.labelled])
        self._labels = labels.to(device)
        self.sets = tuple(self.find(one) for one in evaluated)
        self._features: PoolFeatures | None = None
        many = features == "auto" and 4 * len(self.rows) * backbone.dim > MOST
        self.mapped = many or features == "float16"

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
            features, taps = self._sweep(range(len(self._parts)))
            positions: Any = {k: v.to(self.device) for k, v in self._positions.items()}
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
        features, _ = self._sweep(chunks.tolist())
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
        split = SplitRows(self.backbone.group, range(len(parts)), list(map(len, parts)))
        with self.backbone.group.alone():
            found = [
                self._through(images.to(self.device, non_blocking=True).float() / 255).cls
                for images in loader.serve([asked[chunk] for chunk in split.mine])
            ]
            mine = torch.cat([part.unflatten(0, (number, -1)) for part in found], dim=1)
        return split.gather(mine.transpose(0, 1)).transpose(0, 1)

    def _sweep(self, chunks: Sequence[int]) -> tuple[Tensor, dict[int, Tensor]]:
        """Return the features of chunks of images and their taps."""
        split = SplitRows(self.backbone.group, chunks, [len(self._parts[c]) for c in chunks])
        rows = sum(len(self._parts[chunk]) for chunk in split.mine)
        kept: dict[int, Kept] = {}
        with self.backbone.group.alone():
            for encoded in self._encode(split.mine):
                for block, part in {0: encoded.cls, **encoded.taps}.items():
                    kept.setdefault(block, Kept(rows, mapped=self.mapped)).add(part)
        found: Any = {block: split.gather(kept[block].whole()) for block in sorted(kept)}
        if self.mapped:
            found = {block: Rows(part, device=self.device) for block, part in found.items()}
        return found.pop(0), found

    def _encode(self, chunks: Sequence[int]) -> Iterator[Encoded]:
        """Yield what heads see of chunks of images, from the store as far as it holds them."""
        if self.reads_images:
            yield from map(self._through, self._pixels(chunks))
            return
        request = self.request
        kept = self.store.get(request)
        own = self._own[: sum(end <= len(kept) for end in request.ends)]
        first = {chunk: CHUNK * place for place, chunk in enumerate(own)}
        held = (kept[first[c] : first[c] + CHUNK] for c in chunks if c in first)
        rest = self._packed([c for c in chunks if c not in first])
        for packed in itertools.chain(held, rest):
            tokens = packed.to(self.device, non_blocking=True).float()
            yield self._through(unpack(self.backbone, tokens, "tokens"))

    def _through(self, images: State) -> Encoded:
        with autocast(self.device, self.mixed):
            return self.encode(images)

    def _compute(self, places: Sequence[int]) -> Iterator[Tensor]:
        """Yield the packed features of this process's chunks of images, to be kept."""
        return (packed.cpu() for packed in self._packed([self._own[place] for place in places]))

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

    def find(self, rows: np.ndarray) -> Tensor:
        """Return where images are among those of ``compute_features``."""
        return torch.from_numpy(np.searchsorted(self.rows, rows))


class Kept:
    """Rows as they are computed: in memory, or in half precision in a temporary file."""

    def __init__(self, rows: int, *, mapped: bool) -> None:
        self.rows = rows
        self.mapped = mapped
        self._parts: list[Tensor] = []
        self._file: Tensor | None = None
        self._done = 0

    def add(self, part: Tensor) -> None:
        """Keep the next rows (n, d)."""
        if not self.mapped:
            self._parts.append(part)
            return
        if self._file is None:
            with tempfile.TemporaryFile() as file:  # it lives as long as it is mapped
                array = np.memmap(file, np.float16, "w+", shape=(self.rows, part.shape[1]))
            self._file = torch.from_numpy(array)
        self._file[self._done : self._done + len(part)] = part.half().cpu()
        self._done += len(part)

    def whole(self) -> Tensor:
        """Return all rows."""
        return torch.cat(self._parts) if self._file is None else self._file


class SplitRows:
    """Chunks of rows that the processes of a group compute in turn, each of them whole.

    A chunk has the same features in a group as in a single process: their last bits depend on which
    images are computed together.
    """

    def __init__(self, group: ProcessGroup, chunks: Sequence[int], sizes: Sequence[int]) -> None:
        self.group = group
        rows: list[int] = [0] * group.size  # of each process so far
        starts = []
        for chunk, size in zip(chunks, sizes, strict=True):
            owner = chunk % group.size
            starts.append((owner, rows[owner]))
            rows[owner] += size
        self.most = max(rows)
        # a process without any computes the first one, so that its features have a shape
        self.mine = [c for c in chunks if c % group.size == group.rank] or list(chunks[:1])
        self.places = torch.cat(
            [
                torch.arange(size) + owner * self.most + start
                for (owner, start), size in zip(starts, sizes, strict=True)
            ]
        )

    def gather(self, mine: Tensor) -> Tensor:
        """Return the rows of all chunks in order, from the rows of this process's chunks."""
        if self.group.size == 1:
            return mine
        filled = mine.new_zeros(self.most, *mine.shape[1:])
        filled[: len(mine)] = mine[: self.most]
        whole = self.group.gather(filled, self.group.size * self.most)
        return whole[self.places.to(mine.device)]


def make_fit_context(encoder: PoolEncoder, seed: int) -> FitContext:
    """Return the context of a method's hooks outside of its step."""

    def generator(*purpose: object) -> torch.Generator:
        return seeded(seed, *purpose)

    sweeps = (encoder.compute_unlabelled, encoder.compute_views)
    return FitContext(encoder.compute_features, generator, *sweeps)
