"""Corrupted images: which variants there are, and how they are computed while loading.

A benchmark such as SSB-C has 45 variants of each clean test image. A variant that is computed when
it is opened takes no disk space; it is a pure function of the clean image, its id, the corruption
and the severity.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from gcdbench.data.corruptions import (
    CORRUPTIONS,
    SEVERITIES,
    FrostTextures,
    corrupt,
    jpeg_roundtrip,
)
from gcdbench.data.images import Images, resize_shorter
from gcdbench.data.pixel_store import PIXEL_CODE, StoredImages
from gcdbench.errors import UserError, unknown


@dataclass(frozen=True)
class Recipe:
    """How clean images become corrupted ones."""

    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    size: int = 256  # shorter side at which they are corrupted; 0: the stored size
    jpeg_quality: int = 0  # of the round trip that follows; 0: none
    frost: str = ""  # folder with photographs of ice; "": the procedural texture

    def __post_init__(self) -> None:
        for name in self.corruptions:
            if name not in CORRUPTIONS:
                raise unknown("corruption", name, CORRUPTIONS)
        for severity in self.severities:
            if severity not in SEVERITIES:
                raise UserError(f"severity {severity}: there are 1, 2, 3, 4 and 5")
        if not self.corruptions or not self.severities:
            raise UserError("corrupted images need at least one corruption and one severity")
        if len(set(self.variants)) < len(self.variants):
            raise UserError("a corruption or a severity is named twice; name each of them once")
        if self.size < 0 or not 0 <= self.jpeg_quality <= 95:
            raise UserError(
                f"corruption_size {self.size}, jpeg_quality {self.jpeg_quality}: expected a number "
                "of pixels (0: the stored size) and a quality from 1 to 95 (0: no JPEG)"
            )

    @classmethod
    def of(cls, config: Any, root: Path | None) -> Recipe:
        """Return the corruptions that a dataset's settings ask for."""
        return cls(
            corruptions=tuple(config.corruptions) or CORRUPTIONS,
            severities=tuple(config.severities),
            size=config.corruption_size,
            jpeg_quality=config.jpeg_quality,
            frost=str((root or Path()) / config.frost) if config.frost else "",
        )

    @property
    def variants(self) -> list[tuple[str, int]]:
        """All (corruption, severity) pairs in the benchmark's order: severity outermost."""
        return [(name, severity) for severity in self.severities for name in self.corruptions]

    @cached_property
    def frost_textures(self) -> FrostTextures:
        """The pictures that the frost corruption mixes into an image."""
        if not self.frost:
            return FrostTextures.procedural()
        try:
            return FrostTextures.from_folder(self.frost)
        except (OSError, ValueError) as error:
            raise UserError(f"frost: {error}") from error

    def apply(self, clean: Images, row: int, corruption: str, severity: int) -> np.ndarray:
        """Return one variant of an image, (h, w, 3) bytes."""
        pixels = clean.resized(row, self.size) if self.size else np.asarray(clean.open(row))
        frost = self.frost_textures if corruption == "frost" else None
        out = corrupt(pixels, corruption, severity, key=clean.ids[row], frost=frost)
        return jpeg_roundtrip(out, self.jpeg_quality) if self.jpeg_quality else out

    @cached_property
    def tag(self) -> str:
        """Short hash of everything that determines the pixels, for the ids of the variants."""
        return hashlib.sha256(self.describe().encode()).hexdigest()[:8]

    def describe(self) -> str:
        """Return one line for the record about how the pixels are made."""
        size = f"at {self.size} px" if self.size else "at the stored size"
        jpeg = f", JPEG quality {self.jpeg_quality}" if self.jpeg_quality else ""
        frost = self.frost_textures.describe() if self.frost else "procedural"
        return f"{size}{jpeg}" + (f", frost: {frost}" if "frost" in self.corruptions else "")


class CorruptedImages(Images):
    """Every image of another list in every variant of a recipe, computed when it is opened."""

    pixel_code: ClassVar[tuple[str, ...]] = PIXEL_CODE

    def __init__(self, clean: Images, recipe: Recipe) -> None:
        self.clean = clean
        self.recipe = recipe
        self.variants = recipe.variants
        self.ids = _VariantIds(clean.ids, self.variants, recipe.tag)

    def open(self, row: int) -> Image.Image:
        return Image.fromarray(self._pixels(row))

    def resized(self, row: int, size: int) -> np.ndarray:
        pixels = self._pixels(row)
        if min(pixels.shape[:2]) == size:  # as in SSB-C at 224 pixels
            return pixels
        return resize_shorter(Image.fromarray(pixels), size)

    def _pixels(self, row: int) -> np.ndarray:
        variant, inside = divmod(row, len(self.clean))
        return self.recipe.apply(self.clean, inside, *self.variants[variant])

    def place(self, row: int) -> str:
        return self.clean.place(row % len(self.clean))

    def stamp(self, row: int) -> str:
        return self.clean.stamp(row % len(self.clean))

    @property
    def origin(self) -> str:
        return f"{self.clean.origin} corrupted"

    def stored(self, folder: Path) -> Images:
        return StoredImages(CorruptedImages(self.clean.stored(folder), self.recipe), folder)


class _VariantIds(Sequence):
    """Ids ``<corruption>/<severity>/<id>@<recipe>``, built on access."""

    def __init__(self, ids: Sequence[str], variants: list[tuple[str, int]], tag: str) -> None:
        self.ids = ids
        self.variants = variants
        self.tag = tag

    def __len__(self) -> int:
        return len(self.ids) * len(self.variants)

    def __getitem__(self, row):
        variant, inside = divmod(range(len(self))[row], len(self.ids))
        corruption, severity = self.variants[variant]
        return f"{corruption}/{severity}/{self.ids[inside]}@{self.tag}"

    def __iter__(self) -> Iterator[str]:
        for corruption, severity in self.variants:
            prefix = f"{corruption}/{severity}/"
            yield from (f"{prefix}{name}@{self.tag}" for name in self.ids)
