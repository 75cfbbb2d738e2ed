"""Accuracies on all evaluation sets as one polygon per method."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from gcdbench.report.leaderboard import Leaderboard
from gcdbench.report.plots import NothingToDraw
from gcdbench.report.plots.canvas import (
    MUTED,
    belongs_to,
    drawing,
    footnote_on_incomplete,
    legend,
    sheet,
)
from gcdbench.report.style import looks
from gcdbench.report.titles import dataset_title, set_title


def radar(leaderboard: Leaderboard) -> Figure:
    """Draw a polygon per method with an axis per dataset and evaluation set."""
    axes = [(d, n) for d in leaderboard.collection.datasets for n, _ in leaderboard.sets_of(d)]
    if len(axes) < 3:
        raise NothingToDraw("radar: needs at least three evaluation sets, over all datasets")
    every = looks(leaderboard.rows)
    look = {m: kind for m, kind in every.items() if m not in leaderboard.incomplete}
    angles = np.linspace(0, 2 * np.pi, len(axes), endpoint=False)
    with drawing():
        figure = sheet(6.2, 4.2)
        axis: Any = figure.add_subplot(projection="polar")
        axis.set(theta_offset=np.pi / 2, theta_direction=-1)
        for method, kind in look.items():
            values = np.array([leaderboard.lookup[d, name, "All", method].mean for d, name in axes])
            around = np.r_[angles, angles[0]], np.r_[values, values[0]]
            lines = axis.plot(*around, color=kind.colour, ls=kind.dashes)
            points = axis.scatter(
                angles, values, s=14, color=kind.colour, marker=kind.marker, zorder=3
            )
            belongs_to(method, [*lines, points])
        axis.set_xticks(angles, [f"{dataset_title(d)}\n{set_title(name)}" for d, name in axes])
        axis.tick_params(axis="x", pad=12)
        axis.set_ylim(bottom=0)
        axis.set_rlabel_position(180 / len(axes))
        axis.yaxis.set_major_locator(MultipleLocator(20))
        axis.tick_params(axis="y", labelsize=6.5, labelcolor=MUTED)
        axis.spines["polar"].set_visible(False)
        legend(figure, look)
        footnote_on_incomplete(figure, leaderboard)
    return figure
