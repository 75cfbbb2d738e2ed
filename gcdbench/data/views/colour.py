"""Change the colours of a view: jitter in a random order, grey.

The operations are Pillow's, or faster ones with the same bytes, so that the result is exactly that
of torchvision's transforms on Pillow images, which the released codes use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations

import numpy as np
from PIL import Image, ImageEnhance

ORDERS = tuple(permutations(range(4)))  # of brightness, contrast, saturation and hue
Strengths = tuple[float, float, float, float]  # of the same four


def jitter(image: np.ndarray, draw: Sequence[float], strengths: Strengths) -> np.ndarray:
    """Change brightness, contrast, saturation and hue in a random order; five numbers."""
    picture = Image.fromarray(np.ascontiguousarray(image))
    for step in ORDERS[int(draw[0] * len(ORDERS))]:
        amount = 2 * strengths[step] * float(draw[1 + step]) - strengths[step]
        picture = _STEPS[step](picture, amount)
    return np.asarray(picture)


def without_colour(image: np.ndarray) -> np.ndarray:
    """Return an image in shades of grey, with three channels."""
    return np.asarray(Image.fromarray(image).convert("L").convert("RGB"))


def _shift_hue(picture: Image.Image, amount: float) -> Image.Image:
    """Rotate the hue by a share of the colour wheel; it is a byte, which wraps around."""
    hue, saturation, value = to_hsv(*(np.asarray(band) for band in picture.split()))
    hue += np.array(amount * 255).astype(np.int32).astype(np.uint8)
    return Image.fromarray(to_rgb(hue, saturation, value))


def to_hsv(
    red: np.ndarray, green: np.ndarray, blue: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return hue, saturation and value as Pillow does, from tables."""
    hues, saturations = _hsv_tables()
    high = np.maximum(np.maximum(red, green), blue)
    low = np.minimum(np.minimum(red, green), blue)
    r, g, b = (band.astype(np.int32) for band in (red, green, blue))
    is_red, is_green = red == high, green == high
    # how far the other two are apart, plus the first row of the strongest colour in the table
    apart = np.where(is_red, g - b + 255, np.where(is_green, b - r + 766, r - g + 1277))
    hue = hues.take((apart << 8) | (high - low))
    return hue, saturations.take((high.astype(np.intp) << 8) | low), high


def to_rgb(hue: np.ndarray, saturation: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return red, green and blue (h, w, 3) as Pillow does, from tables."""
    place = (hue.astype(np.intp) << 8) | saturation
    brightness = value.astype(np.float32)
    out = np.empty((*hue.shape, 3), dtype=np.uint8)
    for channel, shares in enumerate(_rgb_shares()):
        out[..., channel] = shares.take(place) * brightness + np.float32(0.5)
    return out


@cache
def _hsv_tables() -> tuple[np.ndarray, np.ndarray]:
    """Tabulate hues by strongest colour, difference of the others, range; saturations by extremes.

    Types are those of Pillow's code in C: single precision, except in operations with a constant.
    """
    apart, span = np.arange(-255, 256)[:, None], np.arange(256)[None]
    divisor = np.maximum(span, 1).astype(np.float32)
    ahead = np.where(apart >= 0, 1, (span + apart).astype(np.float32) / divisor)
    behind = np.where(apart >= 0, (span - apart).astype(np.float32) / divisor, 1)
    sixths = [(start + ahead.astype(np.float64) - behind).astype(np.float32) for start in (0, 2, 4)]
    turns = np.fmod(np.stack(sixths).astype(np.float64) / 6 + 1, 1).astype(np.float32)
    hues = np.where(span > 0, turns.astype(np.float64) * 255, 0).astype(np.uint8)
    high, low = np.arange(256)[:, None], np.arange(256)[None]
    share = (high - low).astype(np.float32) / np.maximum(high, 1).astype(np.float32)
    saturations = np.where(high > low, share.astype(np.float64) * 255, 0).astype(np.uint8)
    return hues.ravel(), saturations.ravel()


@cache
def _rgb_shares() -> np.ndarray:
    """Tabulate by hue and saturation which share of the value red, green and blue have."""
    turns = np.arange(256) * 6 / 255
    sixth = np.floor(turns).astype(int)
    rest = (turns - sixth).astype(np.float32)[:, None]
    saturation = (np.arange(256) / 255).astype(np.float32)[None]
    full = np.ones((256, 256))
    none = full - saturation
    falling = 1 - (saturation * rest).astype(np.float64)
    rising = 1 - saturation.astype(np.float64) * (1 - rest.astype(np.float64))
    courses = np.stack([full, falling, none, none, rising, full])  # of red, through the sixths
    rows = np.arange(256)
    shares = [courses[(sixth + start) % 6, rows] for start in (0, 4, 2)]
    return np.stack(shares).astype(np.float32).reshape(3, -1)


_STEPS: tuple[Callable[[Image.Image, float], Image.Image], ...] = (
    lambda picture, amount: ImageEnhance.Brightness(picture).enhance(1 + amount),
    lambda picture, amount: ImageEnhance.Contrast(picture).enhance(1 + amount),
    lambda picture, amount: ImageEnhance.Color(picture).enhance(1 + amount),
    _shift_hue,
)
