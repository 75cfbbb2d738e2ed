"""Pictures of ice for the frost corruption: procedural ones, or the user's photographs.

The published corruption mixes an image with photographs whose origin and licence are unclear; they
are not part of this project. The procedural textures have the same brightness (seven quantiles) and
tint, so that each severity is about as strong as the published one.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

from gcdbench.data.corruptions.rng import Rng
from gcdbench.errors import UserError

ENLARGED = 1.1  # a picture is made this much larger than needed, then cut at a random place
DRAWN = 5  # the published code has six photographs and draws one of the first five
SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".webp"}


@dataclass(frozen=True, eq=False)
class FrostTextures:
    """Pictures of ice, and their name in a record.

    Make one with `FrostTextures.procedural()` or `FrostTextures.from_folder(path)`.
    """

    name: str
    pictures: tuple[Image.Image, ...]
    enlarged: tuple[np.ndarray, ...]

    @classmethod
    def of(cls, name: str, pictures: list[Image.Image]) -> FrostTextures:
        """Return textures made of pictures, with their enlarged copies computed in advance."""
        sizes = [[math.ceil(side * ENLARGED) for side in each.size] for each in pictures]
        enlarged = [
            np.asarray(each.resize((width, height), Image.Resampling.BICUBIC))
            for each, (width, height) in zip(pictures, sizes, strict=True)
        ]
        return cls(name, tuple(pictures), tuple(enlarged))

    @classmethod
    def procedural(cls) -> FrostTextures:
        """Return the textures that come with the project; computed once per process."""
        return _procedural()

    @classmethod
    def from_folder(cls, folder: str | Path) -> FrostTextures:
        """Read the first photographs of a folder, in the order of their names."""
        files = sorted(file for file in Path(folder).glob("[!.]*") if _is_picture(file))[:DRAWN]
        if not files:
            raise UserError(
                f"no pictures of ice in {str(folder)!r}; "
                f"put {', '.join(sorted(SUFFIXES))} files there or leave the folder out"
            )
        digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        name = f"{len(files)} photographs of {Path(folder).name}/ (sha256 {digest[:16]})"
        return cls.of(name, [Image.open(file).convert("RGB") for file in files])

    def describe(self) -> str:
        """Return the name of the pictures, for a record."""
        return self.name

    def piece(self, height: int, width: int, rng: Rng) -> np.ndarray:
        """Return a random (height, width, 3) crop of a random picture."""
        which = rng.below(len(self.pictures))
        picture, enlarged = self.pictures[which], self.enlarged[which]
        factor = max(1.0, height / picture.height, width / picture.width) * ENLARGED
        full_height, full_width = (
            math.ceil(side * factor) for side in (picture.height, picture.width)
        )
        top, left = rng.below(full_height - height), rng.below(full_width - width)
        if enlarged.shape[:2] == (full_height, full_width):
            return enlarged[top : top + height, left : left + width]
        across, down = picture.width / full_width, picture.height / full_height
        box = (left * across, top * down, (left + width) * across, (top + height) * down)
        return np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC, box=box))


def _is_picture(file: Path) -> bool:
    return file.suffix.lower() in SUFFIXES


@dataclass(frozen=True)
class _Recipe:
    """Parameters of one procedural texture: brightness (quantiles), tint and crystals."""

    brightness: tuple[int, ...]  # at the quantiles 0, 5, 25, 50, 75, 95, 100 %
    tint: tuple[int, int, int]  # added to red, green, blue
    crystals: int
    length: tuple[float, float]  # of a crystal, in pixels
    opening: float  # between a crystal and its side branches, in degrees
    cloudiness: float


_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
_RECIPES = (
    _Recipe((82, 104, 118, 129, 142, 163, 219), (-53, 18, 35), 120, (60, 160), 20, 1.6),
    _Recipe((57, 166, 195, 210, 222, 236, 254), (-6, -1, 7), 420, (40, 110), 12, 0.5),
    _Recipe((57, 166, 195, 210, 222, 236, 254), (-6, -1, 7), 300, (50, 150), 25, 0.5),
    _Recipe((23, 104, 134, 152, 169, 199, 254), (-14, 1, 13), 700, (15, 60), 60, 0.5),
    _Recipe((26, 60, 92, 119, 151, 203, 255), (-12, 0, 12), 320, (30, 100), 55, 0.6),
)
_HEIGHT, _WIDTH = 400, 560


@lru_cache(maxsize=1)
def _procedural() -> FrostTextures:
    textures = [Image.fromarray(_texture(recipe, seed)) for seed, recipe in enumerate(_RECIPES)]
    return FrostTextures.of("procedural ice, version 1", textures)


def _texture(recipe: _Recipe, seed: int) -> np.ndarray:
    random = np.random.RandomState(seed)
    relief = _standardise(_crystals(recipe, random))
    light = ndimage.sobel(relief, axis=0, mode="wrap") + ndimage.sobel(relief, axis=1, mode="wrap")
    grain = ndimage.gaussian_filter(random.normal(size=relief.shape), 0.6, mode="wrap")
    surface = (
        relief
        + 0.5 * _standardise(light)
        + recipe.cloudiness * _standardise(_clouds(random))
        + 0.25 * _standardise(grain)
    )
    rank = np.empty(surface.size)
    rank[np.argsort(surface, axis=None, kind="stable")] = np.linspace(0, 1, surface.size)
    brightness = np.interp(rank, _QUANTILES, recipe.brightness).reshape(*surface.shape, 1)
    return np.clip(np.rint(brightness + recipe.tint), 0, 255).astype(np.uint8)


def _crystals(recipe: _Recipe, random: np.random.RandomState) -> np.ndarray:
    """Draw feather-shaped crystals, each a spine with side branches that get shorter to its tip."""
    count, branches = recipe.crystals, 24
    dots = math.ceil(0.3 * recipe.length[1])  # no gaps in the longest branch
    shape = (count, 1, 1, 1)  # crystal, branch, side, dot
    length = random.uniform(*recipe.length, size=shape)
    angle = random.uniform(0, 2 * np.pi, size=shape)
    bend = random.normal(0, 0.25, size=shape)
    along = np.linspace(0, 1, branches).reshape(1, -1, 1, 1)
    side = np.array([-1.0, 1.0]).reshape(1, 1, 2, 1)
    out = np.linspace(0, 1, dots).reshape(1, 1, 1, -1)
    heading = angle + bend * along
    reach = 0.4 * length * (1 - along) ** 0.8 * random.uniform(0.5, 1, (count, branches, 2, 1))
    turned = heading + side * np.radians(recipe.opening)
    y = random.uniform(0, _HEIGHT, size=shape) + along * length * np.sin(heading)
    x = random.uniform(0, _WIDTH, size=shape) + along * length * np.cos(heading)
    y, x = y + reach * out * np.sin(turned), x + reach * out * np.cos(turned)
    ink = np.broadcast_to((1.2 - out) * reach / dots * random.uniform(0.3, 1, shape), y.shape)
    cell = np.floor(y).astype(np.intp) % _HEIGHT * _WIDTH + np.floor(x).astype(np.intp) % _WIDTH
    drawn = np.bincount(cell.ravel(), ink.ravel(), minlength=_HEIGHT * _WIDTH)
    drawn = ndimage.gaussian_filter(drawn.reshape(_HEIGHT, _WIDTH), 0.7, mode="wrap")
    return 1 - np.exp(-drawn / drawn.mean())


def _clouds(random: np.random.RandomState) -> np.ndarray:
    """Return smooth noise whose amplitude falls with the frequency to the power 1.5."""
    spectrum = np.fft.rfft2(random.normal(size=(_HEIGHT, _WIDTH)))
    frequency = np.hypot(np.fft.fftfreq(_HEIGHT)[:, None], np.fft.rfftfreq(_WIDTH))
    frequency[0, 0] = np.inf
    return np.fft.irfft2(spectrum / frequency**1.5, s=(_HEIGHT, _WIDTH))


def _standardise(plane: np.ndarray) -> np.ndarray:
    return (plane - plane.mean()) / plane.std()
