"""Small pictures in rows and columns, all in one axis: the layout of hundreds takes minutes."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from gcdbench.report.plots.canvas import sheet

SIDE = 0.88  # of a tile; the rest is the gap to the next one


class Tiles:
    """A figure of tiles, each ``inches`` wide.

    ``margin`` is the width of the labels at the left and ``pitch`` the height of a row, in tiles.
    """

    def __init__(
        self, rows: int, columns: int, *, inches: float, margin: float, pitch: float = 1.0
    ) -> None:
        width, height = inches * (margin + columns), inches * pitch * rows
        self.figure: Figure = sheet(width, height + 0.75)
        self.axis: Axes = self.figure.subplots()
        self.axis.axis("off")
        self.margin, self.pitch = margin, pitch
        self._limits: dict[str, Any] = {
            "xlim": (-margin, columns),
            "ylim": (pitch * rows, -0.2),
            "aspect": "equal",
        }
        self.axis.set(**self._limits)

    def put(self, row: int, column: int, picture: NDArray[Any], **options: Any) -> None:
        """Draw a picture (h, w) or (h, w, 3) into a tile."""
        top = self.pitch * row
        extent = (column, column + SIDE, top + SIDE, top)
        self.axis.imshow(picture, extent=extent, **options)
        self.axis.set(**self._limits)

    def outline(self, row: int, column: int, values: NDArray[Any], level: float) -> None:
        """Draw the contour at which values (h, w) equal a level."""
        height, width = values.shape
        x = column + SIDE * (np.arange(width) + 0.5) / width
        y = self.pitch * row + SIDE * (np.arange(height) + 0.5) / height
        self.axis.contour(x, y, values, levels=[level], colors="#0072B2", linewidths=1.2)

    def frame(self, row: int, column: int, colour: str) -> None:
        """Draw a border around a tile."""
        corner = (column, self.pitch * row)
        self.axis.add_patch(Rectangle(corner, SIDE, SIDE, fill=False, edgecolor=colour, lw=1.4))

    def title(self, row: int, column: int, text: str, size: float = 5.5) -> None:
        """Write above a tile."""
        x = column + SIDE / 2
        self.axis.text(x, self.pitch * row - 0.03, text, ha="center", va="bottom", fontsize=size)

    def label(self, row: int, first: str, second: str) -> None:
        """Write two lines at the left of a row."""
        x, middle = -self.margin, self.pitch * row + SIDE / 2
        self.axis.text(x, middle - 0.03, first, va="bottom", weight="bold")
        self.axis.text(x, middle + 0.03, second, va="top", fontsize=6.5)

    def note(self, *lines: str) -> None:
        """Write below everything."""
        text = "\n".join(lines)
        self.figure.supxlabel(text, fontsize=6.5, color="#666666", x=0.01, ha="left")
