"""Plots of single cells: what a trained model sees, and which images a method put together.

Plots of many records are in ``gcdbench/report/plots/``; they need numbers only. The plots here need
images, and two of them the trained model, so this package may import torch. A plot is a module with
a function ``draw`` and an entry of ``CELL_PLOTS``; listing them imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gcdbench.experiment.plan import Cell


@dataclass(frozen=True)
class Options:
    """What the command line chooses for plots of cells."""

    results: Path  # folder of the records
    block: int | None = None  # of attention; None: the last
    sets: tuple[str, ...] = ()  # of clusters; none: source and the worst shifted one
    rows: int = 10  # clusters that are shown


@dataclass(frozen=True)
class CellPlot:
    """A plot of one cell."""

    name: str  # also of its module
    help: str  # one line

    def draw(self, cell: Cell, options: Options) -> Iterator[tuple[str, Figure]]:
        """Yield figures, each with what is added to the name of its file."""
        module = import_module(f"{__name__}.{self.name}")
        return module.draw(cell, options)


CELL_PLOTS: dict[str, CellPlot] = {
    plot.name: plot
    for plot in (
        CellPlot(
            "pca", "domain and semantic features in the plane, with thumbnails (kept weights)"
        ),
        CellPlot("attention", "what the class token attends to, by head (kept weights)"),
        CellPlot("clusters", "contact sheets: what was put together, worst first"),
    )
}


def caption_of(cell: Cell) -> str:
    """Return the line below a plot: which cell it shows."""
    return f"{cell.label} (record {cell.key})"
