"""Load rows of a problem as batches of views.

All random numbers (which images, which crops, which flips) are drawn in the main process from a
generator of the seed and the epoch. So batches do not depend on the number of workers, and a
resumed run sees the same ones as an uninterrupted run.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gcdbench.data.images import Images, Unreadable
from gcdbench.data.problem import Problem
from gcdbench.data.views import Frames, Views
from gcdbench.errors import UserError
from gcdbench.training.method import Batch, seeded

MEMORY_BUDGET = 1 << 30  # bytes: resized images are kept in memory if all of them fit
MOST_WORKERS = 16  # by default: a worker reads thousands of stored images a second
BLANK = 127  # grey level of an image that cannot be read
log = logging.getLogger(__name__)

Stacked = Tensor | tuple[Tensor, ...]  # (V*b, 3, H, W), or per view if they are of several sizes
Failure = tuple[int, str, str]  # position in the request, place of the image, reason
Answer = tuple[Stacked | Frames, list[Failure]]


class LocalError(RuntimeError):
    """An error in one process only; it must stop the group, because the others wait for it."""


class Request(NamedTuple):
    """What a process that loads images is asked for."""

    rows: np.ndarray  # (b,)
    draws: np.ndarray | None = None  # (V, b, numbers); None: the centre crops
    kinds: tuple[str, ...] | None = None  # of the V views; None: all of them plain
    packed: bool = False  # whether the answer is the resized images, for views made on a device


class Resized(Dataset):
    """Resized images by row; for a batch of rows it returns stacked views as bytes."""

    def __init__(self, images: Images, views: Views, *, sharers: int = 1) -> None:
        self.images = images
        self.views = views
        fits = self.fits(images, views, sharers)
        self._kept: dict[int, np.ndarray] | None = {} if fits else None

    @staticmethod
    def fits(images: Images, views: Views, sharers: int) -> bool:
        """Return whether all resized images can be kept in the memory of each process."""
        return len(images) * 3 * views.resized**2 <= MEMORY_BUDGET / sharers

    def read(self, row: int) -> np.ndarray:
        """Return one resized image (h, w, 3)."""
        if self._kept is None:
            return self.images.resized(row, self.views.resized)
        if row not in self._kept:
            self._kept[row] = self.images.resized(row, self.views.resized)
        return self._kept[row]

    def __getitem__(self, request: Request) -> Answer:
        rows, draws, kinds, packed = request
        images, failures = [], []
        for position, row in enumerate(rows.tolist()):
            try:
                images.append(self.read(row))
            except Unreadable as error:
                failures.append((position, error.place, error.reason))
                side = self.views.resized
                images.append(np.full((side, side, 3), BLANK, dtype=np.uint8))
        if packed:
            return Frames.pack(images), failures
        if draws is None:
            return _stacked([self.views.test(image) for image in images]), failures
        kinds = kinds or ("plain",) * len(draws)
        views = [
            [self.views.train(image, u, kind) for image, u in zip(images, draw, strict=True)]
            for kind, draw in zip(kinds, draws, strict=True)
        ]
        if len({self.views.side(kind) for kind in kinds}) > 1:
            return tuple(map(_stacked, views)), failures
        return _stacked(list(chain.from_iterable(views))), failures


def _stacked(views: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(views)).permute(0, 3, 1, 2)


class Loader:
    """Serves training batches and evaluation sweeps of one problem.

    An image that cannot be read is logged once; in training another one of the batch replaces it,
    in evaluation it is a grey square. ``strict`` makes it an error, ``shared`` one of this process
    alone, because others load the other images. ``cache`` is a folder for resized images (0.3 MB
    each at 256 pixels), by default that of GCDBENCH_CACHE.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        size: int,
        batch_size: int,
        kinds: tuple[str, ...] = ("plain", "plain"),
        patch: int = 16,
        device: torch.device | None = None,
        seed: int = 0,
        workers: int | None = 0,
        draws_per_epoch: int | None = None,
        strict: bool = False,
        shared: bool = False,
        cache: Path | None = None,
    ) -> None:
        self.pool = problem.pool
        self.labels = torch.from_numpy(problem.visible_labels)
        self.batch_size = min(batch_size, len(self.pool))
        self.kinds = kinds
        self.seed = seed
        self.device = device
        self.on_device = device is not None and device.type == "cuda"
        self.strict = strict
        self.shared = shared
        self.steps_per_epoch = max((draws_per_epoch or len(self.pool)) // self.batch_size, 1)
        images, folder = problem.images, cache or os.environ.get("GCDBENCH_CACHE")
        if folder:
            images = images.stored(Path(folder))
        views = Views(size, problem.augment, problem.changes, patch)
        self.on_device = self.on_device and views.on_device(*kinds)
        if workers is None:
            few = Resized.fits(images, views, sharers=1)
            workers = 0 if device is None or few else default_workers(device)
        self.workers = workers
        self.images = Resized(images, views, sharers=max(workers, 1))
        if self.on_device and not folder and not Resized.fits(images, views, sharers=1):
            log.info(
                "%s: images are decoded at every use; with GCDBENCH_CACHE=DIR they are kept "
                "resized, in about %.0f GB",
                *(problem.name, len(images) * 4 * views.resized**2 / 1e9 + 0.5),
            )
        self.unreadable: dict[str, str] = {}  # place -> reason
        self._queue = _Queue()
        self._service: DataLoader | None = None

    @property
    def numbers(self) -> int:
        """Number of random numbers that a training view needs."""
        return self.images.views.numbers(*self.kinds)

    def draws(self, epoch: int, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Draw an epoch: pool positions (steps, B), numbers in [0, 1) (steps, V, B, numbers)."""
        generator = seeded(self.seed, "batches", epoch)
        drawn = draw(weights, self.steps_per_epoch * self.batch_size, generator)
        shape = (self.steps_per_epoch, len(self.kinds), self.batch_size, self.numbers)
        crops = torch.rand(shape, generator=generator)
        return drawn.view(self.steps_per_epoch, self.batch_size), crops

    def epoch(self, epoch: int, weights: Tensor) -> Iterator[Batch]:
        """Yield the batches of an epoch: images drawn with replacement by their weights."""
        index, crops = self.draws(epoch, weights)
        requests = [
            Request(self.pool[i], u, self.kinds)
            for i, u in zip(index.numpy(), crops.numpy(), strict=True)
        ]
        for i, (views, failures) in zip(index, self.views(requests), strict=True):
            if failures:
                rows = substitutes(len(i), [position for position, *_ in failures])
                views, i = take(views, rows), i[rows]
            # of several sizes they are a tuple (b, 3, h, w) per view
            yield Batch(views, self.labels[i], i)

    def views(self, requests: Sequence[Request]) -> Iterator[tuple[Stacked, list[Failure]]]:
        """Yield the views (V, b, 3, H, W) of each request, and its unreadable images.

        Those of several sizes are a tuple. Of a loader for CUDA they are on the device, if all
        kinds of views can be made there.
        """
        asked = [request._replace(packed=self.on_device) for request in requests]
        for request, (answer, failures) in zip(requests, self.answer(asked), strict=True):
            if isinstance(answer, Frames):
                yield self._made(answer, request), failures
            else:
                yield by_view(answer, len(self.kinds)), failures

    def _made(self, frames: Frames, request: Request) -> Stacked:
        """Return the views of frames, made on the loader's device."""
        assert request.draws is not None
        assert self.device is not None
        kinds = request.kinds or ("plain",) * len(request.draws)
        views = self.images.views.train_all(frames.to(self.device), request.draws, kinds)
        sizes = {view.shape[-1] for view in views}
        return torch.stack(views) if len(sizes) == 1 else tuple(views)

    def sweep(self, rows: np.ndarray, batch_size: int = 256) -> Iterator[Tensor]:
        """Yield centre crops (b, 3, H, W) of the given rows, in order, as bytes."""
        cuts = range(batch_size, len(rows), batch_size)
        yield from self.serve([Request(part) for part in np.split(rows, cuts)])

    def serve(self, requests: Sequence[Request]) -> Iterator[Tensor]:
        """Yield the views (V*b, 3, H, W) of each request, which are of one size."""
        for views, _ in self.answer(requests):
            assert isinstance(views, Tensor)
            yield views

    def answer(self, requests: Sequence[Request]) -> Iterator[Answer]:
        """Yield the stacked views of each request or its frames, and its unreadable images."""
        if self._queue.busy:  # persistent workers cannot serve two lists at the same time
            yield from self._answers(self._start(requests))
            return
        if self._service is None:
            self._service = self._start(self._queue, persistent=self.workers > 0)
        with self._queue.holding(requests):
            yield from self._answers(self._service)

    def _start(self, requests: Any, *, persistent: bool = False) -> DataLoader:
        return DataLoader(
            self.images,
            sampler=requests,
            batch_size=None,
            num_workers=self.workers,
            persistent_workers=persistent,
            collate_fn=_as_it_is,
            pin_memory=self.device is not None and self.device.type == "cuda",
            generator=seeded(self.seed, "workers"),
        )

    def _answers(self, service: DataLoader) -> Iterator[Answer]:
        for views, failures in service:
            for _, place, reason in failures:
                if self.strict:
                    error = Unreadable(place, reason)
                    raise LocalError(str(error)) if self.shared else error
                if place not in self.unreadable:
                    self.unreadable[place] = reason
                    log.warning("%s: cannot be read and is passed over (%s)", place, reason)
            yield views, failures


class _Queue:
    """The list of requests that the persistent workers serve next."""

    def __init__(self) -> None:
        self.requests: Sequence[Request] = ()
        self.busy = False

    @contextmanager
    def holding(self, requests: Sequence[Request]) -> Iterator[None]:
        """Hold a list while it is served."""
        self.requests, self.busy = requests, True
        try:
            yield
        finally:
            self.requests, self.busy = (), False

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)

    def __len__(self) -> int:
        return len(self.requests)


def _as_it_is(answer: Any) -> Any:
    return answer


def default_workers(device: torch.device) -> int:
    """Return how many processes load images for a process that trains on a device.

    On CUDA the cores are shared by the GPUs. On a CPU the training takes them all.
    """
    if device.type != "cuda":
        return 0
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(max((cores or 1) // max(torch.cuda.device_count(), 1), 1), MOST_WORKERS)


def by_view(stacked: Stacked, number: int) -> Stacked:
    """Return stacked views as (V, b, 3, H, W); those of several sizes are a tuple already."""
    return stacked.unflatten(0, (number, -1)) if isinstance(stacked, Tensor) else stacked


def take(views: Stacked, rows: Tensor) -> Stacked:
    """Return some of the images of all views."""
    if isinstance(views, Tensor):
        return views[:, rows]
    return tuple(view[rows] for view in views)


def substitutes(number: int, unreadable: list[int]) -> Tensor:
    """Return for each position the next one, cyclically, that can be read.

    >>> substitutes(4, [1, 3])
    tensor([0, 2, 2, 0])
    """
    bad = set(unreadable)
    if len(bad) == number:
        raise UserError(f"none of the {number} images of a batch can be read")
    good = np.array([i for i in range(number) if i not in bad])
    return torch.from_numpy(good[np.searchsorted(good, np.arange(number)) % len(good)])


def draw(weights: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Draw positions with replacement, with probability proportional to their weights."""
    return torch.multinomial(weights, number, replacement=True, generator=generator)
