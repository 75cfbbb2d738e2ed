"""Accuracy on shifted images against accuracy on source images."""

from __future__ import annotations

import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gcdbench.report import plot_data
from gcdbench.report.leaderboard import Leaderboard
from gcdbench.report.plots import NothingToDraw
from gcdbench.report.plots.canvas import FAINT, MUTED, belongs_to, drawing, legend_above, sheet
from gcdbench.report.style import Look, looks
from gcdbench.report.titles import dataset_title, method_title

COLUMNS = 3  # of panels


def drop(leaderboard: Leaderboard) -> Figure:
    """Draw one panel per dataset; the nearer a method to the diagonal, the less it loses.

    Markers are translucent and differ by method, so that one below another stays visible.
    """
    points = plot_data.drops(leaderboard)
    if not points:
        raise NothingToDraw("drop: these records have no shifted evaluation sets")
    look = looks(leaderboard.rows)
    datasets = list(dict.fromkeys(point.dataset for point in points))
    columns = min(len(datasets), COLUMNS)
    rows = -(-len(datasets) // columns)
    values = [value for point in points for value in (point.source, point.shifted)]
    low, high = 10 * math.floor(min(values) / 10), 10 * math.ceil(max(values) / 10)
    with drawing():
        figure = sheet(1.0 + 2.4 * columns, 1.0 + 2.4 * rows)
        panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for axis in panels.flat[len(datasets) :]:
            axis.set_visible(False)
        for axis, dataset in zip(panels.flat, datasets, strict=False):
            _diagonals(axis, low, high)
            for point in points:
                if point.dataset == dataset:
                    _draw(axis, point, look[point.method])
            axis.set(xlim=(low, high), ylim=(low, high), box_aspect=1)
            axis.set_title(dataset_title(dataset))
            axis.set(xlabel="source, All (%)", ylabel="shifted, All (%)")
            axis.label_outer()
        handles = [_dot(kind, method_title(method)) for method, kind in look.items()]
        legend_above(figure, handles)
    return figure


def _diagonals(axis: Axes, low: int, high: int) -> None:
    """Draw a line for every loss of 20 points, with its name where there is room."""
    for lost in range(0, high - low, 20):
        axis.plot([low, high], [low - lost, high - lost], color=FAINT, lw=0.7, zorder=0)
        place = (low + lost + 2, low + 2) if lost else (low + 2, low + 4)
        label = f"−{lost}" if lost else "no loss"
        rise: dict[str, Any] = {
            "rotation": 45,
            "rotation_mode": "anchor",
            "fontsize": 6.5,
            "color": MUTED,
        }
        axis.annotate(label, place, (2, -1 if lost else 1), textcoords="offset points", **rise)


def _draw(axis: Axes, point: plot_data.Drop, look: Look) -> None:
    across = [point.source - point.source_std, point.source + point.source_std]
    along = [point.shifted - point.shifted_std, point.shifted + point.shifted_std]
    whiskers = [
        *axis.plot(across, [point.shifted] * 2, color=look.colour, lw=0.8),
        *axis.plot([point.source] * 2, along, color=look.colour, lw=0.8),
    ]
    dot = axis.scatter(
        point.source,
        point.shifted,
        s=34,
        marker=look.marker,
        facecolor=to_rgba(look.colour, 0.35),
        edgecolor=look.colour,
        linewidth=1.1,
        zorder=3,
    )
    belongs_to(point.method, [dot, *whiskers])


def _dot(look: Look, label: str) -> Line2D:
    dot = Line2D([], [], color=look.colour, marker=look.marker, ls="", markersize=5, label=label)
    dot.set_markerfacecolor(to_rgba(look.colour, 0.35))
    return dot
