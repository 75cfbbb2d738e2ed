"""Accuracies as grouped bars: a row of panels per dataset, columns All, Old and New."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gcdbench.report.collect import SPLITS
from gcdbench.report.leaderboard import Leaderboard, Number
from gcdbench.report.plots.canvas import (
    INK,
    MUTED,
    PAPER,
    belongs_to,
    drawing,
    horizontal_grid,
    legend_above,
    sheet,
)
from gcdbench.report.style import Look, looks
from gcdbench.report.titles import dataset_title, method_title, set_title

WIDTH = 0.86  # of a group of bars
MOST_UPRIGHT = 5  # evaluation sets whose names fit side by side


def bars(leaderboard: Leaderboard) -> Figure:
    """Draw the mean over seeds of every evaluation set; whiskers are standard deviations."""
    look = looks(leaderboard.rows)
    sets = {
        dataset: [name for name, _ in leaderboard.sets_of(dataset)]
        for dataset in leaderboard.collection.datasets
        if leaderboard.sets_of(dataset)
    }
    most = max(len(names) for names in sets.values())
    with drawing():
        figure = sheet(0.7 + 3 * max(0.088 * most * (len(look) + 1.5), 1.3), 0.9 + 1.5 * len(sets))
        panels = figure.subplots(len(sets), 3, sharey=True, sharex="row", squeeze=False)
        for row, (dataset, names) in zip(panels, sets.items(), strict=True):
            for axis, split in zip(row, SPLITS, strict=True):
                for place, (method, kind) in enumerate(look.items()):
                    left = WIDTH * ((place + 0.5) / len(look) - 0.5)
                    numbers = [leaderboard.lookup[dataset, name, split, method] for name in names]
                    _bars(axis, numbers, kind, left, WIDTH / len(look))
                axis.set_xlim(-0.5, len(names) - 0.5)
                turn = {"rotation": 90} if len(names) > MOST_UPRIGHT else {}
                axis.set_xticks(range(len(names)), [set_title(name) for name in names], **turn)
            row[0].set_ylabel(f"{dataset_title(dataset)} (%)")
            horizontal_grid(row)
        top = max(axis.get_ylim()[1] for axis in panels.flat)
        panels[0, 0].set_ylim(0, min(100, 10 * math.ceil(top / 10)))
        for axis, split in zip(panels[0], SPLITS, strict=True):
            axis.set_title(split)
        handles = [
            Patch(facecolor=kind.colour, hatch=kind.hatch, edgecolor=PAPER, label=method_title(m))
            for m, kind in look.items()
        ]
        legend_above(figure, handles)
    return figure


def _bars(axis: Axes, numbers: list[Number], look: Look, left: float, width: float) -> None:
    """Draw a method's bars on all sets of a dataset, and a cross for each missing number."""
    x = np.arange(len(numbers)) + left
    measured = np.array([number.seeds > 0 for number in numbers])
    means = np.array([number.mean for number in numbers])
    spread = np.array([number.std for number in numbers])
    drawn: list[Artist] = []
    if measured.any():
        style: dict[str, Any] = {
            "color": look.colour,
            "hatch": look.hatch,
            "edgecolor": PAPER,
            "linewidth": 0.4,
        }
        drawn += axis.bar(x[measured], means[measured], width, **style)
        drawn.append(axis.vlines(x, means - spread, means + spread, colors=INK, linewidths=0.8))
    if not measured.all():
        heights = np.full((~measured).sum(), 2.0)
        drawn += axis.plot(x[~measured], heights, "x", color=MUTED, ms=3.5, mew=0.8)
    belongs_to(numbers[0].method, drawn)
