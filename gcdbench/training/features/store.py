"""Frozen features of views: computed once, then shared by all epochs, methods and seeds.

The trunk of a backbone is not trained, so its output for a fixed view never changes.
``FeatureStore`` keeps it, in memory or on disk, under a key of the weights and modules that compute
it (``Trunk``). ``PoolEncoder`` uses it for the centre crops, ``BankedLoader`` for a few pre-drawn
training views per image (``train.view_bank``): a training step then runs the other blocks only.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gcdbench.data.images import Images, Unreadable

CHUNK = 256
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
    shared: bool = False  # whether all processes of a group ask for the same list, together

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
    """Stores features per list of images; of a list that does not fit, the first chunks.

    ``shared`` stores what all processes of a group ask for, ``disk`` the rest.
    """

    def __init__(
        self, budget: int = 4 << 30, disk: Disk | None = None, shared: Disk | None = None
    ) -> None:
        self.budget = budget
        self.disk = disk
        self.shared = shared
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
        disk = self.shared if request.shared else self.disk
        if disk is not None:
            kept = disk.get(request, at_least=total if whole else max(here, 1))
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
