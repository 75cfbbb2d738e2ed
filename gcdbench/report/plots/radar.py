"""Accuracies on all evaluation sets as one polygon per method."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from gcdbench.report.leaderboard import Leaderboard
from gcdbench.report.plots import NothingToDraw
from gcdbench.report.plots.canvas import (
    MUTED,
    PAPER,
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
    names = [f"{dataset_title(d)}\n{set_title(name)}" for d, name in axes]
    longest = max(len(line) for name in names for line in name.splitlines())
    angles = np.linspace(0, 2 * np.pi, len(axes), endpoint=False)
    with drawing():
        figure = sheet(4.7 + 0.14 * longest, 4.2)  # labels on both sides, and the legend
        axis: Any = figure.add_subplot(projection="polar")
        axis.set(theta_offset=np.pi / 2, theta_direction=-1)
        drawn: list[np.ndarray] = []
        for method, kind in look.items():
            values = np.array([leaderboard.lookup[d, name, "All", method].mean for d, name in axes])
            drawn.append(values)
            around = np.r_[angles, angles[0]], np.r_[values, values[0]]
            lines = axis.plot(*around, color=kind.colour, ls=kind.dashes)
            points = axis.scatter(
                angles, values, s=14, color=kind.colour, marker=kind.marker, zorder=3
            )
            belongs_to(method, [*lines, points])
        axis.set_xticks(angles, [""] * len(axes))
        top = 20 * math.ceil(max(map(max, drawn)) / 20) if drawn else 20
        axis.set(ylim=(0, top), rlabel_position=180 / len(axes))
        for angle, name in zip(angles, names, strict=True):
            _label(axis, angle, top, name)
        axis.yaxis.set_major_locator(MultipleLocator(20))
        axis.tick_params(axis="y", labelsize=6.5, labelcolor=MUTED)
        for text in axis.get_yticklabels():
            text.set_bbox({"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.6})
            text.set_zorder(4)
        axis.spines["polar"].set_visible(False)
        legend(figure, look)
        footnote_on_incomplete(figure, leaderboard)
    return figure


def _label(axis: Any, angle: float, radius: float, text: str) -> None:
    """Write a label outside of the circle, with its nearest edge at the end of its axis."""
    across, up = np.sin(angle), np.cos(angle)  # the first axis points upwards, clockwise from there
    sideways = "center" if abs(across) < 0.3 else "left" if across > 0 else "right"
    height = "center" if abs(up) < 0.3 else "bottom" if up > 0 else "top"
    axis.annotate(
        text,
        (angle, radius),
        (5 * across, 5 * up),
        textcoords="offset points",
        ha=sideways,
        va=height,
        annotation_clip=False,
    )
