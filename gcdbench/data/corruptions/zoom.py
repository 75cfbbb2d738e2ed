"""Zoom blur, and enlarging by linear interpolation."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import sparse

from gcdbench.data.corruptions.chance import Chance


class Taps(NamedTuple):
    """Linear interpolation along one axis: for each result two source positions and weights."""

    low: np.ndarray
    high: np.ndarray
    weight_low: np.ndarray
    weight_high: np.ndarray

    def operator(self, length: int) -> sparse.csr_array:
        """Write the interpolation of `length` values as a matrix."""
        count = len(self.low)
        weights = np.stack([self.weight_low, self.weight_high], axis=1).astype(np.float32)
        source = np.stack([self.low, self.high], axis=1).astype(np.int32)
        starts = np.arange(0, 2 * count + 1, 2, dtype=np.int32)
        return sparse.csr_array((weights.ravel(), source.ravel(), starts), shape=(count, length))


def shown_length(length: int, factor: float) -> int:
    """Count how many of `length` values remain in view after a zoom by `factor`."""
    return math.ceil(length / factor)


def zoom_taps(shown: int, factor: float) -> Taps:
    """Enlarge `shown` values by a factor; the first and the last keep the ends.

    The ends follow `scipy.ndimage.zoom` to the last bit: where rounding puts the last position
    beyond the last value, the result there is zero.
    """
    size = round(shown * factor)
    step = (shown - 1) / (size - 1) if size > 1 else 1.0
    position = step * np.arange(size)
    inside = position <= shown - 1
    low = np.minimum(position.astype(np.intp), shown - 1)
    share = position - low
    weights = np.where(inside, 1 - share, 0.0), np.where(inside, share, 0.0)
    return Taps(low, np.minimum(low + 1, shown - 1), *weights)


def separable(rows: sparse.csr_array, columns: sparse.csr_array, plane: np.ndarray) -> np.ndarray:
    """Filter a plane along both axes: rows @ plane @ columns.T."""
    return (columns @ np.ascontiguousarray((rows @ plane).T)).T


class _Zooms:
    """All enlargements of one axis about its centre: taps (zoom, position) and matrices."""

    def __init__(self, length: int, severity: int) -> None:
        stop, step = ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03))[
            severity - 1
        ]
        each = [self._centred(length, factor) for factor in np.arange(1, stop, step)]
        self.operators = [taps.operator(length) for taps in each]
        self.taps = Taps(*(np.stack(part) for part in zip(*each, strict=True)))
        here = np.arange(length)
        self.first = np.minimum(self.taps.low.min(axis=0), here)
        self.last = np.maximum(self.taps.high.max(axis=0), here)
        self.inside = (self.taps.weight_low + self.taps.weight_high > 0).all(axis=0)

    @staticmethod
    def _centred(length: int, factor: float) -> Taps:
        shown = shown_length(length, factor)
        low, high, *weights = (part[:length] for part in zoom_taps(shown, factor))
        margin = (length - shown) // 2
        return Taps(low + margin, high + margin, *weights)


_zooms = lru_cache(maxsize=128)(_Zooms)


def zoom_blur(image: np.ndarray, severity: int, _: Chance) -> np.ndarray:
    """Average an image and its enlargements.

    The published result is cut to 8 bits, so that a rounding error of single precision can cost a
    whole level, above all where the image is flat. The sum is therefore made fast, and what comes
    close to a whole level is made again in the published order of operations.
    """
    height, width, _channels = image.shape
    down, across = _zooms(height, severity), _zooms(width, severity)
    rows = np.ascontiguousarray(image.transpose(0, 2, 1)).reshape(height, -1).astype(np.float32)
    total = image.transpose(1, 2, 0).reshape(width, -1).astype(np.float32)  # column, channel, row
    for vertical, horizontal in zip(down.operators, across.operators, strict=True):
        zoomed = (vertical @ rows).reshape(height, 3, width).transpose(2, 1, 0)
        total += horizontal @ np.ascontiguousarray(zoomed).reshape(width, -1)
    total *= np.float32(1 / (len(down.operators) + 1))
    cut = total.astype(np.uint8).reshape(width, 3, height)
    doubtful = np.flatnonzero(np.abs(total - np.rint(total)) < 1e-3)
    column, channel, row = np.unravel_index(doubtful, cut.shape)
    cut[column, channel, row] = _exact(image, down, across, np.stack([row, column, channel]))
    return np.ascontiguousarray(cut.transpose(2, 0, 1))


def _exact(image: np.ndarray, down: _Zooms, across: _Zooms, places: np.ndarray) -> np.ndarray:
    """Compute the blur at (3, n) places: zooms in double, their sum in single precision."""
    level = (np.arange(256) / 255).astype(np.float32)
    here = level[image[tuple(places)]]
    mixed = np.flatnonzero(_sees_several_values(image, down, across, places))
    row, column, channel = places[:, mixed]
    top, bottom, weight_top, weight_bottom = (part[:, row] for part in down.taps)
    left, right, weight_left, weight_right = (part[:, column] for part in across.taps)
    zooms = np.zeros(top.shape)
    for y, weight_y in ((top, weight_top), (bottom, weight_bottom)):
        for x, weight_x in ((left, weight_left), (right, weight_right)):
            zooms += level[image[y, x, channel]].astype(np.float64) * weight_y * weight_x
    total = np.zeros_like(here)
    for zoom in zooms.astype(np.float32):
        layer = here.copy()
        layer[mixed] = zoom
        total += layer
    mean = (here + total) / np.float32(len(zooms) + 1)
    return (np.clip(mean, 0, 1) * np.float32(255)).astype(np.uint8)


def _sees_several_values(
    image: np.ndarray, down: _Zooms, across: _Zooms, places: np.ndarray
) -> np.ndarray:
    """Tell for (3, n) places whether the zooms mix different values there; may say so in vain."""
    if places.shape[1] < 2000:  # then mixing equal values is cheaper than looking for them
        return np.ones(places.shape[1], dtype=bool)
    changes = np.zeros((image.shape[0] + 1, image.shape[1] + 1), dtype=np.int32)
    changes[1:-1, 1:] |= (image[1:] != image[:-1]).any(axis=2)
    changes[1:, 1:-1] |= (image[:, 1:] != image[:, :-1]).any(axis=2)
    np.cumsum(np.cumsum(changes, axis=0, out=changes), axis=1, out=changes)
    row, column, _ = places
    top, bottom, left, right = (
        down.first[row],
        down.last[row] + 1,
        across.first[column],
        across.last[column] + 1,
    )
    inside = (
        changes[bottom, right] - changes[top, right] - changes[bottom, left] + changes[top, left]
    )
    return (inside > 0) | ~(down.inside[row] & across.inside[column])
