"""How a resized image becomes views: crop, flip and, on DomainNet, colour.

A view is a pure function of the image and a few numbers from [0, 1), which the loader draws. The
colour operations are Pillow's, so that they give exactly what torchvision's transforms give on the
images of Pillow that the released codes use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from PIL import Image, ImageEnhance

from gcdbench.data.problem import Augment

CROP_SHARE = 0.875  # side of the crop against the shorter side of the resized image: 224 / 256
JITTER = 0.3  # brightness, contrast, saturation and hue, released code for DomainNet
GREY = 0.1  # probability of a view without colour, released code for DomainNet
_ORDERS = tuple(permutations(range(4)))


@dataclass(frozen=True)
class Views:
    """How an image becomes a square of ``size`` pixels."""

    size: int
    augment: Augment = "plain"

    @property
    def resized(self) -> int:
        """Shorter side before the crop."""
        return int(self.size / CROP_SHARE)

    @property
    def numbers(self) -> int:
        """How many random numbers a training view takes."""
        return 3 if self.augment == "plain" else 9

    def test(self, image: np.ndarray) -> np.ndarray:
        """Return the centre crop of a resized image."""
        top, left = (round((side - self.size) / 2.0) for side in image.shape[:2])
        return image[top : top + self.size, left : left + self.size]

    def train(self, image: np.ndarray, draw: Sequence[float]) -> np.ndarray:
        """Return a random crop, perhaps flipped, perhaps in other colours."""
        if len(draw) != self.numbers:
            raise ValueError(f"a {self.augment} view takes {self.numbers} numbers, not {len(draw)}")
        height, width = image.shape[:2]
        top = int(draw[0] * (height - self.size + 1))
        left = int(draw[1] * (width - self.size + 1))
        crop = image[top : top + self.size, left : left + self.size]
        crop = crop[:, ::-1] if draw[2] < 0.5 else crop
        return crop if self.augment == "plain" else recolour(crop, draw[3:])


def recolour(image: np.ndarray, draw: Sequence[float]) -> np.ndarray:
    """Jitter the colours in a random order, then perhaps take them away; six numbers."""
    picture = Image.fromarray(np.ascontiguousarray(image))
    for step in _ORDERS[int(draw[0] * len(_ORDERS))]:
        picture = _STEPS[step](picture, 2 * JITTER * float(draw[1 + step]) - JITTER)
    if draw[5] < GREY:
        picture = picture.convert("L").convert("RGB")
    return np.asarray(picture)


def _shift_hue(picture: Image.Image, amount: float) -> Image.Image:
    """Turn the colour wheel by a share of it; the hue is a byte, which wraps around."""
    hue, saturation, value = picture.convert("HSV").split()
    turned = np.asarray(hue) + np.array(amount * 255).astype(np.int32).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")


_STEPS: tuple[Callable[[Image.Image, float], Image.Image], ...] = (
    lambda picture, amount: ImageEnhance.Brightness(picture).enhance(1 + amount),
    lambda picture, amount: ImageEnhance.Contrast(picture).enhance(1 + amount),
    lambda picture, amount: ImageEnhance.Color(picture).enhance(1 + amount),
    _shift_hue,
)
