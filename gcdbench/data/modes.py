"""Images of any kind as 8-bit RGB: Pillow clips values of more than 8 bits to white."""

from __future__ import annotations

import numpy as np
from PIL import Image

_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")


def to_rgb(image: Image.Image) -> Image.Image:
    """Return an image in RGB; raise ValueError if its range of values is not known."""
    if image.mode == "RGB":
        return image
    if image.mode in _SIXTEEN_BITS or (image.mode == "I" and image.format in ("PNG", "PPM")):
        return _grey(np.asarray(image).astype(np.float64) / 257)
    if image.mode == "I":
        return _grey(_scaled(np.asarray(image), "32-bit whole numbers", (255, 65535)))
    if image.mode == "F":
        return _grey(_scaled(np.asarray(image), "floating-point values", (1, 255)))
    return image.convert("RGB")


def _scaled(values: np.ndarray, kind: str, ranges: tuple[int, int]) -> np.ndarray:
    """Scale the smallest of the usual ranges that holds all values to 0..255."""
    low, high = float(values.min()), float(values.max())
    for most in ranges:
        if low >= 0 and high <= most:
            return values.astype(np.float64) * (255 / most)
    raise ValueError(f"{kind} from {low:g} to {high:g}; convert it to 8 bits")


def _grey(values: np.ndarray) -> Image.Image:
    return Image.fromarray(np.rint(values).astype(np.uint8)).convert("RGB")
