"""Attention of the class token, head by head."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from gcdbench.cell_plots import Options, caption_of, choice
from gcdbench.cell_plots.tiles import Tiles
from gcdbench.cell_plots.trained import Trained
from gcdbench.experiment.plan import Cell
from gcdbench.report.plots.canvas import drawing
from gcdbench.report.titles import set_title

IMAGES = 6
TOP = 0.10  # share of the picture that is outlined


def draw(cell: Cell, options: Options) -> Iterator[tuple[str, Figure]]:
    """Draw the attention maps of a cell whose weights were kept."""
    trained = Trained.load(cell, options.results)
    yield "", attention(trained, caption_of(cell), block=options.block)


def attention(trained: Trained, caption: str, *, block: int | None = None) -> Figure:
    """Draw a row per image: the image, each head's attention, and where their mean is largest."""
    problem = trained.problem
    each = max(1, IMAGES // len(choice.domains(problem, 1)))
    by_domain = choice.domains(problem, each)
    rows = np.concatenate(list(by_domain.values()))
    owners = [name for name, members in by_domain.items() for _ in members]
    pictures, maps = trained.pictures(rows), trained.attention(rows, block)
    heads = maps.shape[1]
    with drawing():
        tiles = Tiles(len(rows), heads + 2, inches=0.95, margin=1.1)
        for line, (picture, per_head) in enumerate(zip(pictures, maps, strict=True)):
            name = problem.classes[problem.labels[rows[line]]]
            tiles.label(line, name.replace("_", " "), set_title(owners[line]))
            tiles.put(line, 0, picture)
            for head, attended in enumerate(per_head, start=1):
                tiles.put(line, head, _faded(picture, 0.5))
                tiles.put(line, head, attended, cmap="YlOrRd", alpha=0.7)
                tiles.outline(line, head, attended, threshold(attended))
            mean = per_head.mean(0)
            inside = (mean >= threshold(mean))[..., None]
            tiles.put(line, heads + 1, np.where(inside, picture, _faded(picture, 0.8)))
            tiles.outline(line, heads + 1, mean, threshold(mean))
        titles = ["image", *(f"head {n + 1}" for n in range(heads)), "mean of heads"]
        for column, title in enumerate(titles):
            tiles.title(0, column, title, size=8)
        number = block or trained.model.backbone.num_blocks
        tiles.note(
            f"attention of the class token in block {number}; outlined: the {100 * TOP:.0f} % of "
            "the pixels that get most of it",
            caption,
        )
    return tiles.figure


def threshold(attended: NDArray[np.float32]) -> float:
    """Return the value that a share ``TOP`` of the pixels exceeds."""
    return float(np.quantile(attended, 1 - TOP))


def _faded(picture: NDArray[np.uint8], amount: float) -> NDArray[np.uint8]:
    """Return a picture mixed with white."""
    return (picture + (255 - picture.astype(float)) * amount).astype(np.uint8)
