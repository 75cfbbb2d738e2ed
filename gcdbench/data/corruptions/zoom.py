"""Zoom blur."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from gcdbench.data.corruptions.linear import RowSums, Taps, shown_length, zoom_taps
from gcdbench.data.corruptions.rng import Rng

BLOCK = 16  # rows of the result computed at once, few enough to stay in the cache
CHANNELS = 3
TOLERANCE = np.float32(1e-3)  # of a level: the sum of all rounding errors is smaller


class _Block(NamedTuple):
    """Some rows of the result, the image rows they come from, and the weights in all zooms."""

    result: slice
    source: slice
    weights: np.ndarray  # (source row, zoom and result row)


class _Zooms:
    """The enlargements that are averaged; the image itself, which counts twice, is not included.

    `down` and `across` are the taps (position, zoom) of the two axes.
    """

    def __init__(self, height: int, width: int, severity: int) -> None:
        stops, steps = (1.11, 1.16, 1.21, 1.26, 1.31), (0.01, 0.01, 0.02, 0.02, 0.03)
        factors = np.arange(1, stops[severity - 1], steps[severity - 1])[1:]
        self.count = len(factors)
        self.share = 255 / (self.count + 2)
        self.down, self.across = _centred(height, factors), _centred(width, factors)
        self.blocks = [
            self._block(slice(top, min(top + BLOCK, height))) for top in range(0, height, BLOCK)
        ]
        weights = np.stack([self.across.weight_low, self.across.weight_high], axis=-1) * self.share
        column = np.stack([self.across.low, self.across.high], axis=-1)  # (result, zoom, tap)
        source = column[:, None] * CHANNELS + np.arange(CHANNELS).reshape(-1, 1, 1)
        source = source * self.count + np.arange(self.count)[:, None]
        weights = np.broadcast_to(weights[:, None], source.shape)
        entries = (width * CHANNELS, 2 * self.count)
        self.horizontal = RowSums(source.reshape(entries), weights.reshape(entries))

    def _block(self, result: slice) -> _Block:
        low, high, weight_low, weight_high = (part[result].T for part in self.down)
        source = slice(low.min(), high.max() + 1)
        weights = np.zeros((source.stop - source.start, *low.shape), dtype=np.float32)
        zoom, row = np.indices(low.shape)
        weights[high - source.start, zoom, row] = weight_high
        weights[low - source.start, zoom, row] += weight_low
        return _Block(result, source, weights.reshape(len(weights), -1))


def _centred(length: int, factors: np.ndarray) -> Taps:
    """Return the taps that enlarge an axis about its centre by several factors."""
    zooms = []
    for factor in factors:
        shown = shown_length(length, factor)
        low, high, *weights = (part[:length] for part in zoom_taps(shown, factor))
        margin = (length - shown) // 2
        zooms.append((low + margin, high + margin, *weights))
    return Taps(*(np.stack(part, axis=-1) for part in zip(*zooms, strict=True)))


_zooms = lru_cache(maxsize=32)(_Zooms)


def zoom_blur(image: np.ndarray, severity: int, _: Rng) -> np.ndarray:
    """Average an image and its enlargements.

    The published result is truncated to 8 bits, so a rounding error of single precision can change
    it by a whole level, mostly where the image is flat. The sum is therefore computed in a fast way
    first, and values close to a whole level again in the published order of operations.
    """
    height, width, _channels = image.shape
    zooms = _zooms(height, width, severity)
    values = image.reshape(height, -1).astype(np.float32)
    values /= np.float32(255)
    mean = np.empty_like(values)
    for block in zooms.blocks:
        rows = mean[block.result]
        zoomed = values[block.source].T @ block.weights  # (column and channel, zoom and row)
        rows[:] = (zooms.horizontal @ zoomed.reshape(-1, len(rows))).T
    mean += values * np.float32(2 * zooms.share)
    mean -= TOLERANCE
    cut = mean.astype(np.uint8)
    mean += 2 * TOLERANCE
    doubtful = np.flatnonzero(cut != mean.astype(np.uint8))
    cut.ravel()[doubtful] = _exact(image, values, zooms, doubtful)
    return cut.reshape(image.shape)


def _exact(image: np.ndarray, values: np.ndarray, zooms: _Zooms, places: np.ndarray) -> np.ndarray:
    """Compute the blur at places of the flattened image: zooms in double, their sum in single."""
    here = np.take(values, places)
    if len(places) < image.size // 20:  # testing the whole image would take longer
        layers = _interpolate(values, zooms, places)
    else:
        layers = np.repeat(here[:, None], zooms.count, axis=1)
        mixed = _sees_several_values(image, zooms, places)
        layers[mixed] = _interpolate(values, zooms, places[mixed])
    total = here.copy()
    for layer in layers.T:
        total += layer
    mean = (here + total) / np.float32(zooms.count + 2)
    return (np.clip(mean, 0, 1) * np.float32(255)).astype(np.uint8)


def _interpolate(values: np.ndarray, zooms: _Zooms, places: np.ndarray) -> np.ndarray:
    """Compute (n, zoom) zoomed values at places of the flattened image."""
    stride = values.shape[1]
    row, column, channel = _coordinates(places, stride)
    corner = np.take(zooms.down.low * stride, row, axis=0)
    corner += np.take(zooms.across.low * CHANNELS, column, axis=0)
    corner += channel[:, None]
    top, bottom = (np.take(part, row, axis=0) for part in zooms.down[2:])
    left, right = (np.take(part, column, axis=0) for part in zooms.across[2:])
    zoomed = np.zeros(corner.shape)
    for weight_y, weight_x, onwards in (
        (top, left, CHANNELS),
        (top, right, stride - CHANNELS),
        (bottom, left, CHANNELS),
        (bottom, right, 0),
    ):
        # outside of the image the weight is zero, whatever value is read there
        part = np.take(values, corner, mode="clip") * weight_y
        part *= weight_x
        zoomed += part
        corner += onwards
    return zoomed.astype(np.float32)


def _coordinates(places: np.ndarray, stride: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the row, column and channel of places of the flattened image."""
    row, place = np.divmod(places, stride)
    return row, *np.divmod(place, CHANNELS)


def _sees_several_values(image: np.ndarray, zooms: _Zooms, places: np.ndarray) -> np.ndarray:
    """Return for each place whether the zooms may mix different values; false alarms can occur."""
    height, width, channels = image.shape
    changes = np.zeros((height + 1, width + 1, channels), dtype=np.int32)
    changes[1:-1, 1:] = image[1:] != image[:-1]
    changes[1:, 1:-1] |= image[:, 1:] != image[:, :-1]
    changes.cumsum(axis=0, out=changes).cumsum(axis=1, out=changes)
    row, column, channel = _coordinates(places, width * channels)
    top, bottom, beyond_row = (part[row] for part in _span(zooms.down))
    left, right, beyond_column = (part[column] for part in _span(zooms.across))
    seen = changes[bottom, right, channel] - changes[top, right, channel]
    seen -= changes[bottom, left, channel] - changes[top, left, channel]
    return (seen > 0) | beyond_row | beyond_column


def _span(taps: Taps) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the first source position, the one after the last, and whether any is outside."""
    here = np.arange(len(taps.low))
    first = np.minimum(taps.low.min(axis=1), here)
    last = np.maximum(taps.high.max(axis=1), here)
    return first, last + 1, (taps.weight_low + taps.weight_high == 0).any(axis=1)
