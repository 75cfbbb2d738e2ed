"""Sparse linear filters: weighted sums of rows, and enlarging by interpolation."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class RowSums:
    """A sparse matrix with the same number of entries in every row.

    `torch.embedding_bag` computes the product with the whole sum in registers, in a third to half
    the time of a general sparse matrix. Torch is imported late: a plan only reads the names of the
    corruptions.
    """

    def __init__(self, source: np.ndarray, weights: np.ndarray) -> None:
        """Take the (row, entry) columns and values of the entries."""
        import torch

        rows, entries = source.shape
        self._source = torch.from_numpy(source.astype(np.int32).ravel())
        self._weights = torch.from_numpy(weights.astype(np.float32).ravel())
        self._starts = torch.arange(0, rows * entries, entries, dtype=torch.int32)

    def __matmul__(self, values: np.ndarray) -> np.ndarray:
        """Multiply by a contiguous matrix in single precision."""
        import torch

        sums, *_ = torch.embedding_bag(
            torch.from_numpy(values),
            self._source,
            self._starts,
            per_sample_weights=self._weights,
        )
        return sums.numpy()


class Taps(NamedTuple):
    """Linear interpolation: for each result two source positions and their weights."""

    low: np.ndarray
    high: np.ndarray
    weight_low: np.ndarray
    weight_high: np.ndarray

    def sums(self) -> RowSums:
        """Write the interpolation as a matrix."""
        source = np.stack([self.low, self.high], axis=-1)
        return RowSums(source, np.stack([self.weight_low, self.weight_high], axis=-1))


def shown_length(length: int, factor: float) -> int:
    """Return how many of `length` values remain in view after a zoom by `factor`."""
    return math.ceil(length / factor)


def zoom_taps(shown: int, factor: float) -> Taps:
    """Return the taps that enlarge `shown` values by a factor; the end values stay at the ends.

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


def separable(rows: RowSums, columns: RowSums, plane: np.ndarray) -> np.ndarray:
    """Filter a plane along both axes: rows @ plane @ columns.T.

    One transposition is enough because the result may be stored in the other memory order.
    """
    if plane.flags.f_contiguous:
        return rows @ np.ascontiguousarray((columns @ plane.T).T)
    return (columns @ np.ascontiguousarray((rows @ plane).T)).T
