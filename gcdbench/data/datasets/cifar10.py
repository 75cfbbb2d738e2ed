"""CIFAR-10: 60,000 photographs of 32 px (Krizhevsky, 2009); with shift, a small stand-in for SSB-C.

It is a free download, and in size between the embedded suite and SSB-C. As in SSB-C, the training
images are the source domain and the test images under nine corruptions are the shifted one.
"""

from __future__ import annotations

import codecs
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from gcdbench.data.class_splits import class_order
from gcdbench.data.corrupted import CorruptedImages, Recipe
from gcdbench.data.datasets._assemble import Labelled, check_settings, corrupted_problem
from gcdbench.data.images import ArrayImages, Images
from gcdbench.data.problem import Dataset, Problem
from gcdbench.data.splits import per_class_sample, positions
from gcdbench.errors import UserError

TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


class Cifar10(Dataset):
    """See the module."""

    title: ClassVar[str] = "CIFAR-10"
    homepage: ClassVar[str] = "https://www.cs.toronto.edu/~kriz/cifar.html"
    disk: ClassVar[str] = "180 MB"
    folders: ClassVar[tuple[str, ...]] = ("cifar-10-batches-py", "cifar10/cifar-10-batches-py")
    layout: ClassVar[str] = """\
data_batch_1 ... data_batch_5
test_batch"""
    archives: ClassVar[tuple[tuple[str, str], ...]] = (
        (
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "md5:c58f30108f718f92721af3b95e74349a",
        ),
    )
    expected: ClassVar[dict[str, int]] = {"train": 50000, "test": 10000}

    @dataclass(frozen=True)
    class Config:
        shift: Literal["corrupted", "none"] = "corrupted"
        num_old: int = 5  # GCD: airplane to deer
        class_split: Literal[0, 1, 2, 3, 4] = 0  # which classes are old; 0: the first num_old
        labelled_share: float = 0.5  # of the pooled training images of old classes, GCD
        shifted_share: float = 1.0  # of each class of the test images: 45 variants are many
        validation: float = 0.0  # share of each class's labelled images held out
        corruptions: tuple[str, ...] = ()  # of the nine of SSB-C; all of them if none is named
        severities: tuple[int, ...] = (1, 2, 3, 4, 5)  # all of SSB-C
        corruption_size: int = 0  # as stored, 32 px
        jpeg_quality: int = 0  # no round trip
        frost: str = ""  # folder of ice photographs below the data root; else a procedural texture
        augment: Literal["plain", "jitter"] = "plain"  # GCD

    def problem(self, name: str) -> Problem:
        """Read all images: they fit into memory."""
        config, recipe = self.config, Recipe.of(self.config, self.root)
        check_settings(name, config, num_old=config.num_old, num_classes=len(CLASSES))
        train, test = self._read(*TRAIN, name="train"), self._read("test_batch", name="test")
        self.compare(train=len(train), test=len(test))
        order, note = class_order("cifar10", config.class_split, config.num_old, range(10))
        train, test = renumbered(train, order), renumbered(test, order)
        notes = {"split": f"cifar10, {config.num_old} old{note}"}
        shifted = None
        if config.shift == "corrupted":
            rows = per_class_sample(test.labels, config.shifted_share)
            clean = ArrayImages(test.images.pixels[rows], [test.images.ids[row] for row in rows])
            labels = np.tile(test.labels[rows], len(recipe.variants))
            shifted = Labelled(CorruptedImages(clean, recipe), labels)
            notes["corrupted"] = f"computed {recipe.describe()}"
        return corrupted_problem(
            name,
            config,
            classes=[CLASSES[number] for number in order],
            num_old=config.num_old,
            train=train,
            shifted=shifted,
            variants=recipe.variants,
            notes=notes,
        )

    def parts(self) -> dict[str, Images]:
        """Return the official parts."""
        return {
            "train": self._read(*TRAIN, name="train").images,
            "test": self._read("test_batch", name="test").images,
        }

    def checksums(self) -> dict[Path, str]:
        """Return the checksums of the archive and of the batches."""
        folder = self.locate(*TRAIN, "test_batch")
        batches = {folder / name: f"md5:{value}" for name, value in MD5.items()}
        return {**super().checksums(), **batches}

    def _read(self, *batches: str, name: str) -> Any:
        folder = self.locate(*TRAIN, "test_batch")
        read = [read_batch(folder / batch) for batch in batches]
        return as_images(f"cifar10/{name}", read)


def as_images(name: str, batches: list[tuple[np.ndarray, np.ndarray]]) -> Any:
    """Return the images of batches in memory, with their classes."""
    pixels = np.concatenate([data.reshape(-1, 3, 32, 32) for data, _ in batches])
    ids = [f"{name}/{row:05d}" for row in range(len(pixels))]
    images = ArrayImages(np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)), ids)
    return Labelled(images, np.concatenate([labels for _, labels in batches]))


def renumbered(images: Any, order: list[int]) -> Any:
    """Return the same images with the classes numbered by their place in an order."""
    return Labelled(images.images, positions(order, [])[images.labels])


def unpickled(path: Path) -> Any:
    """Read a file of CIFAR's Python version; nothing in it can run code."""
    with path.open("rb") as file:
        return _Arrays(file, encoding="latin1").load()


class _Arrays(pickle.Unpickler):
    """Reads plain data and numpy arrays, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module.startswith("numpy."):
            return np.empty(0).__reduce__()[0]
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes in old protocols
            return codecs.encode
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def read_batch(path: Path, key: str = "labels", number: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Read images (n, 3072) and their classes, which are below ``number``."""
    try:
        content = unpickled(path)
        pixels, labels = np.asarray(content["data"]), np.asarray(content[key])
    except Exception as error:  # a damaged pickle can raise anything
        raise UserError(
            f"{path}: not a batch of CIFAR-{number}'s Python version ({error})"
        ) from error
    if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != 3 * 32 * 32:
        raise UserError(f"{path}: not images of 32 pixels, but {pixels.dtype} of {pixels.shape}")
    if labels.shape != (len(pixels),) or not len(labels) or labels.dtype.kind not in "iu":
        raise UserError(f"{path}: {len(pixels)} images do not go with {labels.size} class numbers")
    if labels.min() < 0 or labels.max() >= number:
        raise UserError(
            f"{path}: classes {labels.min()} to {labels.max()} instead of 0 to {number - 1}"
        )
    return pixels, labels
