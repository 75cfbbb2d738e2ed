"""Spatter: drops of water (severities 1 to 3) and splashes of mud (4 and 5)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from scipy import ndimage, sparse

from gcdbench.data.corruptions.chance import Chance
from gcdbench.data.corruptions.zoom import separable

WATER = np.array([175, 238, 238], dtype=np.float32)  # pale turquoise
MUD = np.array([63, 42, 20], dtype=np.float32)


def spatter(image: np.ndarray, severity: int, chance: Chance) -> np.ndarray:
    """Add drops where blurred noise is high; without a drop the image stays as it is."""
    mean, spread, sigma, threshold, strength = (
        (0.65, 0.3, 4.0, 0.69, 0.6),
        (0.65, 0.3, 3.0, 0.68, 0.6),
        (0.65, 0.3, 2.0, 0.68, 0.5),
        (0.65, 0.3, 1.0, 0.65, 1.5),
        (0.67, 0.4, 1.0, 0.65, 1.5),
    )[severity - 1]
    noise = chance.normal(image.shape[:2]) * np.float32(spread) + np.float32(mean)
    liquid = blur(noise, sigma)
    if severity <= 3:
        liquid[liquid < threshold] = 0
        return _add_water(image, liquid, strength)
    return _add_mud(image, blur((liquid > threshold).astype(np.float32), strength))


def _add_water(image: np.ndarray, liquid: np.ndarray, strength: float) -> np.ndarray:
    depth = (liquid * 255).astype(np.uint8)
    relief = depth * _bevel(depth).astype(np.float32)
    if not relief.any():
        return image.copy()
    wet = np.nonzero(relief)
    light = relief[wet] * np.float32(strength / relief.max())
    result = image.copy()
    result[wet] = np.minimum(image[wet] + light[:, None] * WATER, 255)
    return result


def _add_mud(image: np.ndarray, cover: np.ndarray) -> np.ndarray:
    dirty = np.nonzero(cover >= 0.8)
    share = cover[dirty][:, None]
    result = image.copy()
    result[dirty] = np.minimum(image[dirty] * (1 - share) + share * MUD, 255)
    return result


def blur(plane: np.ndarray, sigma: float) -> np.ndarray:
    """Blur a plane by a Gaussian cut at 4 sigma, its edge continued outwards."""
    return separable(*(_gaussian_operator(length, sigma) for length in plane.shape), plane)


@lru_cache(maxsize=64)
def _gaussian_operator(length: int, sigma: float) -> sparse.csr_array:
    radius = int(4 * sigma + 0.5)
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 / sigma**2 * offsets**2)
    target, source = np.broadcast_arrays(
        np.arange(length)[:, None], np.arange(length)[:, None] + offsets
    )
    values = np.broadcast_to(weights / weights.sum(), source.shape)
    places = target.ravel(), np.clip(source, 0, length - 1).ravel()
    matrix = sparse.coo_array((values.ravel(), places), shape=(length, length))
    return matrix.tocsr().astype(np.float32)


def _bevel(depth: np.ndarray) -> np.ndarray:
    """Light the rims of drops: an embossed map of the distance to their edges."""
    distance = chamfer_distance(canny(depth, low=50, high=150), reach=20)
    height = equalise(_box_sum(distance).__truediv__(9).astype(np.uint8))
    padded = np.pad(height, 1, mode="reflect").astype(np.int16)
    lit = (
        padded[1:-1, 1:-1] - 2 * padded[:-2, :-2] - padded[:-2, 1:-1] - padded[1:-1, :-2]
    )  # the kernel (-2 -1 0; -1 1 1; 0 1 2)
    lit += padded[1:-1, 2:] + padded[2:, 1:-1] + 2 * padded[2:, 2:]
    return np.rint(_box_sum(np.clip(lit, 0, 255)) / 9).astype(np.uint8)


def _box_sum(plane: np.ndarray) -> np.ndarray:
    """Sum every 3 x 3 neighbourhood, mirrored at the border without repeating it."""
    padded = np.pad(plane, 1, mode="reflect")
    rows = padded[:-2] + padded[1:-1] + padded[2:]
    return rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]


def equalise(plane: np.ndarray) -> np.ndarray:
    """Spread the grey levels of an 8-bit plane evenly, the lowest to 0 and the highest to 255."""
    counts = np.bincount(plane.ravel(), minlength=256)
    above_lowest = plane.size - counts[counts.nonzero()[0][0]]
    if above_lowest == 0:
        return plane
    rank = np.cumsum(counts) - (plane.size - above_lowest)
    return np.rint(np.maximum(rank, 0) * (255 / above_lowest)).astype(np.uint8)[plane]


def canny(plane: np.ndarray, *, low: int, high: int) -> np.ndarray:
    """Mark the edges of an 8-bit plane (Canny; 3 x 3 Sobel, |dx| + |dy| as the strength)."""
    padded = np.pad(plane, 1, mode="edge").astype(np.int16)
    rows = padded[:-2] + 2 * padded[1:-1] + padded[2:]
    columns = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    dx, dy = rows[:, 2:] - rows[:, :-2], columns[2:] - columns[:-2]
    strength = np.pad(np.abs(dx) + np.abs(dy), 1)
    y, x = np.nonzero(strength[1:-1, 1:-1] > low)
    dx, dy = dx[y, x].astype(np.int32), dy[y, x].astype(np.int32)
    flat = np.abs(dy) * 2**15 < np.abs(dx) * 13573  # 13573 / 2^15 is tan 22.5°
    steep = np.abs(dy) * 2**15 > np.abs(dx) * (13573 + 2**16)
    step_y = np.where(flat, 0, 1)
    step_x = np.where(flat, 1, np.where(steep, 0, np.where((dx ^ dy) < 0, -1, 1)))
    here = strength[y + 1, x + 1]
    before, after = strength[y + 1 - step_y, x + 1 - step_x], strength[y + 1 + step_y, x + 1 + step_x]
    crest = (here > before) & np.where(flat | steep, here >= after, here > after)
    edges = np.zeros(plane.shape, dtype=bool)
    edges[y[crest], x[crest]] = True
    strong = crest & (here > high)
    if strong.sum() < crest.sum():  # a weak edge stays where it is joined to a strong one
        parts, count = ndimage.label(edges, structure=np.ones((3, 3)))
        wanted = np.zeros(count + 1, dtype=bool)
        wanted[parts[y[strong], x[strong]]] = True
        edges &= wanted[parts]
    return edges


def chamfer_distance(marked: np.ndarray, *, reach: int) -> np.ndarray:
    """Measure how far every point is from the nearest marked one, at most `reach`.

    The measure is that of the 5 x 5 chamfer mask with steps 1, 1.4 and 2.1969: a norm with a ball
    of 16 sides, hence the greatest of four linear forms of the steps across and down.
    """
    unit = 2**10
    down = np.minimum(_column_distance(marked), reach + 1)
    forms = [(1.0, 0.1969), (0.7969, 0.6031), (0.6031, 0.7969), (0.1969, 1.0)]
    parts = [(across, np.rint(slope * unit * down).astype(np.int16)) for across, slope in forms]
    best = parts[-1][1].copy()
    for step in range(1, min(reach, marked.shape[1] - 1) + 1):
        costs = [part + np.int16(round(across * step * unit)) for across, part in parts]
        cost = np.maximum(np.maximum(costs[0], costs[1]), np.maximum(costs[2], costs[3]))
        np.minimum(best[:, step:], cost[:, :-step], out=best[:, step:])
        np.minimum(best[:, :-step], cost[:, step:], out=best[:, :-step])
    return np.minimum(best, reach * unit) / np.float32(unit)


def _column_distance(marked: np.ndarray) -> np.ndarray:
    """Count the steps to the nearest marked point of the same column."""
    far = 4 * len(marked) + 2**10
    index = np.arange(len(marked), dtype=np.int32)[:, None]
    above = np.maximum.accumulate(np.where(marked, index, -far), axis=0)
    below = np.minimum.accumulate(np.where(marked, index, far)[::-1], axis=0)[::-1]
    return np.minimum(index - above, below - index)
