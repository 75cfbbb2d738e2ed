"""The random number generator of the corruptions."""

from __future__ import annotations

import hashlib
import math
from functools import lru_cache
from typing import Protocol

import numpy as np
from scipy.special import ndtri


class Rng(Protocol):
    """What the corruptions need of a random number generator."""

    def integers(self, count: int, dtype: str) -> np.ndarray:
        """Draw `count` integers over the whole range of an unsigned type such as "<u2"."""
        ...

    def normal(self, shape: tuple[int, ...]) -> np.ndarray:
        """Draw standard normal deviates in single precision."""
        ...

    def uniform(self, shape: tuple[int, ...]) -> np.ndarray:
        """Draw uniform numbers from (-1, 1) in single precision."""
        ...

    def below(self, limit: int) -> int:
        """Draw one of 0 ... limit - 1."""
        ...

    def between(self, low: float, high: float) -> float:
        """Draw one number from [low, high)."""
        ...


class HashedRng:
    """Random numbers that depend on the given words only, on every machine.

    Only the raw stream of SFC64 is used: numpy may change how its `Generator` turns bits into
    normal deviates, but not the bits.
    """

    def __init__(self, *words: object) -> None:
        digest = hashlib.blake2b("\0".join(map(str, words)).encode(), digest_size=16).digest()
        self._source = np.random.SFC64(int.from_bytes(digest, "little"))

    def integers(self, count: int, dtype: str) -> np.ndarray:
        words = -(-count * np.dtype(dtype).itemsize // 8)
        return self._source.random_raw(words).astype("<u8", copy=False).view(dtype)[:count]

    def normal(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.take(_normal_quantiles(), self.integers(math.prod(shape), "<u2")).reshape(shape)

    def uniform(self, shape: tuple[int, ...]) -> np.ndarray:
        draws = self.integers(math.prod(shape), "<u2").astype(np.float32)
        draws *= np.float32(2.0**-15)
        draws -= np.float32(1 - 2.0**-16)
        return draws.reshape(shape)

    def below(self, limit: int) -> int:
        return int(self._source.random_raw()) % limit

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * (int(self._source.random_raw()) >> 11) * 2.0**-53


@lru_cache(maxsize=1)
def _normal_quantiles() -> np.ndarray:
    """Return the medians of 65,536 equally likely intervals of the normal distribution."""
    return ndtri((np.arange(65536) + 0.5) / 65536).astype(np.float32)
