"""Linear filters that look at few values: weighted sums of rows, and enlarging by interpolation."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class RowSums:
    """A sparse matrix, every row of which has equally many entries, to multiply rows of values by.

    `torch.embedding_bag` computes just that with the whole sum in registers, which takes a half to
    a third of the time of a general sparse matrix. It is imported late: a plan reads the names of
    corruptions and computes none.
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


def separable(rows: RowSums, columns: RowSums, plane: np.ndarray) -> np.ndarray:
    """Filter a plane along both axes: rows @ plane @ columns.T.

    One transposition is enough where the result may lie in memory the other way round.
    """
    if plane.flags.f_contiguous:
        return rows @ np.ascontiguousarray((columns @ plane.T).T)
    return (columns @ np.ascontiguousarray((rows @ plane).T)).T
