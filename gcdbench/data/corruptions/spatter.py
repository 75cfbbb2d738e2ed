"""Spatter: drops of water (severities 1 to 3) and splashes of mud (4 and 5)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from PIL import Image

from gcdbench.data.corruptions.linear import RowSums, separable
from gcdbench.data.corruptions.rng import Rng

WATER = np.array([175, 238, 238], dtype=np.float32)  # pale turquoise
MUD = np.array([63, 42, 20], dtype=np.float32)


def spatter(image: np.ndarray, severity: int, rng: Rng) -> np.ndarray:
    """Return an image with liquid where blurred noise is high, and unchanged elsewhere."""
    mean, spread, sigma, threshold, strength = (
        (0.65, 0.3, 4.0, 0.69, 0.6),
        (0.65, 0.3, 3.0, 0.68, 0.6),
        (0.65, 0.3, 2.0, 0.68, 0.5),
        (0.65, 0.3, 1.0, 0.65, 1.5),
        (0.67, 0.4, 1.0, 0.65, 1.5),
    )[severity - 1]
    noise = rng.normal(image.shape[:2]) * np.float32(spread) + np.float32(mean)
    liquid = blur(noise, sigma)
    if severity <= 3:
        drops = (liquid * (liquid >= threshold) * np.float32(255)).astype(np.uint8, order="C")
        return _add_water(image, drops * bevel(drops).astype(np.float32), strength)
    return _add_mud(image, blur((liquid > threshold).astype(np.float32), strength))


def _add_water(image: np.ndarray, relief: np.ndarray, strength: float) -> np.ndarray:
    wet = np.flatnonzero(relief > 0)
    if wet.size == 0:
        return image.copy()
    light = np.take(relief, wet) * np.float32(strength / float(relief.max()))
    return _splash(image, wet, np.float32(1), light, WATER)


def _add_mud(image: np.ndarray, cover: np.ndarray) -> np.ndarray:
    dirty = np.flatnonzero(cover >= np.float32(0.8))
    share = np.take(cover, dirty)
    return _splash(image, dirty, 1 - share, share, MUD)


def _splash(
    image: np.ndarray,
    place: np.ndarray,
    kept: np.ndarray | np.float32,
    share: np.ndarray,
    colour: np.ndarray,
) -> np.ndarray:
    """Mix `kept` of the image with `share` of a colour at places of the flattened image."""
    result = image.copy()
    for plane, level in zip(result.reshape(-1, 3).T, colour, strict=True):
        values = plane[place] * kept
        values += share * level
        plane[place] = np.clip(values, 0, 255, out=values).astype(np.uint8)
    return result


def blur(plane: np.ndarray, sigma: float) -> np.ndarray:
    """Blur a plane by a Gaussian truncated at 4 sigma; the edge values continue outwards."""
    rows, columns = (_gaussian_operator(length, sigma) for length in plane.shape)
    return separable(rows, columns, plane)


@lru_cache(maxsize=64)
def _gaussian_operator(length: int, sigma: float) -> RowSums:
    radius = int(4 * sigma + 0.5)
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 / sigma**2 * offsets**2)
    source = np.clip(np.arange(length)[:, None] + offsets, 0, length - 1)
    return RowSums(source, np.broadcast_to(weights / weights.sum(), source.shape))


def bevel(drops: np.ndarray) -> np.ndarray:
    """Return the distance to the edges of the drops, embossed, as an 8-bit plane."""
    distance = chamfer_distance(canny(drops, low=50, high=150), reach=20)
    height = equalise((_box_sum(distance) / 9).astype(np.uint8))
    padded = _framed(height, inset=1).astype(np.int16)
    middle, right, below = padded[1:-1, 1:-1], padded[1:-1, 2:], padded[2:, 1:-1]
    left, above, corner = padded[1:-1, :-2], padded[:-2, 1:-1], padded[:-2, :-2]
    lit = middle + right + below + 2 * padded[2:, 2:] - left - above - 2 * corner
    return np.rint(_box_sum(np.clip(lit, 0, 255)) / np.float32(9)).astype(np.uint8)


def _framed(plane: np.ndarray, *, inset: int) -> np.ndarray:
    """Pad a plane by one value: its outermost values (inset 0) or those next to them."""
    height, width = plane.shape
    down, across = min(inset, height - 1), min(inset, width - 1)
    framed = np.empty((height + 2, width + 2), dtype=plane.dtype)
    framed[1:-1, 1:-1] = plane
    framed[0, 1:-1], framed[-1, 1:-1] = plane[down], plane[-1 - down]
    framed[:, 0], framed[:, -1] = framed[:, 1 + across], framed[:, -2 - across]
    return framed


def _box_sum(plane: np.ndarray) -> np.ndarray:
    """Sum every 3 x 3 neighbourhood, mirrored at the border without repeating it."""
    padded = _framed(plane, inset=1)
    rows = padded[:-2] + padded[1:-1] + padded[2:]
    return rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]


def equalise(plane: np.ndarray) -> np.ndarray:
    """Spread the grey levels of an 8-bit plane evenly, the lowest to 0 and the highest to 255."""
    counts = np.array(Image.fromarray(plane).histogram())
    lowest = counts[counts > 0][0]
    if lowest == plane.size:
        return plane
    rank = np.maximum(np.cumsum(counts) - lowest, 0)
    return np.take(np.rint(rank * (255 / (plane.size - lowest))).astype(np.uint8), plane)


def canny(plane: np.ndarray, *, low: int, high: int) -> np.ndarray:
    """Mark the edges of an 8-bit plane (Canny; 3 x 3 Sobel, |dx| + |dy| as the strength)."""
    height, width = plane.shape
    stride = width + 2  # everything has a border of one, so that flat offsets reach neighbours
    padded = _framed(plane, inset=0).astype(np.int16)
    rows = padded[:-2] + 2 * padded[1:-1] + padded[2:]
    columns = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    dx, dy = np.zeros((2, height + 2, stride), dtype=np.int16)
    np.subtract(rows[:, 2:], rows[:, :-2], out=dx[1:-1, 1:-1])
    np.subtract(columns[2:], columns[:-2], out=dy[1:-1, 1:-1])
    strength = (np.abs(dx) + np.abs(dy)).ravel()
    place = np.flatnonzero(strength > low)
    step, ties = _gradient_step(np.take(dx, place), np.take(dy, place), stride)
    here, after = np.take(strength, place), np.take(strength, place + step)
    crest = here > np.take(strength, place - step)
    crest &= (here > after) | (ties & (here == after))
    strong = crest & (here > high)
    edges = np.zeros(strength.shape, dtype=bool)
    edges[place] = strong
    _join(edges, place[crest & ~strong], stride)
    return edges.reshape(height + 2, stride)[1:-1, 1:-1]


def _gradient_step(dx: np.ndarray, dy: np.ndarray, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the offset of the neighbour a gradient points to, and whether it is along an axis."""
    x, y = dx.astype(np.int32), dy.astype(np.int32)
    low_line = np.abs(x) * 13573  # tan 22.5° in units of 2^-15, and below tan 67.5°
    height = np.abs(y) << 15
    flat, steep = height < low_line, height > low_line + (np.abs(x) << 16)
    falling = (x ^ y) < 0
    steps = np.array([stride + 1, stride - 1, 1, 1, stride, stride])
    return np.take(steps, falling + 2 * flat + 4 * steep), flat | steep


def _join(edges: np.ndarray, weak: np.ndarray, stride: int) -> None:
    """Add weak edges that touch an edge, until there are no more."""
    ring = np.array([-stride - 1, -stride, -stride + 1, -1, 1, stride - 1, stride, stride + 1])
    while weak.size:
        joined = np.take(edges, weak + ring[:, None]).any(axis=0)
        if not joined.any():
            return
        edges[weak[joined]] = True
        weak = weak[~joined]


def chamfer_distance(marked: np.ndarray, *, reach: int) -> np.ndarray:
    """Return the distance of every point from the nearest marked one, at most `reach`.

    A path is made of steps of the 5 x 5 chamfer mask: 1 to a neighbour, 1.4 to a diagonal one,
    2.1969 for a knight's move. The steps of a shortest path may be in any order, so each kind is
    done for all points at once: first one step, then two, four and so on.
    """
    height, width = marked.shape
    stride = width + reach  # the margin keeps rows apart
    unit = 1280  # makes all three lengths whole numbers, to 0.03
    distance = np.full((height, stride), reach * unit, dtype=np.uint16)
    distance[:, :width] *= ~marked
    flat = distance.ravel()
    further = np.empty_like(flat)
    straight, diagonal = (1, stride), (stride + 1, stride - 1)
    knight = (stride + 2, stride - 2, 2 * stride + 1, 2 * stride - 1)
    for moves, length in ((straight, 1.0), (diagonal, 1.4), (knight, 2.1969)):
        for move in moves:
            steps = 1
            while steps * length <= reach and steps * move < flat.size:
                jump = steps * move
                np.add(flat, np.uint16(round(steps * length * unit)), out=further)
                np.minimum(flat[jump:], further[:-jump], out=flat[jump:])
                np.minimum(flat[:-jump], further[jump:], out=flat[:-jump])
                steps *= 2
    return distance[:, :width] / np.float32(unit)
