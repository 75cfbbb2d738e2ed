"""The nine corruptions of SSB-C at five severities.

They are those of ImageNet-C (Hendrycks & Dietterich, "Benchmarking Neural Network Robustness to
Common Corruptions and Perturbations", ICLR 2019) with its published constants, for images of any
size. The result depends on the image, its key, the corruption and the severity only.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from gcdbench.data.corruptions.frost import FrostTextures
from gcdbench.data.corruptions.noise import CHANNELS, add_noise
from gcdbench.data.corruptions.rng import HashedRng
from gcdbench.data.corruptions.spatter import spatter
from gcdbench.data.corruptions.weather import fog, frost_over, snow
from gcdbench.data.corruptions.zoom import zoom_blur

__all__ = ["CORRUPTIONS", "SEVERITIES", "FrostTextures", "corrupt", "jpeg_bytes", "jpeg_roundtrip"]

CORRUPTIONS: tuple[str, ...] = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "speckle_noise",
    "spatter",
)
SEVERITIES = (1, 2, 3, 4, 5)
_PICTURES = {"zoom_blur": zoom_blur, "snow": snow, "fog": fog, "spatter": spatter}


def corrupt(
    image: np.ndarray,
    corruption: str,
    severity: int,
    *,
    key: str | int,
    frost: FrostTextures | None = None,
) -> np.ndarray:
    """Return a corrupted copy of an image.

    Args:
        image: (height, width, 3) array of uint8.
        corruption: one of `CORRUPTIONS`.
        severity: 1 (mild) to 5 (strong).
        key: identifies the image, for instance its path below the folder of the dataset, with
            forward slashes; the same key always gives the same random numbers.
        frost: pictures of ice; by default `FrostTextures.procedural()`.

    Returns:
        A new array of the same shape and type.
    """
    if corruption not in CORRUPTIONS:
        raise ValueError(f"unknown corruption {corruption!r}; known: {', '.join(CORRUPTIONS)}")
    if severity not in SEVERITIES:
        raise ValueError(f"the severity of {corruption} is 1, 2, 3, 4 or 5, not {severity!r}")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or image.size == 0:
        raise ValueError(
            f"{corruption} takes a (height, width, 3) array of uint8, "
            f"not {image.dtype} of shape {image.shape}; convert the image to RGB first"
        )
    rng = HashedRng(corruption, severity, key)
    if corruption in CHANNELS:
        return add_noise(image, corruption, severity, rng)
    if corruption == "frost":
        return frost_over(image, severity, rng, frost or FrostTextures.procedural())
    return _PICTURES[corruption](image, severity, rng)


def jpeg_roundtrip(image: np.ndarray, quality: int = 85) -> np.ndarray:
    """Store an image as JPEG and read it back, as the published corrupted images were stored."""
    return np.array(Image.open(io.BytesIO(jpeg_bytes(image, quality))))


def jpeg_bytes(image: np.ndarray, quality: int) -> bytes:
    """Return an image as a JPEG file: the same one on disk and while loading."""
    stored = io.BytesIO()
    Image.fromarray(image).save(stored, "JPEG", quality=quality)
    return stored.getvalue()
