"""A contact sheet of all corruptions of one image."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from gcdbench.data.corruptions import CORRUPTIONS, SEVERITIES, FrostTextures, corrupt

MARGIN = 18  # for a line of text


def contact_sheet(
    image: np.ndarray, size: int = 224, *, frost: FrostTextures | None = None
) -> Image.Image:
    """Return a picture of the nine corruptions (rows) at the five severities (columns).

    Args:
        image: (height, width, 3) array of uint8; its middle is cut to a square.
        size: side of a picture, in pixels.
        frost: pictures of ice, as for `corrupt`.
    """
    clean = np.asarray(ImageOps.fit(Image.fromarray(image), (size, size)))
    cell = size + MARGIN
    sheet = Image.new("RGB", (len(SEVERITIES) * size, len(CORRUPTIONS) * cell), "white")
    draw = ImageDraw.Draw(sheet)
    for row, corruption in enumerate(CORRUPTIONS):
        for column, severity in enumerate(SEVERITIES):
            left, top = column * size, row * cell
            draw.text((left + 4, top + 3), f"{corruption} {severity}", fill="black")
            shown = corrupt(clean, corruption, severity, key="contact sheet", frost=frost)
            sheet.paste(Image.fromarray(shown), (left, top + MARGIN))
    return sheet
