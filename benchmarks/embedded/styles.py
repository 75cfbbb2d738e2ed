"""Redraw drawings in other styles: warped, thickened, outlined, filled, carved, coloured.

The suite's domains differ in how a thing is drawn: with lines, filled, in colours, by hand. A
backbone that has seen each drawing in many styles keeps what is drawn apart from how.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor
from torch.nn import functional as F

# How often each style is drawn (weights); "original" keeps the drawing's own strokes and colours.
STYLES = {
    "original": 0.40,
    "grey": 0.06,
    "thick": 0.12,
    "thin": 0.06,
    "edges": 0.12,
    "silhouette": 0.08,
    "carved": 0.16,
}
COLOURED = 0.3  # how often a restyled drawing gets ink, filling and paper of random colours
NUM_STYLES = 2 * len(STYLES)  # each in black or in colours


def fill_shapes(ink: np.ndarray) -> np.ndarray:
    """Return what the strokes enclose, strokes included, for drawings (n, h, w) of ink in [0, 1].

    Hand-drawn outlines rarely close, so small gaps are closed first.
    """
    within = np.zeros((3, 3, 3), dtype=bool)  # a cross that does not reach the neighbouring drawing
    within[1] = ndimage.generate_binary_structure(2, 1)
    strokes = ndimage.binary_dilation(ink > 0.3, within)
    filled = ndimage.binary_fill_holes(strokes, within)
    return ndimage.binary_erosion(filled, within, border_value=1)


def warp_grid(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw n sampling grids (n, size, size, 2): rotate, scale, shear, shift, and bend a little."""

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(n, generator=generator) * (high - low) + low

    angle, shear = uniform(-0.3, 0.3), uniform(-0.2, 0.2)
    across, along = uniform(0.85, 1.35), uniform(0.85, 1.35)  # above 1 the drawing shrinks
    theta = torch.stack(
        [
            torch.stack([across * angle.cos(), shear - angle.sin(), uniform(-0.15, 0.15)], dim=1),
            torch.stack([angle.sin() + shear, along * angle.cos(), uniform(-0.15, 0.15)], dim=1),
        ],
        dim=1,
    )
    grid = F.affine_grid(theta, [n, 1, size, size], align_corners=False)
    bend = torch.randn(n, 2, 5, 5, generator=generator) * uniform(0.0, 0.08)[:, None, None, None]
    bend = F.interpolate(bend, size=(size, size), mode="bicubic", align_corners=True)
    return grid + bend.permute(0, 2, 3, 1)


def thicken(ink: Tensor) -> Tensor:
    """Widen all strokes by a pixel on either side."""
    return F.max_pool2d(ink, kernel_size=3, stride=1, padding=1)


def thin(ink: Tensor) -> Tensor:
    """Narrow all strokes by a pixel on either side."""
    return -thicken(-ink)


def carve(ink: Tensor, filled: Tensor) -> Tensor:
    """Cut the strokes out of the filled shape, as solid icons show their details."""
    carved = filled * (1 - ink)
    # A solid drawing has little left when its own ink is cut out: outline it instead.
    hollow = carved.sum(dim=(1, 2, 3)) < 0.2 * filled.sum(dim=(1, 2, 3))
    return torch.where(hollow[:, None, None, None], thicken(filled) - filled, carved)


STROKES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "thick": lambda ink, filled: thicken(ink),
    "thin": lambda ink, filled: 0.4 * ink + 0.6 * thin(ink),
    "edges": lambda ink, filled: thicken(ink) - ink,
    "silhouette": lambda ink, filled: torch.maximum(filled, ink),
    "carved": carve,
}


def draw_strokes(ink: Tensor, filled: Tensor, style: Tensor) -> Tensor:
    """Return the ink (n, 1, h, w) of each drawing in its style, an index into ``STYLES``."""
    strokes = ink.clone()
    for name, draw in STROKES.items():
        rows = style == list(STYLES).index(name)
        strokes[rows] = draw(ink[rows], filled[rows])
    return strokes.clamp(0, 1)


def paint(strokes: Tensor, filled: Tensor, coloured: Tensor, generator: torch.Generator) -> Tensor:
    """Paint the strokes black on white or, where coloured, in any ink on filling and paper."""
    n = len(strokes)
    coloured = coloured[:, None, None, None]
    ink, filling, paper = torch.rand(3, n, 3, 1, 1, generator=generator)
    ink, paper = 0.7 * ink, 1 - 0.15 * paper  # ink stays darker than paper
    ink = torch.where(coloured, ink, torch.zeros(()))
    paper = torch.where(coloured, paper, torch.ones(()))
    has_filling = coloured & (torch.rand(n, 1, 1, 1, generator=generator) < 0.5)
    ground = torch.where(has_filling, paper + filled * (filling - paper), paper)
    return ground + strokes * (ink - ground)


def restyle(drawings: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Redraw each drawing once, warped and in a random style.

    Args:
        drawings: Bytes (n, 4, h, w): red, green, blue and the filled shape of ``fill_shapes``.
        generator: Decides everything random.

    Returns:
        Images (n, 3, h, w) in [0, 1], and for each in which of ``NUM_STYLES`` ways it is drawn.
    """
    n, _, size, _ = drawings.shape
    darkness = torch.cat([255 - drawings[:, :3], drawings[:, 3:]], dim=1).float() / 255
    grid = warp_grid(n, size, generator)
    darkness = F.grid_sample(darkness, grid, mode="bilinear", align_corners=False)
    colour, filled = darkness[:, :3], darkness[:, 3:]
    ink = colour.amax(dim=1, keepdim=True)
    odds = torch.tensor(list(STYLES.values()))
    style = torch.multinomial(odds, n, replacement=True, generator=generator)
    coloured = torch.rand(n, generator=generator) < COLOURED
    painted = paint(draw_strokes(ink, filled, style), filled, coloured, generator)
    channels = torch.rand(n, 3, generator=generator).argsort(dim=1)  # another hue, same drawing
    original = 1 - colour.gather(1, channels[:, :, None, None].expand_as(colour))
    kept = style == 0
    coloured = torch.where(kept, has_colour(colour), coloured)
    images = torch.where(kept[:, None, None, None], original, painted)
    return images, 2 * style + coloured


def has_colour(colour: Tensor) -> Tensor:
    """Tell for drawings (n, 3, h, w) whether anything in them is not grey."""
    return (colour.amax(dim=1) - colour.amin(dim=1)).flatten(1).amax(dim=1) > 0.2


def flip(images: Tensor, allowed: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror half of the images for which it is allowed (an arrow to the left must stay one)."""
    mirrored = allowed & (torch.rand(len(images), generator=generator) < 0.5)
    return torch.where(mirrored[:, None, None, None], images.flip(-1), images)
