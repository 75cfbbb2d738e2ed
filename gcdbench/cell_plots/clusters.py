"""Contact sheets of clusters, those with most mistakes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image, ImageOps

from gcdbench.cell_plots import Options, caption_of, choice
from gcdbench.cell_plots.tiles import Tiles
from gcdbench.data.images import Images
from gcdbench.data.problem import Problem
from gcdbench.errors import UserError
from gcdbench.experiment.plan import Cell
from gcdbench.experiment.records import Damaged, cell_folder, read_done, read_predictions
from gcdbench.report.correctness import match
from gcdbench.report.plots.canvas import drawing
from gcdbench.report.titles import set_title

RIGHT, WRONG = 4, 8  # most images in a row
SAME = 3  # of one wrong class, as long as there are others
PIXELS = 96  # side of a thumbnail
RIGHT_COLOUR, WRONG_COLOUR = "#009E73", "#D55E00"
Rows = NDArray[np.integer]


@dataclass(frozen=True)
class Cluster:
    """A cluster and the class that it is matched to."""

    number: int
    label: int  # matched class
    right: Rows  # images of that class
    wrong: Rows  # images of others: those of the most frequent class first
    sought: int  # images of the matched class in the whole set

    @property
    def size(self) -> int:
        """Number of images."""
        return len(self.right) + len(self.wrong)


def draw(cell: Cell, options: Options) -> Iterator[tuple[str, Figure]]:
    """Draw a sheet per evaluation set from the recorded predictions of a cell."""
    record, problem = read_done(options.results, cell), cell.problem()
    if isinstance(record, Damaged):
        raise UserError(f"{record.path} {record.reason}; train the cell again (gcdbench run ...)")
    if record is None:
        raise UserError(f"{cell.label} has no record; train it first (gcdbench run ...)")
    predicted = read_predictions(cell_folder(options.results, cell), record)
    if isinstance(predicted, str):
        raise UserError(f"{cell.label}: {predicted}")
    for name in choice.sets(record, problem, options.sets):
        figure = clusters(problem, name, predicted[name], caption_of(cell), number=options.rows)
        yield f"-{name.replace('/', '-')}", figure


def find(predicted: Rows, labels: Rows, rows: Rows) -> list[Cluster]:
    """Return the clusters of an evaluation set, those with most mistakes first."""
    assignment = match(predicted, labels)
    found = []
    for number in np.unique(predicted).tolist():
        members = predicted == number
        label = int(assignment[number])
        wrong = members & (labels != label)
        counts = Counter(labels[wrong].tolist())
        order = sorted(
            np.flatnonzero(wrong).tolist(), key=lambda i: (-counts[labels[i]], labels[i], i)
        )
        right = rows[members & (labels == label)]
        found.append(Cluster(number, label, right, rows[order], int((labels == label).sum())))
    return sorted(found, key=lambda one: (-len(one.wrong), one.number))


def clusters(
    problem: Problem, name: str, predicted: Rows, caption: str, *, number: int = 10
) -> Figure:
    """Draw the ``number`` clusters with most mistakes, a row each: right images, then wrong."""
    rows = problem.sets[name].rows
    every = find(predicted, problem.labels[rows], rows)
    found = every[:number]
    with drawing():
        tiles = Tiles(len(found), RIGHT + WRONG, inches=0.68, margin=2.2, pitch=1.2)
        for line, cluster in enumerate(found):
            tiles.label(line, *_described(cluster, problem))
            _row(tiles, line, 0, cluster.right[:RIGHT], RIGHT_COLOUR, problem)
            wrong = _every_kind(cluster.wrong, problem.labels)
            _row(tiles, line, RIGHT, wrong, WRONG_COLOUR, problem)
        hits = sum(len(one.right) for one in every)
        text = f"{set_title(name)}: {hits} of {len(rows)} images right, in {len(every)} clusters"
        text += "" if len(found) == len(every) else f"; the {len(found)} with most mistakes"
        tiles.figure.suptitle(text, fontsize=9, x=0.01, ha="left")
        tiles.note(
            "left: images of the class that the cluster is matched to; right: of others, the most "
            "frequent first; * new class",
            caption,
        )
    return tiles.figure


def _every_kind(wrong: Rows, labels: Rows) -> Rows:
    """Choose the wrong images to show: at most ``SAME`` of a class, as long as there are others."""
    seen: Counter[int] = Counter()
    chosen: list[int] = []
    spare: list[int] = []
    for place, label in enumerate(labels[wrong].tolist()):
        seen[label] += 1
        (chosen if seen[label] <= SAME else spare).append(place)
    return wrong[sorted([*chosen, *spare][:WRONG])]


def _described(cluster: Cluster, problem: Problem) -> tuple[str, str]:
    if not len(cluster.right):  # no image of its matched class is in it
        return "no class", f"0 of {cluster.size} right"
    share = f"{len(cluster.right)} of {cluster.size} right, {cluster.sought} sought"
    return _named(cluster.label, problem), share


def _row(tiles: Tiles, line: int, start: int, rows: Rows, colour: str, problem: Problem) -> None:
    for column, row in enumerate(rows.tolist(), start=start):
        tiles.put(line, column, thumbnail(problem.images, row))
        tiles.frame(line, column, colour)
        tiles.title(line, column, _named(problem.labels[row], problem))


def _named(label: int, problem: Problem) -> str:
    name = problem.classes[label].replace("_", " ")
    short = name if len(name) <= 16 else name[:15] + "…"
    return short + ("" if label < problem.num_old else " *")


def thumbnail(images: Images, row: int) -> NDArray[np.uint8]:
    """Return an image as a small square."""
    square = ImageOps.fit(images.open(row), (PIXELS, PIXELS), Image.Resampling.BICUBIC)
    return np.asarray(square)
