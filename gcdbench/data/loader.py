"""From rows of a problem to batches of views.

All random numbers (which images, which crops, which flips) are drawn in the main process from a
generator of the seed and the epoch. So batches do not depend on the number of workers, and a
resumed run sees the same ones as an uninterrupted run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gcdbench.data.images import Images, resize_shorter
from gcdbench.data.problem import Problem
from gcdbench.method import Batch, seeded

CROP_SHARE = 0.875  # side of the crop against the shorter side of the resized image: 224 / 256
MEMORY_BUDGET = 1 << 30  # resized images are kept in memory if all of them fit into these bytes


@dataclass(frozen=True)
class Views:
    """How an image becomes a square of ``size`` pixels: resize, crop, flip."""

    size: int

    @property
    def resized(self) -> int:
        """Shorter side before the crop."""
        return int(self.size / CROP_SHARE)

    def test(self, image: np.ndarray) -> np.ndarray:
        """Return the centre crop of a resized image."""
        top, left = (round((side - self.size) / 2.0) for side in image.shape[:2])
        return image[top : top + self.size, left : left + self.size]

    def train(self, image: np.ndarray, draw: Sequence[float]) -> np.ndarray:
        """Return a random crop, perhaps flipped; ``draw`` holds three numbers from [0, 1)."""
        height, width = image.shape[:2]
        top = int(draw[0] * (height - self.size + 1))
        left = int(draw[1] * (width - self.size + 1))
        crop = image[top : top + self.size, left : left + self.size]
        return crop[:, ::-1] if draw[2] < 0.5 else crop


class Resized(Dataset):
    """Resized images by row; asked for a batch of rows, it returns stacked views as bytes."""

    def __init__(self, images: Images, views: Views) -> None:
        self.images = images
        self.views = views
        fits = len(images) * 3 * views.resized**2 <= MEMORY_BUDGET
        self._kept: dict[int, np.ndarray] | None = {} if fits else None

    def read(self, row: int) -> np.ndarray:
        """Return one resized image (h, w, 3)."""
        if self._kept is None:
            return resize_shorter(self.images.open(row), self.views.resized)
        if row not in self._kept:
            self._kept[row] = resize_shorter(self.images.open(row), self.views.resized)
        return self._kept[row]

    def __getitem__(self, request: tuple[np.ndarray, np.ndarray | None]) -> Tensor:
        rows, draws = request
        images = [self.read(int(row)) for row in rows]
        if draws is None:
            stack = np.stack([self.views.test(image) for image in images])
        else:
            crops = (
                self.views.train(image, draws[v, b])
                for v in range(len(draws))
                for b, image in enumerate(images)
            )
            stack = np.stack(list(crops))
        return torch.from_numpy(stack).permute(0, 3, 1, 2)


class Loader:
    """Serves training batches and evaluation sweeps of one problem."""

    def __init__(
        self,
        problem: Problem,
        *,
        size: int,
        batch_size: int,
        num_views: int = 2,
        seed: int = 0,
        workers: int = 0,
        draws_per_epoch: int | None = None,
    ) -> None:
        self.pool = problem.pool
        self.labels = torch.from_numpy(problem.visible_labels)
        self.batch_size = min(batch_size, len(self.pool))
        self.num_views = num_views
        self.seed = seed
        self.workers = workers
        self.steps_per_epoch = max((draws_per_epoch or len(self.pool)) // self.batch_size, 1)
        self.images = Resized(problem.images, Views(size))

    def draws(self, epoch: int, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Draw an epoch: pool positions (steps, B) and numbers in [0, 1) (steps, V, B, 3)."""
        generator = seeded(self.seed, "batches", epoch)
        drawn = draw(weights, self.steps_per_epoch * self.batch_size, generator)
        shape = (self.steps_per_epoch, self.num_views, self.batch_size, 3)
        crops = torch.rand(shape, generator=generator)
        return drawn.view(self.steps_per_epoch, self.batch_size), crops

    def epoch(self, epoch: int, weights: Tensor) -> Iterator[Batch]:
        """Yield the batches of an epoch: images drawn with replacement by their weights."""
        index, crops = self.draws(epoch, weights)
        requests = [(self.pool[i], u) for i, u in zip(index.numpy(), crops.numpy(), strict=True)]
        for i, views in zip(index, self.serve(requests), strict=True):
            yield Batch(views.unflatten(0, (self.num_views, -1)), self.labels[i], i)

    def sweep(self, rows: np.ndarray, batch_size: int = 256) -> Iterator[Tensor]:
        """Yield centre crops (b, 3, H, W) of the given rows, in order, as bytes."""
        cuts = range(batch_size, len(rows), batch_size)
        yield from self.serve([(part, None) for part in np.split(rows, cuts)])

    def serve(self, requests: list) -> Iterator[Tensor]:
        """Yield the views (V*b, 3, H, W) of each request: rows, and draws (V, b, 3) or None."""
        yield from DataLoader(
            self.images,
            sampler=requests,
            batch_size=None,
            num_workers=self.workers,
            pin_memory=torch.cuda.is_available(),
            generator=seeded(self.seed, "workers"),
        )


def draw(weights: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Draw positions with replacement, with probability proportional to their weights."""
    return torch.multinomial(weights, number, replacement=True, generator=generator)
