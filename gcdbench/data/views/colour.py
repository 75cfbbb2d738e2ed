"""Change the colours of a view: jitter in a random order, grey.

The bytes are those of Pillow, and so of torchvision's transforms on Pillow images, which the
released codes use. They are computed on planes of one colour, in Pillow's types, and in memory that
is used again: to ask the operating system for fresh pages takes longer than most steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations

import numpy as np
from PIL import Image

ORDERS = tuple(permutations(range(4)))  # of brightness, contrast, saturation and hue
Strengths = tuple[float, float, float, float]  # of the same four
LUMA = (19595, 38470, 7471)  # of 65536: Pillow's weights of red, green and blue
_memory = threading.local()


class Planes:
    """An image of n pixels as three planes, and the memory that its changes need."""

    def __init__(self, number: int) -> None:
        self.colours = np.empty((3, number), np.uint8)
        self.high, self.low, self.span, self.byte = np.empty((4, number), np.uint8)
        self.pairs = np.empty((number, 2), np.uint8)
        self.apart, self.other = np.empty((2, number), np.int16)
        self.grey, self.term = np.empty((2, number), np.int32)
        self.index = np.empty(number, np.intp)
        self.mixed, self.value = np.empty((2, number), np.float32)

    @classmethod
    def of_size(cls, number: int) -> Planes:
        """Return planes of this thread, with any content."""
        planes: Planes | None = getattr(_memory, "planes", None)
        if planes is None or planes.colours.shape[1] != number:
            planes = _memory.planes = cls(number)
        return planes


def jitter(image: np.ndarray, draw: Sequence[float], strengths: Strengths) -> np.ndarray:
    """Change brightness, contrast, saturation and hue in a random order; five numbers."""
    height, width = image.shape[:2]
    planes = Planes.of_size(height * width)
    for channel, plane in enumerate(planes.colours):
        plane.reshape(height, width)[:] = image[..., channel]
    for step in ORDERS[int(draw[0] * len(ORDERS))]:
        amount = 2 * strengths[step] * float(draw[1 + step]) - strengths[step]
        _STEPS[step](planes, amount)
    out = np.empty((height, width, 3), np.uint8)
    for channel, plane in enumerate(planes.colours):
        out[..., channel] = plane.reshape(height, width)
    return out


def without_colour(image: np.ndarray) -> np.ndarray:
    """Return an image in shades of grey, with three channels."""
    picture = Image.fromarray(np.ascontiguousarray(image))
    return np.asarray(picture.convert("L").convert("RGB"))


def _brighten(planes: Planes, amount: float) -> None:
    mixed = planes.mixed
    for plane in planes.colours:  # one at a time stays in the processor's cache
        np.copyto(mixed, plane)
        mixed *= np.float32(1 + amount)
        np.minimum(mixed, 255, out=mixed)
        np.copyto(plane, mixed, casting="unsafe")


def _contrast(planes: Planes, amount: float) -> None:
    grey = _grey(planes)
    mean = np.float32(int(grey.sum() / len(grey) + 0.5))
    # each of the 256 shades becomes one other
    shades = _blended(np.arange(256, dtype=np.float32), mean, amount).astype(np.uint8)
    changed = planes.colours.tobytes().translate(shades.tobytes())
    planes.colours[:] = np.frombuffer(changed, np.uint8).reshape(planes.colours.shape)


def _saturate(planes: Planes, amount: float) -> None:
    np.copyto(planes.value, _grey(planes))
    for plane in planes.colours:
        np.copyto(planes.mixed, plane)
        np.copyto(plane, _blended(planes.mixed, planes.value, amount), casting="unsafe")


def _blended(colours: np.ndarray, others: np.ndarray | np.float32, amount: float) -> np.ndarray:
    """Move colours away from others in place, or towards them if the amount is negative."""
    colours -= others
    colours *= np.float32(1 + amount)
    colours += others
    if amount > 0:
        np.maximum(colours, 0, out=colours)
        np.minimum(colours, 255, out=colours)
    return colours


def _grey(planes: Planes) -> np.ndarray:
    """Return the shades of grey (n,)."""
    grey = planes.grey
    grey.fill(0x8000)
    for plane, weight in zip(planes.colours, LUMA, strict=True):
        grey += np.multiply(plane, weight, out=planes.term, dtype=np.int32)
    grey >>= 16
    return grey


def _shift_hue(planes: Planes, amount: float) -> None:
    """Rotate the hue by a share of the colour wheel; it is a byte, which wraps around."""
    hue, saturation = to_hsv(planes)
    hue += np.array(amount * 255).astype(np.int32).astype(np.uint8)
    to_rgb(planes, hue, saturation)


def to_hsv(planes: Planes) -> tuple[np.ndarray, np.ndarray]:
    """Return hue and saturation (n,) as Pillow does, from tables; the value is ``planes.high``."""
    hues, saturations = hsv_tables()
    red, green, blue = planes.colours
    high, low = planes.high, planes.low
    np.maximum(np.maximum(red, green, out=high), blue, out=high)
    np.minimum(np.minimum(red, green, out=low), blue, out=low)
    np.subtract(high, low, out=planes.span)
    # how far the other two are apart, plus the first row of the strongest colour in the table
    apart, other = planes.apart, planes.other
    for first, second, strongest, start in (
        (red, green, None, 1277),
        (blue, red, green, 766),
        (green, blue, red, 255),
    ):
        np.subtract(first, second, out=other, dtype=np.int16)
        other += np.int16(start)
        np.copyto(apart, other, where=True if strongest is None else strongest == high)
    index = planes.index
    np.multiply(apart, 256, out=index, dtype=np.intp)
    index += planes.span
    hue = hues.take(index, mode="clip")
    return hue, saturations.take(_joined(planes, high, low), mode="clip", out=planes.byte)


def to_rgb(planes: Planes, hue: np.ndarray, saturation: np.ndarray) -> None:
    """Set the colours of a hue and a saturation (n,) as Pillow does, from tables."""
    np.copyto(planes.value, planes.high)
    place = _joined(planes, hue, saturation)
    for plane, shares in zip(planes.colours, rgb_shares(), strict=True):
        share = shares.take(place, mode="clip", out=planes.mixed)
        share *= planes.value
        share += np.float32(0.5)
        np.copyto(plane, share, casting="unsafe")


def _joined(planes: Planes, upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """Return the numbers (n,) whose two bytes these are, as an index."""
    planes.pairs[:, 0], planes.pairs[:, 1] = lower, upper
    np.copyto(planes.index, planes.pairs.view("<u2")[:, 0])
    return planes.index


@cache
def hsv_tables() -> tuple[np.ndarray, np.ndarray]:
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
def rgb_shares() -> np.ndarray:
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


_STEPS: tuple[Callable[[Planes, float], None], ...] = (
    _brighten,
    _contrast,
    _saturate,
    _shift_hue,
)
