"""Features projected on their first two principal components, by domain and by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.offsetbox import AnnotationBbox, OffsetImage
from numpy.typing import NDArray

from gcdbench.cell_plots import Options, caption_of, choice
from gcdbench.cell_plots.trained import Trained
from gcdbench.experiment.plan import Cell
from gcdbench.report.plots.canvas import FAINT, drawing, sheet
from gcdbench.report.style import MARKERS
from gcdbench.report.titles import set_title

POINTS = 240  # images of a domain
THUMBNAILS = 22
CLASSES = 8  # in colour; the others are grey
Array = NDArray[np.float64]
Kinds = NDArray[np.integer]  # domain or class of each image


def draw(cell: Cell, options: Options) -> Iterator[tuple[str, Figure]]:
    """Draw the features of a cell whose weights were kept."""
    yield "", pca(Trained.load(cell, options.results), caption_of(cell))


def pca(trained: Trained, caption: str) -> Figure:
    """Draw every kind of feature twice: with thumbnails and domains, and with classes."""
    problem = trained.problem
    by_domain = choice.domains(problem, POINTS)
    rows = np.concatenate(list(by_domain.values()))
    domain = np.repeat(np.arange(len(by_domain)), [len(r) for r in by_domain.values()])
    labels = problem.labels[rows]
    features = trained.features(rows)
    with drawing():
        figure = sheet(7.2, 0.6 + 3.3 * len(features))
        panels = figure.subplots(len(features), 2, squeeze=False)
        for line, (title, values) in zip(panels, features.items(), strict=True):
            unit = values / np.linalg.norm(values, axis=1, keepdims=True).clip(min=1e-12)
            points, shares = project(unit.astype(np.float64))
            shown = choice.spread(points, THUMBNAILS)
            _points(line[0], points, domain, colours(len(by_domain)), domain)
            _thumbnails(line[0], points[shown], trained.pictures(rows[shown]), domain[shown])
            _classes(line[1], points, labels, domain, problem.classes)
            line[0].set_title(title)
            line[1].set_title("the same, by class")
            for axis in line:
                axis.set(xticks=[], yticks=[], ylabel=f"{100 * shares[1]:.0f} %")
            first = f"{100 * shares[0]:.0f} % of the variance"
            line[0].set_xlabel(f"{first}\n{neighbours(unit, 'domain', domain)}")
            line[1].set_xlabel(f"{first}\n{neighbours(unit, 'class', labels)}")
        handles = [
            Line2D([], [], color=c, marker=m, ls="", markersize=5, label=set_title(name))
            for name, c, m in zip(by_domain, colours(len(by_domain)), MARKERS * 4, strict=False)
        ]
        figure.legend(handles=handles, loc="outside upper left", ncols=8)
        figure.supxlabel(caption, fontsize=6.5, color="#666666", x=0.01, ha="left")
    return figure


def project(features: Array) -> tuple[Array, Array]:
    """Return the first two principal components (n, 2) and their shares of the variance.

    The sign of a component is arbitrary; the largest entry of each is made positive.
    """
    centred = features - features.mean(0)
    _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
    directions = directions[:2]
    largest = np.abs(directions).argmax(1)
    directions *= np.sign(directions[np.arange(len(directions)), largest])[:, None]
    return centred @ directions.T, (lengths**2 / (lengths**2).sum())[:2]


def neighbours(unit: Array, name: str, kinds: Kinds) -> str:
    """Return how often the nearest neighbour is of the same kind, and how often by chance."""
    likeness = unit @ unit.T
    np.fill_diagonal(likeness, -np.inf)
    share = (kinds == kinds[likeness.argmax(1)]).mean()
    sizes = np.bincount(kinds)
    chance = (sizes * (sizes - 1)).sum() / (len(kinds) * (len(kinds) - 1))
    return f"nearest image of the same {name}: {share:.0%} (by chance {chance:.0%})"


def colours(number: int) -> list[str]:
    """Return colours that are distinguishable with any kind of colour vision."""
    return sns.color_palette("colorblind", number).as_hex()


def _points(axis: Axes, points: Array, kinds: Kinds, palette: list[str], domain: Kinds) -> None:
    for number in np.unique(domain):
        inside = domain == number
        tints = [palette[kind] for kind in kinds[inside]]
        marker = MARKERS[number % len(MARKERS)]
        x, y = points[inside].T
        axis.scatter(x, y, s=9, c=tints, marker=marker, linewidths=0, alpha=0.75)


def _classes(
    axis: Axes, points: Array, labels: Kinds, domain: Kinds, names: tuple[str, ...]
) -> None:
    chosen = [label for label, _ in Counter(labels.tolist()).most_common(CLASSES)]
    palette = [*colours(len(chosen)), FAINT]
    kinds = np.array([chosen.index(x) if x in chosen else len(chosen) for x in labels])
    back = kinds == len(chosen)
    for part in (back, ~back):  # the grey ones first, so that they are below
        _points(axis, points[part], kinds[part], palette, domain[part])
    handles = [
        Line2D([], [], color=palette[n], marker="o", ls="", markersize=4, label=names[label])
        for n, label in enumerate(chosen)
    ]
    axis.legend(handles=handles, loc="upper left", bbox_to_anchor=(1, 1), fontsize=6.5)


def _thumbnails(axis: Axes, points: Array, pictures: NDArray[np.uint8], domain: Kinds) -> None:
    palette = colours(int(domain.max()) + 1)
    for place, picture, kind in zip(points, pictures, domain, strict=True):
        box = AnnotationBbox(
            OffsetImage(picture, zoom=19 / picture.shape[0]),
            tuple(place),
            pad=0.1,
            bboxprops={"edgecolor": palette[kind], "linewidth": 1.2},
        )
        axis.add_artist(box)
