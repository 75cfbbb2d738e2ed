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

from gcdbench.data.views import device
from gcdbench.data.views.blur import blur, blurred
from gcdbench.data.views.colour import Strengths, jitter, without_colour
from gcdbench.errors import UserError, unknown

if TYPE_CHECKING:
    from torch import Tensor

    from gcdbench.data.views import Views

# image (h, w, 3), numbers, side of the view, what is natural -> view (side, side, 3), all in bytes
MakeView = Callable[[np.ndarray, Sequence[float], int, "Views"], np.ndarray]
# the same for frames on a device and numbers (b, n): (b, 3, side, side) bytes
MakeViews = Callable[[device.Frames, np.ndarray, int, "Views"], "Tensor"]


@dataclass(frozen=True)
class ViewKind:
    """One way to make views."""

    name: str
    make: MakeView
    numbers: int | Callable[[Views], int]  # that a view needs
    share: float = 1.0  # side of a view against that of the images that the backbone takes
    on_device: MakeViews | None = None  # None: views are made on the CPU

    def numbers_for(self, views: Views) -> int:
        """Return how many numbers a view needs."""
        return self.numbers if isinstance(self.numbers, int) else self.numbers(views)


_KINDS: dict[str, ViewKind] = {}


def view_kind(
    name: str,
    *,
    numbers: int | Callable[[Views], int],
    share: float = 1.0,
    on_device: MakeViews | None = None,
) -> Callable[[MakeView], MakeView]:
    """Return a decorator that adds a kind of view under a name.

    The function is given a resized image (h, w, 3), ``numbers`` random numbers from [0, 1), the
    side of the view, which is ``share`` of the usual one, and a ``Views``, which says whether flips
    and other colours are natural for the images; it returns a view (side, side, 3), in bytes.
    ``on_device`` makes the same views of a batch on a GPU; without it they are made on the CPU.
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
        _KINDS[name] = ViewKind(name, make, numbers, share, on_device)
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


def _weak_on_device(frames: device.Frames, draw: np.ndarray, side: int, views: Views) -> Tensor:
    return device.crops(frames, draw[:, :3], side, flips=views.flips)


def _plain_on_device(frames: device.Frames, draw: np.ndarray, side: int, views: Views) -> Tensor:
    images = _weak_on_device(frames, draw, side, views)
    if views.augment == "plain":
        return images
    return device.greyed(device.jitter(images, draw[:, 3:8], JITTER), draw[:, 8] < GREY)


@view_kind(
    "plain",
    numbers=lambda views: 3 if views.augment == "plain" else 9,
    on_device=_plain_on_device,
)
def plain(image: np.ndarray, draw: Sequence[float], side: int, views: Views) -> np.ndarray:
    """Return a random crop, randomly flipped and, on DomainNet, recoloured."""
    if views.augment == "plain":
        return weak(image, draw, side, views)
    crop = random_crop(image, draw, side)
    return recolour(crop[:, ::-1] if draw[2] < 0.5 and views.flips else crop, draw[3:])


@view_kind("weak", numbers=3, on_device=_weak_on_device)
def weak(image: np.ndarray, draw: Sequence[float], side: int, views: Views) -> np.ndarray:
    """Return a random crop, randomly flipped."""
    crop = random_crop(image, draw, side)
    return mirrored(crop) if draw[2] < 0.5 and views.flips else crop


def random_crop(image: np.ndarray, draw: Sequence[float], side: int) -> np.ndarray:
    """Return a random crop, without a copy."""
    height, width = image.shape[:2]
    top = int(draw[0] * (height - side + 1))
    left = int(draw[1] * (width - side + 1))
    return image[top : top + side, left : left + side]


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


def resized(image: np.ndarray, side: int) -> np.ndarray:
    """Resize to a square, bilinear and antialiased: across, then down.

    In one call the order would be Pillow's choice, which is that of its version.
    """
    across = Image.fromarray(image).resize((side, len(image)), Image.Resampling.BILINEAR)
    return np.asarray(across.resize((side, side), Image.Resampling.BILINEAR))


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
        view = resized(image[top : top + height, left : left + width], side)
        if draw[4] < 0.5 and views.flips:
            view = mirrored(view)
        if draw[5] < self.jittered and views.recolours:
            view = jitter(view, draw[6:11], self.jitter)
        if draw[11] < self.grey and views.recolours:
            view = without_colour(view)
        return blurred(view, self.sigma_of(draw[13], side)) if draw[12] < self.blurred else view

    def make_on_device(
        self, frames: device.Frames, draw: np.ndarray, side: int, views: Views
    ) -> Tensor:
        """Return the same views of a batch, within one grey level."""
        shapes = zip(draw, frames.heights.tolist(), frames.widths.tolist(), strict=True)
        boxes = np.array([self.box(numbers, height, width) for numbers, height, width in shapes])
        images = device.resized_crops(frames, boxes, (draw[:, 4] < 0.5) & views.flips, side)
        if views.recolours:
            rows = np.flatnonzero(draw[:, 5] < self.jittered)
            images = device.changed(
                images, rows, lambda some: device.jitter(some, draw[rows, 6:11], self.jitter)
            )
            images = device.greyed(images, draw[:, 11] < self.grey)
        soft = np.flatnonzero(draw[:, 12] < self.blurred)
        widths = [self.sigma_of(number, side) for number in draw[soft, 13]]
        return device.changed(images, soft, lambda some: blur(some, widths))

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
view_kind("strong", numbers=14, on_device=STRONG.make_on_device)(STRONG.make)
view_kind("small", numbers=14, share=3 / 7, on_device=SMALL.make_on_device)(SMALL.make)
