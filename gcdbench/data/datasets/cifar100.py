"""CIFAR-100: 60,000 photographs of 32 px (Krizhevsky, 2009); with shift, CIFAR-100-C.

The corrupted test images are computed while loading, or read from the published CIFAR-100-C: never
chosen by what lies on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from gcdbench.data.class_splits import class_order
from gcdbench.data.corrupted import CorruptedImages, Recipe
from gcdbench.data.datasets._assemble import Labelled, check_settings, corrupted_problem
from gcdbench.data.datasets.cifar10 import as_images, read_batch, renumbered, unpickled
from gcdbench.data.images import ArrayImages, Images, JoinedImages
from gcdbench.data.problem import Dataset, Problem
from gcdbench.data.splits import per_class_sample
from gcdbench.errors import UserError

FILES = ("train", "test", "meta")
PUBLISHED = "CIFAR-100-C"
NUM_CLASSES = 100
MD5 = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}


class Cifar100(Dataset):
    """See the module."""

    title: ClassVar[str] = "CIFAR-100"
    homepage: ClassVar[str] = (
        "https://www.cs.toronto.edu/~kriz/cifar.html; CIFAR-100-C: "
        "https://zenodo.org/records/3555552"
    )
    disk: ClassVar[str] = "180 MB; CIFAR-100-C 2.9 GB"
    folders: ClassVar[tuple[str, ...]] = ("cifar-100-python", "cifar100/cifar-100-python")
    layout: ClassVar[str] = """\
train
test
meta
(and <data root>/CIFAR-100-C/<corruption>.npy and labels.npy, if 'corrupted: stored' is set)"""
    archives: ClassVar[tuple[tuple[str, str], ...]] = (
        (
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "md5:eb9058c3a382ffc7106e4002c42a8d85",
        ),
    )
    expected: ClassVar[dict[str, int]] = {"train": 50000, "test": 10000}

    @dataclass(frozen=True)
    class Config:
        shift: Literal["corrupted", "none"] = "corrupted"
        num_old: int = 80  # GCD: the first 80 by number
        class_split: Literal[0, 1, 2, 3, 4] = 0  # which classes are old; 0: the first num_old
        labelled_share: float = 0.5  # of the pooled training images of old classes, GCD
        shifted_share: float = 1.0  # of each class of the test images: 45 variants are many
        validation: float = 0.0  # share of each class's labelled images held out
        corrupted: Literal["computed", "stored"] = "computed"  # stored: the published CIFAR-100-C
        corruptions: tuple[str, ...] = ()  # of the nine of SSB-C; all of them if none is named
        severities: tuple[int, ...] = (1, 2, 3, 4, 5)  # all of SSB-C
        corruption_size: int = 0  # as stored, 32 px
        jpeg_quality: int = 0  # no round trip
        frost: str = ""  # folder of ice photographs below the data root; else a procedural texture
        augment: Literal["plain", "jitter"] = "plain"  # GCD

    def problem(self, name: str) -> Problem:
        """Read all images: they fit into memory."""
        config, recipe = self.config, Recipe.of(self.config, self.root)
        check_settings(name, config, num_old=config.num_old, num_classes=NUM_CLASSES)
        train, test = self._read("train"), self._read("test")
        self.compare(train=len(train), test=len(test))
        numbers = range(NUM_CLASSES)
        order, note = class_order("cifar100", config.class_split, config.num_old, numbers)
        names = self._names()
        train, test = renumbered(train, order), renumbered(test, order)
        notes = {"split": f"cifar100, {config.num_old} old{note}"}
        shifted = None
        if config.shift == "corrupted":
            rows = per_class_sample(test.labels, config.shifted_share)
            images, notes["corrupted"] = self._shifted(test, rows, recipe)
            shifted = Labelled(images, np.tile(test.labels[rows], len(recipe.variants)))
        return corrupted_problem(
            name,
            config,
            classes=[names[number] for number in order],
            num_old=config.num_old,
            train=train,
            shifted=shifted,
            variants=recipe.variants,
            notes=notes,
        )

    def parts(self) -> dict[str, Images]:
        """Return the official parts."""
        return {name: self._read(name).images for name in ("train", "test")}

    def checksums(self) -> dict[Path, str]:
        """Return the checksums of the files, too."""
        folder = self.locate(*FILES)
        return {**super().checksums(), **{folder / n: f"md5:{v}" for n, v in MD5.items()}}

    def _read(self, name: str) -> Any:
        path = self.locate(*FILES) / name
        return as_images(f"cifar100/{name}", [read_batch(path, "fine_labels", NUM_CLASSES)])

    def _names(self) -> list[str]:
        path = self.locate(*FILES) / "meta"
        try:
            names = [str(name) for name in unpickled(path)["fine_label_names"]]
        except Exception as error:  # a damaged pickle can raise anything
            raise UserError(f"{path}: not CIFAR-100's names of classes ({error})") from error
        if len(names) != NUM_CLASSES:
            raise UserError(f"{path}: {len(names)} names of classes instead of {NUM_CLASSES}")
        return names

    def _shifted(self, test: Any, rows: np.ndarray, recipe: Recipe) -> tuple[Images, str]:
        ids = [test.images.ids[row] for row in rows]
        if self.config.corrupted == "computed":
            clean = ArrayImages(test.images.pixels[rows], ids)
            return CorruptedImages(clean, recipe), f"computed {recipe.describe()}"
        assert self.root is not None  # else the clean images would not have been found
        parts = []
        for corruption, severity in recipe.variants:
            pixels = _stored(self.root / PUBLISHED / f"{corruption}.npy", len(test))
            first = (severity - 1) * len(test)
            names = [f"{corruption}/{severity}/{name}@published" for name in ids]
            parts.append(ArrayImages(pixels[first + rows], names))
        return JoinedImages(*parts), f"stored, {PUBLISHED}"


def _stored(path: Path, number: int) -> np.ndarray:
    """Open the images of a corruption: those of the first severity come first."""
    try:
        pixels = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as images of CIFAR-100-C ({error})") from error
    if pixels.shape != (5 * number, 32, 32, 3) or pixels.dtype != np.uint8:
        raise UserError(f"{path}: {pixels.dtype} of {pixels.shape} instead of 5 x {number} images")
    return pixels
