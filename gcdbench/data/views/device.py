"""Make the views of a batch on its device, from the numbers that the CPU would make them from.

The host packs whole frames into one buffer and works out a few numbers for each view; cropping,
flipping and colours are a fixed number of operations on the device, whatever the number of images.
Crops, resized crops, flips, jitter and grey have the bytes of the views in ``kinds``, because every
operation is made in the type in which Pillow makes it; blurred views are within one grey level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gcdbench.data.views.colour import LUMA, ORDERS, Strengths, hsv_tables, rgb_shares

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)  # steps of the jitter
CHUNK = 64  # views that are resized at once: 0.7 MB each, several times


class Frames(NamedTuple):
    """Images of several shapes in one buffer."""

    pixels: Tensor  # (n, 3) bytes, of all images one after the other
    starts: np.ndarray  # (b,) first pixel of each image
    heights: np.ndarray  # (b,)
    widths: np.ndarray  # (b,)

    @classmethod
    def pack(cls, images: Sequence[np.ndarray]) -> Frames:
        """Return frames (h, w, 3) in one buffer."""
        heights, widths = np.array([image.shape[:2] for image in images]).T
        ends = np.cumsum(heights * widths)
        pixels = np.empty((int(ends[-1]), 3), np.uint8)
        for image, start, end in zip(images, ends - heights * widths, ends, strict=True):
            pixels[start:end] = image.reshape(-1, 3)
        return cls(torch.from_numpy(pixels), ends - heights * widths, heights, widths)

    def repeated(self, times: int) -> Frames:
        """Return the same images several times, without a copy."""
        again = (np.tile(numbers, times) for numbers in self[1:])
        return Frames(self.pixels, *again)

    def to(self, device: torch.device) -> Frames:
        """Move the pixels, without waiting for them."""
        return self._replace(pixels=self.pixels.to(device, non_blocking=True))


def send(values: np.ndarray, device: torch.device) -> Tensor:
    """Move a small array to a device, without waiting for it."""
    return torch.from_numpy(np.ascontiguousarray(values)).to(device, non_blocking=True)


def crops(frames: Frames, draw: np.ndarray, side: int, *, flips: bool) -> Tensor:
    """Return random crops (b, 3, side, side), randomly flipped; three numbers each."""
    draw = draw.astype(np.float32, copy=False)
    top = (draw[:, 0] * (frames.heights - side + 1).astype(np.float32)).astype(np.int64)
    left = (draw[:, 1] * (frames.widths - side + 1).astype(np.float32)).astype(np.int64)
    flipped = draw[:, 2] < 0.5 if flips else np.zeros(len(draw), dtype=bool)
    first = frames.starts + top * frames.widths + left + np.where(flipped, side - 1, 0)
    places = np.stack([first, frames.widths, np.where(flipped, -1, 1)])
    start, down, right = send(places, frames.pixels.device)[:, :, None, None]
    steps = torch.arange(side, device=frames.pixels.device)
    index = start + down * steps[:, None] + right * steps  # (b, side, side)
    found = frames.pixels.index_select(0, index.flatten())
    return found.view(*index.shape, 3).permute(0, 3, 1, 2)


def resized_crops(frames: Frames, boxes: np.ndarray, flipped: np.ndarray, side: int) -> Tensor:
    """Return boxes (b, 4: top, left, height, width) resized to (b, 3, side, side), bilinear."""
    device = frames.pixels.device
    top, left, tall, wide = boxes.T
    first = frames.starts + top * frames.widths + left
    places = send(np.stack([first, frames.widths, tall, wide]), device)
    mirror = send(flipped, device)[:, None, None, None]
    parts = [
        _resized(frames.pixels, part, int(tall[rows].max()), int(wide[rows].max()), side)
        for rows, part in zip(
            np.split(np.arange(len(boxes)), range(CHUNK, len(boxes), CHUNK)),
            places.split(CHUNK, dim=1),
            strict=True,
        )
    ]
    views = torch.cat(parts)
    return torch.where(mirror, views.flip(3), views)


def _resized(pixels: Tensor, places: Tensor, high: int, broad: int, side: int) -> Tensor:
    """Resize in two products with matrices of weights, across and down, as Pillow does.

    Its weights are whole numbers of 22 bits; products of them and sums are exact in float64.
    """
    start, down, height, width = places[:, :, None, None]
    y = torch.arange(high, device=pixels.device)[:, None]
    x = torch.arange(broad, device=pixels.device)
    # beyond a box that is smaller than the largest one the weights are zero
    index = start + down * torch.minimum(y, height - 1) + torch.minimum(x, width - 1)
    source = pixels.index_select(0, index.flatten()).view(*index.shape, 3).permute(0, 3, 1, 2)
    across = _rounded(source.double() @ _weights(width, broad, side).transpose(2, 3))
    return _rounded(_weights(height, high, side) @ across).to(torch.uint8)


def _rounded(sums: Tensor) -> Tensor:
    return ((sums + (1 << 21)) / (1 << 22)).floor_().clamp_(0, 255)


def _weights(lengths: Tensor, longest: int, side: int) -> Tensor:
    """Return weights (b, 1, side, longest) of a resize from lengths (b, 1, 1) to ``side``."""
    scale = (lengths.double() / side)[:, None]
    centre = (torch.arange(side, device=lengths.device)[:, None] + 0.5) * scale
    place = torch.arange(longest, device=lengths.device)
    weights = 1 - ((place - centre + 0.5) * (1 / scale.clamp(min=1))).abs()
    weights = weights.clamp_(min=0) * (place < lengths[:, None])
    share = weights * (1 / weights.sum(3, keepdim=True))
    return (share * (1 << 22) + 0.5).floor_()


def jitter(images: Tensor, draw: np.ndarray, strengths: Strengths) -> Tensor:
    """Change brightness, contrast, saturation and hue in a random order; five numbers each."""
    draw = draw.astype(np.float32, copy=False)
    order = np.array(ORDERS)[(draw[:, 0] * np.float32(len(ORDERS))).astype(np.int64)]
    strength = np.array(strengths)
    amounts = 2 * strength * draw[:, 1:5].astype(np.float64) - strength
    turns = (amounts[:, HUE] * 255).astype(np.int32).astype(np.uint8)
    for position in range(len(strengths)):
        step = order[:, position]
        amount = np.take_along_axis(amounts, step[:, None], axis=1)[:, 0]
        images = _blended(images, step, np.where(step == HUE, 1.0, 1 + amount))
        rows = np.flatnonzero(step == HUE)
        turn = send(turns[rows], images.device)
        images = changed(images, rows, partial(shift_hue, turns=turn))
    return images


def changed(images: Tensor, rows: np.ndarray, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Return images of which some rows are changed."""
    if not len(rows):
        return images
    here = send(rows, images.device)
    return images.index_copy(0, here, change(images.index_select(0, here)))


def _blended(images: Tensor, step: np.ndarray, factor: np.ndarray) -> Tensor:
    """Mix images with black, their mean grey or their own grey, as ImageEnhance does."""
    kinds = np.stack([step == CONTRAST, step == SATURATION]).astype(np.float32)
    numbers = np.concatenate([kinds, factor[None].astype(np.float32)])
    is_mean, is_own, share = send(numbers, images.device)[:, :, None, None, None]
    grey = luma(images)
    count = grey[0].numel()
    mean = (2 * grey.sum((1, 2, 3), keepdim=True) + count) // (2 * count)
    other = mean * is_mean + grey * is_own
    mixed = other + share * (images - other)
    return mixed.clamp_(0, 255).to(torch.uint8)


def luma(images: Tensor) -> Tensor:
    """Return the shades of grey (b, 1, h, w) of images, in int32, as Pillow rounds them."""
    red, green, blue = images.to(torch.int32).split(1, dim=1)
    return (red * LUMA[0] + green * LUMA[1] + blue * LUMA[2] + 0x8000) >> 16


def greyed(images: Tensor, chosen: np.ndarray) -> Tensor:
    """Take the colour from the images (b,) that are chosen."""
    if not chosen.any():
        return images
    mask = send(chosen, images.device)[:, None, None, None]
    return torch.where(mask, luma(images).to(torch.uint8), images)


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hues of images by ``turns`` (b,) of 256, by the tables of the CPU's views."""
    hues, saturations, shares = _tables(images.device)
    red, green, blue = images.to(torch.int32).unbind(1)
    high = torch.maximum(torch.maximum(red, green), blue)
    low = torch.minimum(torch.minimum(red, green), blue)
    apart = torch.where(
        red == high,
        green - blue + 255,
        torch.where(green == high, blue - red + 766, red - green + 1277),
    )
    hue = hues[((apart << 8) | (high - low)).long()] + turns[:, None, None]  # a byte wraps around
    place = (hue.long() << 8) | saturations[((high << 8) | low).long()].long()
    value = high.float()
    return torch.stack([share[place] * value + 0.5 for share in shares], 1).to(torch.uint8)


@cache
def _tables(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    hues, saturations = hsv_tables()
    return send(hues, device), send(saturations, device), send(rgb_shares(), device)
