"""An optional cache of resized images on disk; entries of changed images or code are ignored."""

from __future__ import annotations

import hashlib
import logging
import os
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from gcdbench.core.paths import PACKAGE
from gcdbench.data.images import FileImages, Images

log = logging.getLogger(__name__)


class PixelCache:
    """Stores resized images as uncompressed arrays, one file each; safe for several processes.

    A file's name is a hash of the image's id, the size, the original's modification time and the
    code that makes pixels. If any of them changes, the old file is no longer found.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser()

    def wrap(self, images: FileImages) -> Images:
        """Return the same images, read through the cache."""
        return _CachedImages(images, self)

    def resized(self, images: FileImages, row: int, size: int) -> np.ndarray:
        """Return an image (h, w, 3) whose shorter side has ``size`` pixels."""
        path = self._path(images, row, size)
        try:
            return np.load(path)
        except (OSError, ValueError, EOFError):  # not there yet, or cut off by a full disk
            pixels = images.resized(row, size)
        try:
            self._write(path, pixels)
        except OSError as error:
            _warn_once(self.folder, error.strerror or str(error))
        return pixels

    @staticmethod
    def _write(path: Path, pixels: np.ndarray) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{os.getpid()}.part")
        try:
            with part.open("wb") as file:
                np.save(file, pixels)
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise

    def _path(self, images: FileImages, row: int, size: int) -> Path:
        words = (images.ids[row], size, images.stamp(row), pixel_code_hash())
        name = hashlib.sha256("\0".join(map(str, words)).encode()).hexdigest()
        return self.folder / name[:2] / f"{name[2:34]}.npy"


class _CachedImages(Images):
    def __init__(self, images: FileImages, cache: PixelCache) -> None:
        self.images = images
        self.cache = cache
        self.ids = images.ids

    def open(self, row: int) -> Image.Image:
        return self.images.open(row)

    def resized(self, row: int, size: int) -> np.ndarray:
        return self.cache.resized(self.images, row, size)

    def place(self, row: int) -> str:
        return self.images.place(row)

    def stamp(self, row: int) -> str:
        return self.images.stamp(row)


@cache
def _warn_once(folder: Path, reason: str) -> None:
    log.warning("images are not cached, %s cannot be written: %s", folder, reason)


@cache
def pixel_code_hash() -> str:
    """Return a hash of the code that makes pixels."""
    folder = PACKAGE / "data"
    files = [folder / name for name in ("images.py", "modes.py", "corrupted.py")]
    files += (folder / "corruptions").glob("*.py")
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()
