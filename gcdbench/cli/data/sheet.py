"""``gcdbench data sheet``: what the corruptions make of an image."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from gcdbench.cli.data._common import say
from gcdbench.data.corrupted import Recipe
from gcdbench.data.corruptions import CORRUPTIONS, SEVERITIES
from gcdbench.data.corruptions.sheet import contact_sheet
from gcdbench.errors import UserError


def run(arguments: argparse.Namespace) -> int:
    """Write the sheet."""
    image = _read(arguments.image)
    recipe = Recipe(CORRUPTIONS, SEVERITIES, frost=arguments.frost)
    sheet = contact_sheet(image, arguments.size, frost=recipe.frost_textures)
    try:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        sheet.save(arguments.out)
    except (OSError, ValueError) as error:
        raise UserError(f"{arguments.out}: cannot be written as a picture ({error})") from error
    say(f"wrote {arguments.out}")
    return 0


def _read(path: Path) -> np.ndarray:
    try:
        with Image.open(path) as image:
            return np.asarray(image.convert("RGB"))
    except (OSError, UnidentifiedImageError) as error:
        raise UserError(f"{path}: cannot be read as a picture ({error})") from error
