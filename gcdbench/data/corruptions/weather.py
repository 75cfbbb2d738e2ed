"""Snow, fog and frost."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.linalg.blas import saxpy

from gcdbench.data.corruptions.frost import FrostTextures
from gcdbench.data.corruptions.linear import RowSums, separable, shown_length, zoom_taps
from gcdbench.data.corruptions.noise import LEVELS, pair_index
from gcdbench.data.corruptions.rng import Rng

GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)


def snow(image: np.ndarray, severity: int, rng: Rng) -> np.ndarray:
    """Whiten an image and add motion-blurred flakes twice, the second time rotated by 180°."""
    mean, spread, factor, threshold, radius, sigma, kept = (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    )[severity - 1]
    height, width, _ = image.shape
    shown = shown_length(height, factor), shown_length(width, factor)
    noise = rng.normal(shown) * np.float32(spread) + np.float32(mean)
    rows, columns = (_enlarging(length, factor) for length in shown)
    flakes = np.minimum(separable(rows, columns, noise), 1)
    flakes *= flakes >= threshold
    angle = rng.between(-135, -45)
    flakes = motion_blur(flakes, radius=radius, sigma=sigma, angle=angle)[:height, :width]
    flakes = np.rint(flakes * 255)
    flakes += flakes[::-1, ::-1].copy()
    planes = [image[..., channel].astype(np.float32) for channel in range(3)]
    pale = sum(plane * weight for plane, weight in zip(planes, GREY, strict=True))
    pale *= np.float32(1.5 * (1 - kept))
    pale += np.float32(127.5 * (1 - kept))
    pale += flakes
    whitened = np.empty_like(image)
    for channel, x in enumerate(planes):
        # kept * x + (1 - kept) * max(x, 1.5 * grey + 0.5) is the maximum of two sums
        lighter = x * np.float32(kept)
        lighter += pale
        x += flakes
        np.maximum(x, lighter, out=x)
        whitened[..., channel] = np.clip(x, 0, 255, out=x)
    return whitened


@lru_cache(maxsize=64)
def _enlarging(length: int, factor: float) -> RowSums:
    return zoom_taps(length, factor).sums()


def per_channel(plane: np.ndarray) -> np.ndarray:
    """Copy a plane to three channels: computing with the copies is faster than broadcasting."""
    copies = np.empty((*plane.shape, 3), dtype=plane.dtype)
    for channel in range(3):
        copies[..., channel] = plane
    return copies


def motion_blur(plane: np.ndarray, *, radius: int, sigma: float, angle: float) -> np.ndarray:
    """Blur a plane in one direction, given in degrees; the edge values continue outwards."""
    width = 2 * radius + 1
    weights = np.exp(-(np.arange(width) ** 2) / (2 * sigma**2))
    weights /= weights.sum()
    direction = math.sin(math.radians(angle)), math.cos(math.radians(angle))
    moves = -np.ceil(np.outer(np.arange(width), direction) - 0.5).astype(np.intp)
    # the published blur drops what leaves the image, without renormalising
    moves = moves[(np.abs(moves) < plane.shape).all(axis=1)]
    before, after = moves.max(axis=0), -moves.min(axis=0)
    padded = np.pad(plane, np.stack([before, after], axis=-1), mode="edge")
    stride = padded.shape[1]
    source = padded.ravel()
    blurred = np.zeros(plane.shape[0] * stride, dtype=np.float32)
    run = blurred[: len(blurred) - stride + plane.shape[1]]  # all rows with their margins
    starts = (before - moves) @ (stride, 1)
    for start, weight in zip(starts.tolist(), weights, strict=False):
        saxpy(source[start : start + len(run)], run, a=weight)
    return blurred.reshape(-1, stride)[:, : plane.shape[1]]


def fog(image: np.ndarray, severity: int, rng: Rng) -> np.ndarray:
    """Add a bright cloud and scale the sum back to the range of the image."""
    strength, decay = ((1.5, 2), (2.0, 2), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))[severity - 1]
    height, width, _ = image.shape
    size = 1 << (max(image.shape) - 1).bit_length()
    brightest = float(image.max()) / 255
    scale = brightest / (brightest + strength)
    cloud = plasma(size, decay, rng)[:height, :width] * np.float32(255 * strength * scale)
    x = image.astype(np.float32)
    x *= np.float32(scale)
    x += per_channel(cloud)
    return x.astype(np.uint8)


def plasma(size: int, decay: float, rng: Rng) -> np.ndarray:
    """Return a (size, size) periodic cloud in [0, 1] by the diamond-square rule; size is 2^k.

    A new point is the mean of its four neighbours on the coarser grid plus uniform noise, whose
    range is divided by decay squared from grid to grid.
    """
    grid = np.zeros((1, 1), dtype=np.float32)
    reach = 100.0**2
    while (length := len(grid)) < size:
        jitter = rng.uniform((3, length, length))
        jitter *= np.float32(reach)
        corners = _wrapped(grid)
        below, right = corners[1:, :-1], corners[:-1, 1:]
        square = _mean(grid, below, right, corners[1:, 1:]) + jitter[0]
        centres = _wrapped(square[::-1, ::-1])[::-1, ::-1]
        fine = np.empty((2 * length, 2 * length), dtype=np.float32)
        fine[::2, ::2], fine[1::2, 1::2] = grid, square
        fine[::2, 1::2] = _mean(square, centres[:-1, 1:], grid, right) + jitter[1]
        fine[1::2, ::2] = _mean(square, centres[1:, :-1], grid, below) + jitter[2]
        grid, reach = fine, reach / decay**2
    grid -= grid.min()
    grid /= grid.max()
    return grid


def _wrapped(plane: np.ndarray) -> np.ndarray:
    """Append the first row and the first column of a square plane at its end."""
    wrapped = np.empty((len(plane) + 1, len(plane) + 1), dtype=plane.dtype)
    wrapped[:-1, :-1], wrapped[-1, :-1] = plane, plane[0]
    wrapped[:, -1] = wrapped[:, 0]
    return wrapped


def _mean(one: np.ndarray, two: np.ndarray, three: np.ndarray, four: np.ndarray) -> np.ndarray:
    return (one + two + (three + four)) * np.float32(0.25)


def frost_over(image: np.ndarray, severity: int, rng: Rng, textures: FrostTextures) -> np.ndarray:
    """Mix an image with a random crop of a picture of ice."""
    frost = textures.piece(image.shape[0], image.shape[1], rng)
    mixed = np.take(_frost_table(severity), pair_index(image.ravel(), frost.ravel()))
    return mixed.reshape(image.shape)


@lru_cache(maxsize=5)
def _frost_table(severity: int) -> np.ndarray:
    """Tabulate the mixture of every grey level with every level of the frost."""
    of_image, of_frost = ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))[severity - 1]
    level = np.arange(LEVELS)
    return np.clip(of_image * level[:, None] + of_frost * level, 0, 255).astype(np.uint8).ravel()
