"""Zoom blur, and enlarging by linear interpolation."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy import sparse

from gcdbench.data.corruptions.chance import Chance

BLOCK = 16  # rows worked off at once: whole cache lines, and few enough to stay in the cache


class Taps(NamedTuple):
    """Linear interpolation: for each result two source positions and their weights."""

    low: np.ndarray
    high: np.ndarray
    weight_low: np.ndarray
    weight_high: np.ndarray

    def operator(self, length: int) -> sparse.csr_array:
        """Write the interpolation of `length` values as a matrix."""
        source = np.stack([self.low, self.high], axis=-1).reshape(-1, 2)
        weights = np.stack([self.weight_low, self.weight_high], axis=-1).reshape(-1, 2)
        return _matrix(source, weights, length)


def _matrix(source: np.ndarray, weights: np.ndarray, length: int) -> sparse.csr_array:
    """Make a matrix from the (row, entry) columns and values of its entries."""
    rows, entries = source.shape
    starts = np.arange(0, rows * entries + 1, entries, dtype=np.int32)
    values = weights.ravel().astype(np.float32), source.ravel().astype(np.int32), starts
    return sparse.csr_array(values, shape=(rows, length))


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
    """The enlargements that are averaged, without the first, which is the image itself.

    `down` and `across` are the taps (zoom, position) of the two axes. As matrices, the former come
    in blocks of rows with all zooms together.
    """

    def __init__(self, height: int, width: int, severity: int) -> None:
        stops, steps = (1.11, 1.16, 1.21, 1.26, 1.31), (0.01, 0.01, 0.02, 0.02, 0.03)
        factors = np.arange(1, stops[severity - 1], steps[severity - 1])[1:]
        self.count = len(factors)
        self.down, self.across = _centred(height, factors), _centred(width, factors)
        self.vertical = [
            Taps(*(part[:, top : top + BLOCK] for part in self.down)).operator(height)
            for top in range(0, height, BLOCK)
        ]
        shift = width * np.arange(self.count)[:, None]  # all zooms side by side
        source = np.stack([self.across.low + shift, self.across.high + shift])
        weights = np.stack([self.across.weight_low, self.across.weight_high])
        source, weights = (part.transpose(2, 1, 0).reshape(width, -1) for part in (source, weights))
        self.horizontal = _matrix(source, weights, width * self.count)


def _centred(length: int, factors: np.ndarray) -> Taps:
    """Enlarge an axis about its centre by several factors."""
    zooms = []
    for factor in factors:
        shown = shown_length(length, factor)
        low, high, *weights = (part[:length] for part in zoom_taps(shown, factor))
        margin = (length - shown) // 2
        zooms.append((low + margin, high + margin, *weights))
    return Taps(*(np.stack(part) for part in zip(*zooms, strict=True)))


_zooms = lru_cache(maxsize=32)(_Zooms)


def zoom_blur(image: np.ndarray, severity: int, _: Chance) -> np.ndarray:
    """Average an image and its enlargements.

    The published result is cut to 8 bits, so that a rounding error of single precision can cost a
    whole level, above all where the image is flat. The sum is therefore made fast, and what comes
    close to a whole level is made again in the published order of operations.
    """
    height, width, _channels = image.shape
    zooms = _zooms(height, width, severity)
    rows = np.ascontiguousarray(image.transpose(0, 2, 1)).reshape(height, -1).astype(np.float32)
    mean = np.empty((width, 3, height), dtype=np.float32)
    top = 0
    for vertical in zooms.vertical:
        zoomed = (vertical @ rows).reshape(zooms.count, -1, 3, width).transpose(0, 3, 2, 1)
        bottom = top + zoomed.shape[3]
        total = zooms.horizontal @ np.ascontiguousarray(zoomed).reshape(zooms.count * width, -1)
        mean[:, :, top:bottom] = total.reshape(width, 3, -1)
        top = bottom
    mean += np.ascontiguousarray(image.transpose(1, 2, 0)) * np.float32(2)
    mean *= np.float32(1 / (zooms.count + 2))
    cut = mean.astype(np.uint8)
    doubtful = np.flatnonzero(np.abs(mean - np.rint(mean)) < 1e-3)
    column, channel, row = np.unravel_index(doubtful, cut.shape)
    cut[column, channel, row] = _exact(image, zooms, np.stack([row, column, channel]))
    return np.ascontiguousarray(cut.transpose(2, 0, 1))


def _exact(image: np.ndarray, zooms: _Zooms, places: np.ndarray) -> np.ndarray:
    """Compute the blur at (3, n) places: zooms in double, their sum in single precision."""
    level = (np.arange(256) / 255).astype(np.float32)
    here = level[image[tuple(places)]]
    mixed = np.flatnonzero(_sees_several_values(image, zooms, places))
    total = here.copy()
    for zoomed in _interpolate(image, level, zooms, places[:, mixed]):
        layer = here.copy()
        layer[mixed] = zoomed
        total += layer
    mean = (here + total) / np.float32(zooms.count + 2)
    return (np.clip(mean, 0, 1) * np.float32(255)).astype(np.uint8)


def _interpolate(
    image: np.ndarray, level: np.ndarray, zooms: _Zooms, places: np.ndarray
) -> np.ndarray:
    """Compute (zoom, n) zoomed values at (3, n) places."""
    row, column, channel = places
    _, width, channels = image.shape
    top, bottom, weight_top, weight_bottom = (np.take(part, row, axis=1) for part in zooms.down)
    left, right, weight_left, weight_right = (
        np.take(part, column, axis=1) for part in zooms.across
    )
    zoomed = np.zeros(top.shape)
    for y, weight_y in ((top, weight_top), (bottom, weight_bottom)):
        for x, weight_x in ((left, weight_left), (right, weight_right)):
            corner = np.take(level, np.take(image, (y * width + x) * channels + channel))
            zoomed += corner * weight_y * weight_x
    return zoomed.astype(np.float32)


def _sees_several_values(image: np.ndarray, zooms: _Zooms, places: np.ndarray) -> np.ndarray:
    """Tell for (3, n) places whether the zooms mix different values there; may say so in vain."""
    if places.shape[1] < image.size // 20:  # a look at all of the image would cost more
        return np.ones(places.shape[1], dtype=bool)
    height, width, channels = image.shape
    changes = np.zeros((height + 1, width + 1, channels), dtype=np.int32)
    changes[1:-1, 1:] = image[1:] != image[:-1]
    changes[1:, 1:-1] |= image[:, 1:] != image[:, :-1]
    changes.cumsum(axis=0, out=changes).cumsum(axis=1, out=changes)
    row, column, channel = places
    top, bottom, beyond_row = (part[row] for part in _span(zooms.down))
    left, right, beyond_column = (part[column] for part in _span(zooms.across))
    seen = changes[bottom, right, channel] - changes[top, right, channel]
    seen -= changes[bottom, left, channel] - changes[top, left, channel]
    return (seen > 0) | beyond_row | beyond_column


def _span(taps: Taps) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give the first source position, the one after the last, and whether any lies beyond."""
    here = np.arange(taps.low.shape[1])
    first = np.minimum(taps.low.min(axis=0), here)
    last = np.maximum(taps.high.max(axis=0), here)
    return first, last + 1, (taps.weight_low + taps.weight_high == 0).any(axis=0)
