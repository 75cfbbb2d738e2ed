"""Random access to pixels: images in files, in a zip archive, or corrupted on the way."""

from __future__ import annotations

import io
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from gcdbench.errors import UserError


class Images(ABC):
    """A list of images; ``ids`` names each of them the same way on every machine."""

    ids: Sequence[str]

    def __len__(self) -> int:
        return len(self.ids)

    @abstractmethod
    def open(self, row: int) -> Image.Image:
        """Return an image in RGB."""


class FileImages(Images):
    """Images in files below a folder."""

    def __init__(self, root: Path, ids: Sequence[str]) -> None:
        self.root = root
        self.ids = ids

    def open(self, row: int) -> Image.Image:
        path = self.root / self.ids[row]
        try:
            with Image.open(path) as image:
                return image.convert("RGB")
        except (OSError, SyntaxError) as error:
            raise UserError(f"{path}: cannot be read as an image ({error})") from error


class ZipImages(Images):
    """Images in a zip archive; each process opens the archive for itself."""

    def __init__(self, archive: Path, ids: Sequence[str]) -> None:
        self.archive = archive
        self.ids = ids
        self._zip: zipfile.ZipFile | None = None

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_zip": None}

    def open(self, row: int) -> Image.Image:
        if self._zip is None:
            self._zip = zipfile.ZipFile(self.archive)
        with Image.open(io.BytesIO(self._zip.read(self.ids[row]))) as image:
            return image.convert("RGB")


def resize_shorter(image: Image.Image, size: int) -> np.ndarray:
    """Scale the shorter side to ``size`` pixels, bicubic, and return (h, w, 3) bytes."""
    width, height = image.size
    if width <= height:
        shape = (size, int(size * height / width))
    else:
        shape = (int(size * width / height), size)
    if shape != image.size:
        image = image.resize(shape, Image.Resampling.BICUBIC)
    return np.asarray(image)
