"""Blur views with a Gaussian."""

from __future__ import annotations

from math import ceil

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


def blurred(image: np.ndarray, sigma: float) -> np.ndarray:
    """Return a blurred view (h, w, 3); beyond the edge it is mirrored."""
    planes = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]
    return blur(planes, [sigma])[0].permute(1, 2, 0).numpy()


def blur(images: Tensor, sigmas: list[float]) -> Tensor:
    """Return blurred images (n, c, h, w), in bytes, one width of the Gaussian for each image."""
    n, c, h, w = images.shape
    radius = min(max(ceil(3 * max(sigmas)), 1), min(h, w) - 1)
    places = torch.arange(-radius, radius + 1, dtype=torch.float32)
    weights = torch.exp(-0.5 * (places / torch.tensor(sigmas)[:, None]) ** 2)
    weights = (weights / weights.sum(1, keepdim=True)).to(images.device, non_blocking=True)
    kernels = weights.repeat_interleave(c, 0)[:, None]
    planes = F.pad(images.float(), (radius,) * 4, mode="reflect").view(1, n * c, h + 2 * radius, -1)
    planes = F.conv2d(planes, kernels[:, :, None], groups=n * c)
    planes = F.conv2d(planes, kernels[..., None], groups=n * c)
    return planes.view(n, c, h, w).round_().clamp_(0, 255).to(torch.uint8)
