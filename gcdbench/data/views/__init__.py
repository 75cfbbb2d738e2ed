"""Turn a resized image into views of several kinds: crops, flips and colours.

A view is a pure function of the image and a few numbers from [0, 1), which the loader draws. Which
kinds there are says ``kinds.py``; a plug-in adds one with ``view_kind``. What is natural for the
images (are they still of the same class when mirrored, or in other colours?) says the dataset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from torch import Tensor

from gcdbench.data.problem import CHANGES, Augment, Change
from gcdbench.data.views.device import Frames
from gcdbench.data.views.kinds import ViewKind, get_kind, view_kind

CROP_SHARE = 0.875  # side of the crop against the shorter side of the resized image: 224 / 256


@dataclass(frozen=True)
class Views:
    """Makes square views; those of most kinds have ``size`` pixels a side."""

    size: int
    augment: Augment = "plain"
    changes: frozenset[Change] = CHANGES  # that leave an image in its class
    patch: int = 16  # sides of smaller views are multiples of it, as the backbone needs them

    @property
    def resized(self) -> int:
        """Shorter side before the crop."""
        return int(self.size / CROP_SHARE)

    @property
    def flips(self) -> bool:
        """Whether a mirrored image is of the same class."""
        return "flip" in self.changes

    @property
    def recolours(self) -> bool:
        """Whether an image in other colours is of the same class."""
        return "colour" in self.changes

    @property
    def plain_recipe(self) -> str:
        """What is done to a plain view."""
        return self.augment if self.flips else f"{self.augment}, no flip"

    def numbers(self, *kinds: str) -> int:
        """Return how many random numbers the most demanding of some kinds of view needs."""
        return max(get_kind(kind).numbers_for(self) for kind in kinds)

    def side(self, kind: str) -> int:
        """Return how many pixels a side views of a kind have."""
        share = get_kind(kind).share
        if share == 1:
            return self.size
        return max(round(self.size * share / self.patch), 1) * self.patch

    def test(self, image: np.ndarray) -> np.ndarray:
        """Return the centre crop of a resized image."""
        top, left = (round((side - self.size) / 2.0) for side in image.shape[:2])
        return image[top : top + self.size, left : left + self.size]

    def train(self, image: np.ndarray, draw: Sequence[float], kind: str = "plain") -> np.ndarray:
        """Return a view of a kind; further numbers than the kind needs are not used."""
        needed = self.numbers(kind)
        if len(draw) < needed:
            raise ValueError(f"a {kind} view takes {needed} numbers, not {len(draw)}")
        return get_kind(kind).make(image, draw, self.side(kind), self)

    def on_device(self, *kinds: str) -> bool:
        """Return whether views of all these kinds can be made on a GPU."""
        return all(get_kind(kind).on_device is not None for kind in kinds)

    def train_all(self, frames: Frames, draws: np.ndarray, kinds: Sequence[str]) -> list[Tensor]:
        """Return the views of frames on their device, (b, 3, h, w) bytes for each of the kinds.

        Views of the same kind that follow each other are made at once.
        """
        found: list[Tensor] = []
        for kind, group in groupby(range(len(kinds)), lambda view: kinds[view]):
            places, make = list(group), get_kind(kind).on_device
            assert make is not None
            several = frames.repeated(len(places))
            numbers = draws[places].reshape(-1, draws.shape[2])
            made = make(several, numbers, self.side(kind), self)
            found += made.unflatten(0, (len(places), -1)).unbind()
        return found


__all__ = ["CROP_SHARE", "Frames", "ViewKind", "Views", "view_kind"]
