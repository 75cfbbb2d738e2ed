"""A plain reading of the published formulas of the nine corruptions, to measure speed against.

Written for clarity: whole arrays in double precision, one step after the other, nothing cached;
drops of water use the Euclidean distance to their outline, and ice is smooth noise.

As a script it is the worker of `benchmarks/speed/corruptions.py`: it reads lines with a corruption
and a severity and answers with the CPU time of that variant in nanoseconds. With `--package` it
times the package imagecorruptions instead, under whatever old Python has it.
"""
# ruff: noqa: B905, D103 - old Pythons know no zip(strict=True); the names are the documentation

from __future__ import annotations

import argparse
import math
import sys
import time

import numpy as np
from scipy import ndimage


def gaussian_noise(x, severity, random):
    c = (0.08, 0.12, 0.18, 0.26, 0.38)[severity - 1]
    return x / 255 + random.normal(size=x.shape, scale=c)


def shot_noise(x, severity, random):
    c = (60, 25, 12, 5, 3)[severity - 1]
    return random.poisson(x / 255 * c) / c


def impulse_noise(x, severity, random):
    c = (0.03, 0.06, 0.09, 0.17, 0.27)[severity - 1]
    salt_or_pepper = random.uniform(size=x.shape) < 0.5
    return np.where(random.uniform(size=x.shape) < c, salt_or_pepper, x / 255)


def speckle_noise(x, severity, random):
    c = (0.15, 0.2, 0.35, 0.45, 0.6)[severity - 1]
    return x / 255 + x / 255 * random.normal(size=x.shape, scale=c)


def clipped_zoom(x, factor):
    shown = [math.ceil(side / factor) for side in x.shape[:2]]
    top, left = ((side - part) // 2 for side, part in zip(x.shape, shown))
    middle = x[top : top + shown[0], left : left + shown[1]]
    return ndimage.zoom(middle, (factor, factor, 1), order=1)


def zoom_blur(x, severity, random):
    stops, steps = (1.11, 1.16, 1.21, 1.26, 1.31), (0.01, 0.01, 0.02, 0.02, 0.03)
    factors = np.arange(1, stops[severity - 1], steps[severity - 1])
    x = (x / 255).astype(np.float32)
    zooms = [clipped_zoom(x, factor)[: x.shape[0], : x.shape[1]] for factor in factors]
    return (x + sum(zooms)) / (len(factors) + 1)


def shift(plane, down, right):
    rows = np.clip(np.arange(plane.shape[0]) - down, 0, plane.shape[0] - 1)
    columns = np.clip(np.arange(plane.shape[1]) - right, 0, plane.shape[1] - 1)
    return plane[rows][:, columns]


def motion_blur(plane, radius, sigma, angle):
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    sine, cosine = math.sin(math.radians(angle)), math.cos(math.radians(angle))
    moves = [
        (-math.ceil(i * sine - 0.5), -math.ceil(i * cosine - 0.5)) for i in range(len(weights))
    ]
    return sum(w * shift(plane, *move) for w, move in zip(weights / weights.sum(), moves))


def snow(x, severity, random):
    c = (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    )[severity - 1]
    x = x / 255
    flakes = clipped_zoom(random.normal(c[0], c[1], x.shape[:2])[..., None], c[2])[..., 0]
    flakes[flakes < c[3]] = 0
    flakes = motion_blur(np.clip(flakes, 0, 1), c[4], c[5], random.uniform(-135, -45))
    flakes = np.rint(flakes * 255)[: x.shape[0], : x.shape[1], None] / 255
    grey = (x @ [0.299, 0.587, 0.114])[..., None]
    whitened = c[6] * x + (1 - c[6]) * np.maximum(x, grey * 1.5 + 0.5)
    return whitened + flakes + np.rot90(flakes, k=2)


def frost(x, severity, random):
    c = ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))[severity - 1]
    ice = ndimage.gaussian_filter(random.uniform(0, 255, x.shape), (1, 1, 0))
    return (c[0] * x + c[1] * ice) / 255


def plasma(size, decay, random):
    cloud = np.zeros((size, size))
    step, reach = size, 100.0
    while step > 1:
        half = step // 2
        corners = cloud[::step, ::step]
        below, right = np.roll(corners, -1, axis=0), np.roll(corners, -1, axis=1)
        places = corners.shape

        def jitter(total, reach=reach, places=places):
            return total / 4 + reach * random.uniform(-reach, reach, places)

        centres = jitter(corners + below + right + np.roll(below, -1, axis=1))
        cloud[half::step, half::step] = centres
        cloud[::step, half::step] = jitter(centres + np.roll(centres, 1, 0) + corners + right)
        cloud[half::step, ::step] = jitter(centres + np.roll(centres, 1, 1) + corners + below)
        step, reach = half, reach / decay
    cloud -= cloud.min()
    return cloud / cloud.max()


def fog(x, severity, random):
    strength, decay = ((1.5, 2), (2.0, 2), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))[severity - 1]
    x = x / 255
    size = 1 << (max(x.shape) - 1).bit_length()
    cloud = plasma(size, decay, random)[: x.shape[0], : x.shape[1], None]
    return (x + strength * cloud) * x.max() / (x.max() + strength)


def spatter(x, severity, random):
    mean, spread, sigma, threshold, strength = (
        (0.65, 0.3, 4, 0.69, 0.6),
        (0.65, 0.3, 3, 0.68, 0.6),
        (0.65, 0.3, 2, 0.68, 0.5),
        (0.65, 0.3, 1, 0.65, 1.5),
        (0.67, 0.4, 1, 0.65, 1.5),
    )[severity - 1]
    x = x / 255
    liquid = ndimage.gaussian_filter(
        random.normal(mean, spread, x.shape[:2]), sigma, mode="nearest"
    )
    if severity > 3:
        mud = np.array([63, 42, 20]) / 255
        cover = ndimage.gaussian_filter((liquid > threshold) * 1.0, strength, mode="nearest")
        cover = np.where(cover < 0.8, 0, cover)[..., None]
        return x * (1 - cover) + mud * cover
    water = np.array([175, 238, 238]) / 255
    drops = np.floor(np.where(liquid < threshold, 0, liquid) * 255)
    inside = drops > 0
    edges = inside & ~ndimage.binary_erosion(inside, np.ones((3, 3)))
    distance = np.minimum(ndimage.distance_transform_edt(~edges), 20)
    distance = np.floor(ndimage.uniform_filter(distance, 3, mode="mirror"))
    rank = np.searchsorted(np.sort(distance, axis=None), distance, side="right") / distance.size
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    lit = np.clip(ndimage.correlate(np.rint(rank * 255), emboss, mode="mirror"), 0, 255)
    relief = drops * np.rint(ndimage.uniform_filter(lit, 3, mode="mirror"))
    return x + (relief / max(relief.max(), 1) * strength)[..., None] * water


CORRUPTIONS = (
    gaussian_noise,
    shot_noise,
    impulse_noise,
    zoom_blur,
    snow,
    frost,
    fog,
    speckle_noise,
    spatter,
)
PLAIN = {function.__name__: function for function in CORRUPTIONS}


def corrupt(image, corruption, severity, random):
    """Corrupt an image; returns uint8."""
    corrupted = PLAIN[corruption](image, severity, random)
    return (np.clip(corrupted, 0, 1) * 255).astype(np.uint8)


def main():
    """Answer requests from standard input until it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image", help="the .npy file of the image to corrupt")
    parser.add_argument("--package", action="store_true", help="time imagecorruptions instead")
    args = parser.parse_args()
    image = np.load(args.image)
    random = np.random.RandomState(0)
    if args.package:
        import cv2
        import imagecorruptions

        cv2.setNumThreads(1)
    for line in sys.stdin:
        corruption, severity = line.split()
        start = time.process_time_ns()
        if args.package:
            imagecorruptions.corrupt(image, int(severity), corruption)
        else:
            corrupt(image, corruption, int(severity), random)
        print(time.process_time_ns() - start, flush=True)


if __name__ == "__main__":
    main()
