"""Time the loader against plain Pillow and torchvision transforms, and corrupting against reading.

    python benchmarks/speed/loading.py [--images 24] [--rounds 5]

Photographs of typical sizes are written to a temporary folder. Competitors take turns on one
thread and the best CPU time per image (two views) of each is shown, so that a busy machine affects
all equally. "decoded" reads files, "stored" the store of resized images. "host" is what the CPU
does for views that are made on a GPU, in batches of 128 images: it packs frames and works out where
to cut; the device's operations are called for views of a single pixel: they cost their calls only.

"bytes" compares the stored views with the decoded ones, and both with those of the code for devices
on CPU tensors; "apart" is how far centre crops are from torchvision's, in grey levels.

Corrupted images, one of each variant, are compared with the two trees that ``data make-ssb-c``
writes: with ``--size 0`` (the size of the dataset's own files) and by default (256 pixels).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as the command line does

import numpy as np
import torch
from matplotlib.cbook import get_sample_data
from PIL import Image
from torch.utils.data import default_collate
from torchvision import transforms

from gcdbench.data.corrupted import CorruptedImages, Recipe
from gcdbench.data.corruptions import CORRUPTIONS, SEVERITIES
from gcdbench.data.images import FileImages, Images
from gcdbench.data.views import Frames, Views
from gcdbench.training.loader import Request, Resized

SIZES = {  # width and height of typical images
    "CUB": (500, 375),
    "Stanford Cars": (700, 480),
    "FGVC-Aircraft": (1024, 695),
    "DomainNet infograph": (1600, 2400),
}
BATCH = 128
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass
class Competitor:
    """A way to make the two views of some images."""

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


def two_views(resized: Resized, rows: np.ndarray) -> Request:
    """Ask for two views of some images."""
    numbers = resized.views.numbers("plain")
    draws = np.random.RandomState(0).rand(2, len(rows), numbers).astype(np.float32)
    return Request(rows, draws)


def on_device(resized: Resized, asked: Request, views: Views) -> torch.Tensor:
    """Return two views (2, b, 3, H, W) of frames, made by the code for devices."""
    frames, _ = resized[asked._replace(packed=True)]
    assert isinstance(frames, Frames)
    assert asked.draws is not None
    return torch.stack(views.train_all(frames, asked.draws, ("plain", "plain")))


def photographs(folder: Path, size: tuple[int, int], number: int) -> FileImages:
    """Write crops of a real photograph, brought to a size."""
    folder.mkdir(parents=True)
    rng = np.random.RandomState(0)
    with get_sample_data("grace_hopper.jpg") as file, Image.open(file) as picture:
        whole = picture.convert("RGB")
    for i in range(number):
        left, top = rng.randint(0, 60, 2).tolist()
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
    print("| two views, ms per image | torchvision | decoded | | stored | | host | bytes | apart |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: |")
    for jitter in (False, True):
        for name, size in SIZES.items():
            images = photographs(folder / f"{name}{jitter}", size, number)
            plain, fast = Plain(images, jitter), ours(images, jitter)
            stored = ours(images.stored(folder / "store"), jitter)
            asked = two_views(fast, np.arange(number))
            for _ in range(2):  # fills the store, then checks what is read
                stored[asked]
            work = (plain.batch, *(partial(one.__getitem__, asked) for one in (fast, stored)))
            batch = two_views(stored, np.arange(BATCH) % number)
            host = partial(on_device, stored, batch, replace(stored.views, size=1))
            times = race([Competitor(one) for one in (*work, host)], rounds, number)
            times[3] *= number / BATCH
            label = f"{name} {size[0]} x {size[1]}{', jitter' if jitter else ''}"
            print(
                f"| {label} | {times[0]:.1f} | {times[1]:.2f} | {times[0] / times[1]:.1f}x "
                f"| {times[2]:.2f} | {times[0] / times[2]:.1f}x | {times[3]:.3f} "
                f"| {_bytes(fast, stored, asked)} | {_apart(fast, plain, asked)} |"
            )


def _bytes(fast: Resized, stored: Resized, asked: Request) -> str:
    expected, found = fast[asked][0], stored[asked][0]
    made = on_device(stored, asked, stored.views).flatten(0, 1)
    return "equal" if torch.equal(expected, found) and torch.equal(expected, made) else "DIFFER"


def _apart(fast: Resized, plain: Plain, asked: Request) -> str:
    centres = fast[Request(asked.rows)][0].permute(0, 2, 3, 1).numpy()
    apart = np.abs(centres.astype(int) - plain.centres())
    return f"{apart.mean():.3f}, at most {apart.max()}"


def corrupting(folder: Path, number: int, rounds: int) -> None:
    """Compare variants that are computed while loading with variants that are read from disk."""
    print("\n| two views of 45 variants | JPEG tree | computed | | stored | |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, size in list(SIZES.items())[:3]:
        clean = photographs(folder / f"{name} clean", size, number)
        for at, stored_as in ((0, "full size"), (256, "256 px")):
            times = _variants(clean, folder / f"{name} {stored_as}", at, rounds)
            print(
                f"| {name}, tree of {stored_as} | {times[0]:.2f} | {times[1]:.2f} "
                f"| {times[1] / times[0]:.2f}x | {times[2]:.2f} | {times[2] / times[0]:.2f}x |"
            )


def _variants(clean: Images, folder: Path, size: int, rounds: int) -> list[float]:
    """Return CPU milliseconds per image: from a tree of files, computed, from a store."""
    variants = CorruptedImages(clean, Recipe(CORRUPTIONS, SEVERITIES))
    rows = np.arange(0, len(variants), len(clean)) + np.arange(45) % len(clean)
    folder.mkdir()
    original = CorruptedImages(clean, Recipe(CORRUPTIONS, SEVERITIES, size=size))
    for i, row in enumerate(rows):
        original.open(int(row)).save(folder / f"{i}.jpg", quality=85)
    files = ours(FileImages(folder, [f"{i}.jpg" for i in range(len(rows))]))
    computed, stored = ours(variants), ours(variants.stored(folder / "store"))
    asked = two_views(computed, rows)
    for _ in range(2):
        stored[asked]
    tree = partial(files.__getitem__, two_views(files, np.arange(len(rows))))
    work = (tree, partial(computed.__getitem__, asked), partial(stored.__getitem__, asked))
    return race([Competitor(one) for one in work], rounds, len(rows))


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
