"""Time the loader against plain Pillow and torchvision transforms, and corrupting against reading.

    python benchmarks/speed/loading.py [--images 24] [--rounds 5]

Photographs of typical sizes are written to a temporary folder. Competitors take turns on one
thread and the best CPU time per image (two views) of each is shown, so that a busy machine affects
all equally. "apart" is how far the centre crops are from the plain ones, in grey levels.

Corrupted images, one of each variant, are compared with the two trees that ``data make-ssb-c``
writes: with ``--size 0`` (the size of the dataset's own files) and by default (256 pixels).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as the command line does

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch.utils.data import default_collate
from torchvision import transforms

from gcdbench.data.corrupted import CorruptedImages, Recipe
from gcdbench.data.corruptions import CORRUPTIONS, SEVERITIES
from gcdbench.data.images import FileImages, Images
from gcdbench.data.pixel_cache import PixelCache
from gcdbench.data.views import Views
from gcdbench.training.loader import Resized

SIZES = {  # width and height of typical images
    "CUB": (500, 375),
    "Stanford Cars": (700, 480),
    "FGVC-Aircraft": (1024, 695),
    "DomainNet infograph": (1600, 2400),
}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass
class Competitor:
    """A way to make the two views of some images."""

    name: str
    work: Callable[[], object]
    best: float = float("inf")

    def turn(self) -> None:
        """Work once and remember the best CPU time."""
        start = time.process_time()
        self.work()
        self.best = min(self.best, time.process_time() - start)


class Plain:
    """The loading of the released codes: Pillow decodes, torchvision makes each view."""

    def __init__(self, images: FileImages, jitter: bool = False) -> None:
        colour = [transforms.ColorJitter(0.3, 0.3, 0.3, 0.3), transforms.RandomGrayscale(0.1)]
        bicubic = transforms.InterpolationMode.BICUBIC
        end = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
        resize = transforms.Resize(256, bicubic)
        flips = [transforms.RandomCrop(224), transforms.RandomHorizontalFlip()]
        self.images = images
        self.train = transforms.Compose([resize, *flips, *(colour if jitter else []), *end])
        self.crop = transforms.Compose([resize, transforms.CenterCrop(224)])

    def batch(self) -> torch.Tensor:
        """Return two views of all images."""
        pictures = (self._open(row) for row in range(len(self.images)))
        return default_collate([[self.train(p), self.train(p)] for p in pictures])

    def centres(self) -> np.ndarray:
        """Return the centre crops, as bytes."""
        return np.stack([np.asarray(self.crop(self._open(r))) for r in range(len(self.images))])

    def _open(self, row: int) -> Image.Image:
        with Image.open(self.images.path(row)) as picture:
            return picture.convert("RGB")


def ours(images: Images, jitter: bool = False) -> Resized:
    """Return what a worker of the loader runs, without its memory of small problems."""
    resized = Resized(images, Views(224, "jitter" if jitter else "plain"))
    resized._kept = None
    return resized


def request(resized: Resized) -> tuple[np.ndarray, np.ndarray]:
    """Ask for two views of all images."""
    number = len(resized.images)
    return np.arange(number), np.random.RandomState(0).rand(2, number, resized.views.numbers)


def photographs(folder: Path, size: tuple[int, int], number: int) -> FileImages:
    """Write crops of two real photographs, brought to a size."""
    folder.mkdir(parents=True)
    rng = np.random.RandomState(0)
    for i in range(number):
        whole = Image.fromarray(load_sample_image(("china.jpg", "flower.jpg")[i % 2]))
        left, top = rng.randint(0, 60, 2)
        part = whole.crop((left, top, whole.width - 60 + left, whole.height - 60 + top))
        part.resize(size, Image.Resampling.LANCZOS).save(folder / f"{i}.jpg", quality=90)
    return FileImages(folder, [f"{i}.jpg" for i in range(number)])


def race(competitors: list[Competitor], rounds: int, images: int) -> list[float]:
    """Let all take turns; return CPU milliseconds per image."""
    for _ in range(rounds):
        for one in competitors:
            one.turn()
    return [1e3 * one.best / images for one in competitors]


def loading(folder: Path, number: int, rounds: int) -> None:
    """Compare the two-view loaders on all sizes."""
    print(f"{'two views':<24}{'plain':>9}{'ours':>9}{'':>7}{'cached':>9}{'':>7}   apart: mean, max")
    for jitter in (False, True):
        for name, size in SIZES.items():
            images = photographs(folder / f"{name}{jitter}", size, number)
            plain, fast = Plain(images, jitter), ours(images, jitter)
            cached = ours(images.cached(PixelCache(folder / "cache")), jitter)
            asked = request(fast)
            cached[asked]  # fills the cache
            times = race(
                [
                    Competitor("plain", plain.batch),
                    Competitor("ours", lambda fast=fast, asked=asked: fast[asked]),
                    Competitor("cached", lambda cached=cached, asked=asked: cached[asked]),
                ],
                rounds,
                number,
            )
            centres = fast[(asked[0], None)][0].permute(0, 2, 3, 1).numpy()
            apart = np.abs(centres.astype(int) - plain.centres())
            label = f"{name}{', jitter' if jitter else ''}"
            print(
                f"{label:<24}{times[0]:>6.1f} ms{times[1]:>6.1f} ms{times[0] / times[1]:>6.1f}x"
                f"{times[2]:>6.1f} ms{times[0] / times[2]:>6.1f}x"
                f"   {apart.mean():.3f}, {apart.max()}"
            )


def corrupting(folder: Path, number: int, rounds: int) -> None:
    """Compare variants that are computed while loading with variants that are read from disk."""
    print(f"\n{'two views, 45 variants':<34}{'stored':>9}{'computed':>9}{'':>7}{'cached':>9}")
    for name, size in list(SIZES.items())[:3]:
        clean = photographs(folder / f"{name} clean", size, number)
        for at, stored_as in ((0, "full size"), (256, "256 px")):
            times = _variants(clean, folder / f"{name} {stored_as}", at, rounds)
            label = f"{name}, stored at {stored_as}"
            print(
                f"{label:<34}{times[0]:>6.1f} ms{times[1]:>6.1f} ms{times[1] / times[0]:>6.2f}x"
                f"{times[2]:>6.1f} ms{times[2] / times[0]:>6.2f}x"
            )


def _variants(clean: Images, folder: Path, size: int, rounds: int) -> list[float]:
    """Return CPU milliseconds per image: stored, computed, computed from a cache of clean ones."""
    variants = CorruptedImages(clean, Recipe(CORRUPTIONS, SEVERITIES))
    rows = np.arange(0, len(variants), len(clean)) + np.arange(45) % len(clean)
    draws = np.random.RandomState(0).rand(2, len(rows), 3)
    folder.mkdir()
    original = CorruptedImages(clean, Recipe(CORRUPTIONS, SEVERITIES, size=size))
    for i, row in enumerate(rows):
        original.open(int(row)).save(folder / f"{i}.jpg", quality=85)
    stored = ours(FileImages(folder, [f"{i}.jpg" for i in range(len(rows))]))
    computed, cached = ours(variants), ours(variants.cached(PixelCache(folder / "cache")))
    competitors = [
        Competitor("stored", lambda: stored[(np.arange(len(rows)), draws)]),
        Competitor("computed", lambda: computed[(rows, draws)]),
        Competitor("cached", lambda: cached[(rows, draws)]),
    ]
    return race(competitors, rounds, len(rows))


def main() -> None:
    """Run both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=24, help="of each size")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        loading(Path(folder), arguments.images, arguments.rounds)
        corrupting(Path(folder), arguments.images, arguments.rounds)


if __name__ == "__main__":
    main()
