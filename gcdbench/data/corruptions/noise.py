"""Gaussian, shot, impulse and speckle noise.

All four treat every value of an image in the same way and independently. Such noise is a channel:
for each of the 256 grey levels x, a distribution over the 256 results, which the published formula
gives in closed form. Walker's alias method draws from it in constant time for any formula.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, pdtr

from gcdbench.data.corruptions.rng import Rng

LEVELS = 256


def _gaussian_channel(severity: int) -> np.ndarray:
    """Return the channel x + N(0, c²), clipped to [0, 1]."""
    spread = (0.08, 0.12, 0.18, 0.26, 0.38)[severity - 1]
    return _normal_channel(np.full(LEVELS, spread))


def _speckle_channel(severity: int) -> np.ndarray:
    """Return the channel x + x N(0, c²), clipped to [0, 1]."""
    spread = (0.15, 0.2, 0.35, 0.45, 0.6)[severity - 1]
    return _normal_channel(np.arange(LEVELS) / 255 * spread)


def _normal_channel(spread: np.ndarray) -> np.ndarray:
    x = np.arange(LEVELS)[:, None] / 255
    next_level = np.arange(1, LEVELS) / 255  # conversion to 8 bits truncates
    at_most = ndtr((next_level - x) / np.maximum(spread, 1e-12)[:, None])
    return np.diff(at_most, axis=1, prepend=0.0, append=1.0)


def _shot_channel(severity: int) -> np.ndarray:
    """Return the channel Poisson(c x) / c, clipped to [0, 1]."""
    photons = (60, 25, 12, 5, 3)[severity - 1]
    x = np.arange(LEVELS)[:, None] / 255
    at_most = pdtr(np.arange(photons), x * photons)  # c photons and more are white
    level = (np.arange(photons + 1) / photons * 255).astype(np.uint8)
    channel = np.zeros((LEVELS, LEVELS))
    channel[:, level] = np.diff(at_most, axis=1, prepend=0.0, append=1.0)
    return channel


def _impulse_channel(severity: int) -> np.ndarray:
    """Return the channel of black or white, each with probability c / 2, else x."""
    amount = (0.03, 0.06, 0.09, 0.17, 0.27)[severity - 1]
    channel = (1 - amount) * np.eye(LEVELS)
    channel[:, [0, 255]] += amount / 2
    return channel


CHANNELS: dict[str, Callable[[int], np.ndarray]] = {
    "gaussian_noise": _gaussian_channel,
    "shot_noise": _shot_channel,
    "impulse_noise": _impulse_channel,
    "speckle_noise": _speckle_channel,
}


def add_noise(image: np.ndarray, corruption: str, severity: int, rng: Rng) -> np.ndarray:
    """Return an image whose values were drawn from one of the `CHANNELS`."""
    slot, chip = rng.integers(2 * image.size, "u1").reshape(2, -1)
    cell = np.take(_cells(corruption, severity), pair_index(image.ravel(), slot))
    alias = cell.astype(np.uint8)
    stays = np.negative((chip < (cell >> 8).astype(np.uint8)).view(np.uint8))  # 0 or 255
    # selected by bit operations: np.where takes three times as long with a random condition
    return (alias ^ ((alias ^ slot) & stays)).reshape(image.shape)


def pair_index(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return the index 256 * first + second of each pair of two 8-bit arrays."""
    index = first.astype(np.uint16)
    index <<= 8
    index |= second
    return index.astype(np.intp)


@lru_cache(maxsize=20)
def _cells(corruption: str, severity: int) -> np.ndarray:
    return alias_cells(CHANNELS[corruption](severity))


def alias_cells(channel: np.ndarray) -> np.ndarray:
    """Return the tables of the alias method for each row of a (256, 256) channel, to 16 bits.

    A row is divided into 65,536 parts, which are distributed over 256 slots of 256 parts; a slot
    holds parts of its own number and of one other, its alias. Cell 256 * level + slot of the result
    has the alias in its low 8 bits and, above them, the number of the slot's own parts (0: all).
    """
    rows = np.arange(LEVELS)
    parts = np.diff(np.rint(np.cumsum(channel, axis=1) * 2**16), axis=1, prepend=0)
    parts = parts.astype(np.int32)
    waiting = parts.copy()
    own = np.zeros((LEVELS, LEVELS), dtype=np.uint16)
    alias = np.tile(rows.astype(np.uint16), (LEVELS, 1))
    for _ in range(LEVELS - 1):  # fill the emptiest slot from the fullest and close it
        poor, rich = waiting.argmin(axis=1), parts.argmax(axis=1)
        missing = LEVELS - parts[rows, poor]
        own[rows, poor] = np.where(missing > 0, parts[rows, poor], 0)
        alias[rows, poor] = np.where(missing > 0, rich, poor)
        parts[rows, rich] -= missing
        waiting[rows, rich] = parts[rows, rich]
        parts[rows, poor], waiting[rows, poor] = -1, 2**30
    return (own << 8 | alias).ravel()
