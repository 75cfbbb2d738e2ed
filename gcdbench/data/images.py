"""Random access to pixels: images in files, in a zip archive, in memory, or several such lists.

Torch is not imported before pixels are read: plans and reports hold lists of images too.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zipfile
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from gcdbench.data.modes import to_rgb
from gcdbench.errors import UserError

# Smaller images are resized by torch alone, as those of the embedded suite have always been: up to
# two grey levels from Pillow in some values per million.
THUMBNAIL = 128

_PIL_ERRORS = (OSError, SyntaxError, ValueError, EOFError, KeyError, struct.error)


class Unreadable(UserError):
    """An image that cannot be decoded; ``place`` says which."""

    def __init__(self, place: str, reason: object) -> None:
        super().__init__(f"{place}: cannot be read as an image ({reason})")
        self.place = place
        self.reason = str(reason)

    def __reduce__(self) -> tuple:
        return type(self), (self.place, self.reason)


class Images(ABC):
    """A list of images; ``ids`` names each of them the same way on every machine.

    Features are stored under these ids: images that differ in a single pixel never share one.
    """

    ids: Sequence[str]
    pixel_code: ClassVar[tuple[str, ...]] = ("images.py", "modes.py")  # what makes their pixels

    def __len__(self) -> int:
        return len(self.ids)

    @abstractmethod
    def open(self, row: int) -> Image.Image:
        """Return an image in RGB; raise Unreadable if it cannot be decoded."""

    def resized(self, row: int, size: int) -> np.ndarray:
        """Return an image (h, w, 3) whose shorter side has ``size`` pixels."""
        return resize_shorter(self.open(row), size)

    def place(self, row: int) -> str:
        """Return where an image is stored, for messages."""
        return self.ids[row]

    def stamp(self, row: int) -> str:
        """Return a string that changes when the image's file does; empty if there is no file."""
        return ""

    @property
    def origin(self) -> str:
        """Where the whole list comes from, in words or as a path."""
        digest = hashlib.sha256("\n".join(self.ids).encode()).hexdigest()
        return f"images {digest[:16]}"

    def stored(self, folder: Path) -> Images:
        """Return the same images, with resized ones kept in a folder."""
        from gcdbench.data.pixel_store import StoredImages

        return StoredImages(self, folder)


class FileImages(Images):
    """Images in files below a folder; ``paths`` if their names are not their ids."""

    def __init__(self, root: Path, ids: Sequence[str], paths: Sequence[str] | None = None) -> None:
        self.root = root
        self.ids = ids
        self.paths = ids if paths is None else paths

    def open(self, row: int) -> Image.Image:
        with decoding(self.place(row)), Image.open(self.path(row)) as image:
            return to_rgb(image).copy()

    def resized(self, row: int, size: int) -> np.ndarray:
        with decoding(self.place(row)), Image.open(self.path(row)) as image:
            # a copy of a large image takes as long as its resizing
            return resize_shorter(to_rgb(image), size)

    def path(self, row: int) -> Path:
        """Return the file of an image."""
        return self.root / self.paths[row]

    def place(self, row: int) -> str:
        return str(self.path(row))

    @property
    def origin(self) -> str:
        return str(self.root)

    def stamp(self, row: int) -> str:
        with decoding(self.place(row)):
            return file_stamp(self.path(row))


class ZipImages(Images):
    """Images in a zip archive; each process opens its own handle."""

    def __init__(self, archive: Path, ids: Sequence[str]) -> None:
        self.archive = archive
        self.ids = ids
        self._opened: tuple[int, zipfile.ZipFile] | None = None  # process that opened it, file

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_opened": None}

    def open(self, row: int) -> Image.Image:
        with decoding(self.place(row)), Image.open(io.BytesIO(self._read(self.ids[row]))) as image:
            return to_rgb(image).copy()

    @property
    def origin(self) -> str:
        return str(self.archive)

    def place(self, row: int) -> str:
        return f"{self.archive}:{self.ids[row]}"

    def stamp(self, row: int) -> str:
        with decoding(self.place(row)):
            return file_stamp(self.archive)

    def _read(self, name: str) -> bytes:
        if self._opened is None or self._opened[0] != os.getpid():
            self._opened = os.getpid(), zipfile.ZipFile(self.archive)
        return self._opened[1].read(name)


class ArrayImages(Images):
    """Images of one size in memory, (n, h, w, 3) bytes."""

    def __init__(self, pixels: np.ndarray, ids: Sequence[str]) -> None:
        self.pixels = pixels
        self.ids = ids

    def open(self, row: int) -> Image.Image:
        return Image.fromarray(self.pixels[row])

    def stamp(self, row: int) -> str:
        return hashlib.sha256(self.pixels[row].tobytes()).hexdigest()


class JoinedImages(Images):
    """Several lists of images, one after the other."""

    def __init__(self, *parts: Images) -> None:
        self.parts = parts
        self.ids = list(chain.from_iterable(part.ids for part in parts))
        self._ends = list(accumulate(map(len, parts)))

    def open(self, row: int) -> Image.Image:
        part, inside = self.find(row)
        return part.open(inside)

    def resized(self, row: int, size: int) -> np.ndarray:
        part, inside = self.find(row)
        return part.resized(inside, size)

    def place(self, row: int) -> str:
        part, inside = self.find(row)
        return part.place(inside)

    def stamp(self, row: int) -> str:
        part, inside = self.find(row)
        return part.stamp(inside)

    def stored(self, folder: Path) -> Images:
        return JoinedImages(*(part.stored(folder) for part in self.parts))

    def find(self, row: int) -> tuple[Images, int]:
        """Return the list that holds an image, and its row there."""
        number = bisect_right(self._ends, row)
        return self.parts[number], row - (self._ends[number] - len(self.parts[number]))


@contextmanager
def decoding(place: str) -> Iterator[None]:
    """Convert any error of the decoder into ``Unreadable``, which names the image."""
    try:
        yield
    except Unreadable:
        raise
    except (*_PIL_ERRORS, zipfile.BadZipFile, Image.DecompressionBombError) as error:
        raise Unreadable(place, str(error).splitlines()[0] if str(error) else error) from error


def file_stamp(path: Path) -> str:
    """Return a string that changes when a file does: its size and modification time."""
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns}"


def shorter_side(shape: tuple[int, int], size: int) -> tuple[int, int]:
    """Return (width, height) after scaling the shorter side to ``size``.

    >>> shorter_side((320, 240), 256)
    (341, 256)
    """
    width, height = shape
    if width <= height:
        return size, int(size * height / width)
    return int(size * width / height), size


def resize_shorter(image: Image.Image, size: int) -> np.ndarray:
    """Scale the shorter side to ``size`` pixels, bicubic, and return (h, w, 3) bytes."""
    return bicubic(image, shorter_side(image.size, size))


def bicubic(image: Image.Image, shape: tuple[int, int]) -> np.ndarray:
    """Resize to (width, height) with antialiasing, within one grey level of Pillow.

    Torch's kernel takes a fifth of Pillow's time, but its weights have 15 bits and Pillow's have
    22. After the horizontal pass, a few values in a thousand are rounded the other way. If
    neighbouring rows are affected, the vertical pass adds this up to two grey levels. Pillow
    therefore computes one row between every two rows of the result, which breaks up such runs: of
    36 million values of photographs none was off by two levels. Images below ``THUMBNAIL`` pixels
    are resized by torch alone.
    """
    if image.size == shape:
        return np.asarray(image)
    pixels = np.array(image)
    width, height = shape
    if min(image.size) < THUMBNAIL:
        return _torch_bicubic(pixels, width, height)
    between = _torch_bicubic(pixels, width, len(pixels))
    rows = np.unique((np.arange(1, height, 2) * (len(pixels) / height)).astype(int))
    exact = Image.fromarray(pixels[rows]).resize((width, len(rows)), Image.Resampling.BICUBIC)
    between[rows] = np.asarray(exact)
    return _torch_bicubic(between, width, height)


def _torch_bicubic(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    import torch

    images = torch.from_numpy(pixels).unsqueeze(0).permute(0, 3, 1, 2)  # channels last: no copies
    small = torch.nn.functional.interpolate(
        images, size=(height, width), mode="bicubic", antialias=True
    )
    return small[0].permute(1, 2, 0).numpy()
