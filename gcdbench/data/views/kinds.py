"""The kinds of views: how a resized image becomes one, from a few numbers in [0, 1).

    kind    what is done
    plain   random crop at the stored scale, flip; on DomainNet colours and grey, too
    weak    random crop at the stored scale, flip
    strong  random resized crop of half the image or more, flip, colours, grey, blur
    small   the same of less than half the image, 3/7 of the side (96 of 224 pixels)

``plain`` is that of GCD and all methods after it. ``strong`` is the view of UNO's release for large
crops, ``weak`` against ``strong`` is what a mean teacher and its student see; muGCD's own settings
are not published. Resized crops are cut from the image whose shorter side has 256 pixels (for views
of 224), not from the file as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from gcdbench.data.views.blur import blurred
from gcdbench.data.views.colour import Strengths, jitter, without_colour
from gcdbench.errors import UserError, unknown

if TYPE_CHECKING:
    from gcdbench.data.views import Views

# image (h, w, 3), numbers, side of the view, what is natural -> view (side, side, 3), all in bytes
MakeView = Callable[[np.ndarray, Sequence[float], int, "Views"], np.ndarray]


@dataclass(frozen=True)
class ViewKind:
    """One way to make views."""

    name: str
    make: MakeView
    numbers: int | Callable[[Views], int]  # that a view needs
    share: float = 1.0  # side of a view against that of the images that the backbone takes

    def numbers_for(self, views: Views) -> int:
        """Return how many numbers a view needs."""
        return self.numbers if isinstance(self.numbers, int) else self.numbers(views)


_KINDS: dict[str, ViewKind] = {}


def view_kind(
    name: str, *, numbers: int | Callable[[Views], int], share: float = 1.0
) -> Callable[[MakeView], MakeView]:
    """Return a decorator that adds a kind of view under a name.

    The function is given a resized image (h, w, 3), ``numbers`` random numbers from [0, 1), the
    side of the view, which is ``share`` of the usual one, and a ``Views``, which says whether flips
    and other colours are natural for the images; it returns a view (side, side, 3), in bytes.
    """
    if not 0 < share <= 1:
        raise UserError(f"view kind {name!r}: share {share} must be above 0 and at most 1")

    def add(make: MakeView) -> MakeView:
        known = _KINDS.get(name)
        if known is not None and _origin(known.make) != _origin(make):
            raise UserError(
                f"view kind {name!r} is defined twice, in {'.'.join(_origin(known.make))} and "
                f"{'.'.join(_origin(make))}; choose another name"
            )
        _KINDS[name] = ViewKind(name, make, numbers, share)
        return make

    return add


def _origin(make: MakeView) -> tuple[str, str]:
    return make.__module__, make.__qualname__


def get_kind(name: str) -> ViewKind:
    """Return the kind of a name."""
    if name not in _KINDS:
        raise unknown("kind of view", name, _KINDS)
    return _KINDS[name]


# --- crops at the stored scale

JITTER: Strengths = (0.3, 0.3, 0.3, 0.3)  # released code for DomainNet
GREY = 0.1  # probability of a view without colour, released code for DomainNet


@view_kind("plain", numbers=lambda views: 3 if views.augment == "plain" else 9)
def plain(image: np.ndarray, draw: Sequence[float], side: int, views: Views) -> np.ndarray:
    """Return a random crop, randomly flipped and, on DomainNet, recoloured."""
    crop = weak(image, draw, side, views)
    return crop if views.augment == "plain" else recolour(crop, draw[3:])


@view_kind("weak", numbers=3)
def weak(image: np.ndarray, draw: Sequence[float], side: int, views: Views) -> np.ndarray:
    """Return a random crop, randomly flipped."""
    height, width = image.shape[:2]
    top = int(draw[0] * (height - side + 1))
    left = int(draw[1] * (width - side + 1))
    crop = image[top : top + side, left : left + side]
    return mirrored(crop) if draw[2] < 0.5 and views.flips else crop


def recolour(image: np.ndarray, draw: Sequence[float]) -> np.ndarray:
    """Jitter the colours in a random order, then convert some views to grey; six numbers."""
    image = jitter(image, draw, JITTER)
    return without_colour(image) if draw[5] < GREY else image


def mirrored(image: np.ndarray) -> np.ndarray:
    """Swap left and right, channel by channel: all at once takes five times as long."""
    out = np.empty_like(image)
    for channel in range(image.shape[2]):
        out[..., channel] = image[:, ::-1, channel]
    return out


# --- resized crops


@dataclass(frozen=True)
class Recipe:
    """Strengths of a resized, recoloured and blurred crop."""

    scale: tuple[float, float]  # share of the image's area
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width against height
    jitter: Strengths = (0.4, 0.4, 0.2, 0.1)  # brightness, contrast, saturation, hue
    jittered: float = 0.5  # probabilities of the changes
    grey: float = 0.2
    blurred: float = 0.2
    sigma: tuple[float, float] = (0.1, 2.0)  # of the blur, in pixels of a view of 224

    def make(self, image: np.ndarray, draw: Sequence[float], side: int, views: Views) -> np.ndarray:
        """Return a view from 14 numbers."""
        top, left, height, width = self.box(draw[:4], image.shape[0], image.shape[1])
        cut = Image.fromarray(image[top : top + height, left : left + width])
        view = np.asarray(cut.resize((side, side), Image.Resampling.BILINEAR))
        if draw[4] < 0.5 and views.flips:
            view = mirrored(view)
        if draw[5] < self.jittered and views.recolours:
            view = jitter(view, draw[6:11], self.jitter)
        if draw[11] < self.grey and views.recolours:
            view = without_colour(view)
        return blurred(view, self.sigma_of(draw[13], side)) if draw[12] < self.blurred else view

    def box(self, draw: Sequence[float], height: int, width: int) -> tuple[int, int, int, int]:
        """Return top, left, height and width of a crop; one that does not fit is shortened."""
        low, high = self.scale
        area = (low + float(draw[0]) * (high - low)) * height * width
        first, last = map(log, self.ratio)
        ratio = exp(first + float(draw[1]) * (last - first))
        tall, wide = min(round(sqrt(area / ratio)), height), min(round(sqrt(area * ratio)), width)
        tall, wide = max(tall, 1), max(wide, 1)
        top, left = int(draw[2] * (height - tall + 1)), int(draw[3] * (width - wide + 1))
        return top, left, tall, wide

    def sigma_of(self, number: float, side: int) -> float:
        """Return the width of the blur of a view."""
        low, high = self.sigma
        return (low + float(number) * (high - low)) * side / 224


STRONG = Recipe(scale=(0.5, 1.0))  # UNO, as released
SMALL = Recipe(scale=(0.08, 0.5))  # small crops as in SwAV and DINO; colours as the large ones
view_kind("strong", numbers=14)(STRONG.make)
view_kind("small", numbers=14, share=3 / 7)(SMALL.make)
