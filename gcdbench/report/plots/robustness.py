"""What a shift costs: accuracy on shifted images against accuracy on source images."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MultipleLocator

from gcdbench.report import plot_data
from gcdbench.report.leaderboard import Leaderboard
from gcdbench.report.plots.canvas import (
    FAINT,
    NothingToDraw,
    drawing,
    footnote_on_incomplete,
    legend,
    sheet,
)
from gcdbench.report.style import MARKERS, looks
from gcdbench.report.titles import dataset_title, method_title, set_title


def drop(leaderboard: Leaderboard) -> Figure:
    """Draw one point per dataset and method; the nearer to the diagonal, the less is lost."""
    points = plot_data.drops(leaderboard)
    if not points:
        raise NothingToDraw("drop: these records have no shifted evaluation sets")
    look = looks(leaderboard.rows)
    markers = dict(zip(dict.fromkeys(p.dataset for p in points), MARKERS, strict=False))
    with drawing():
        figure = sheet(5.3, 3.7)
        axis = figure.subplots()
        values = [value for point in points for value in (point.source, point.shifted)]
        low, high = 10 * np.floor(min(values) / 10), 10 * np.ceil(max(values) / 10)
        for lost in range(0, int(high - low), 10 if high - low <= 60 else 20):
            axis.plot([low, high], [low - lost, high - lost], color=FAINT, lw=0.7, zorder=0)
            label, place = f"−{lost}" if lost else "no loss", (high, high - lost)
            axis.annotate(label, place, (3, 0), textcoords="offset points", va="center")
        for row in points:
            colour = look[row.method].colour
            spread = (row.source_std, row.shifted_std)
            axis.errorbar(row.source, row.shifted, *spread[::-1], color=colour, lw=0.8, alpha=0.6)
            axis.scatter(
                row.source,
                row.shifted,
                s=34,
                marker=markers[row.dataset],
                color=colour,
                edgecolor="white",
                linewidth=0.6,
                zorder=3,
            )
        axis.set(xlim=(low, high), ylim=(low, high))
        axis.set(xlabel="source, All (%)", ylabel="shifted, All (%)")
        handles = [_dot(look[m].colour, "o", method_title(m)) for m in leaderboard.rows]
        handles += [_dot("#555555", m, dataset_title(d)) for d, m in markers.items()]
        figure.legend(handles=handles, loc="outside right upper")
    return figure


def _dot(colour: str, marker: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, ls="", markersize=5, label=label)


def radar(leaderboard: Leaderboard) -> Figure:
    """Draw a polygon per method with an axis per dataset and evaluation set."""
    axes = [(d, n) for d in leaderboard.collection.datasets for n, _ in leaderboard.sets_of(d)]
    if len(axes) < 3:
        raise NothingToDraw("radar: needs at least three evaluation sets, over all datasets")
    look = {
        m: kind for m, kind in looks(leaderboard.rows).items() if m not in leaderboard.incomplete
    }
    angles = np.linspace(0, 2 * np.pi, len(axes), endpoint=False)
    with drawing():
        figure = sheet(6.2, 4.2)
        axis: Any = figure.add_subplot(projection="polar")
        axis.set(theta_offset=np.pi / 2, theta_direction=-1)
        for method, kind in look.items():
            values = np.array([leaderboard.lookup[d, name, "All", method].mean for d, name in axes])
            around = np.r_[angles, angles[0]], np.r_[values, values[0]]
            axis.plot(*around, color=kind.colour, ls=kind.dashes)
            axis.scatter(angles, values, s=14, color=kind.colour, marker=kind.marker, zorder=3)
        titles = [f"{dataset_title(d)}\n{set_title(name)}" for d, name in axes]
        axis.set_xticks(angles, titles)
        axis.tick_params(axis="x", pad=12)
        axis.set_ylim(bottom=0)
        axis.set_rlabel_position(180 / len(axes))
        axis.yaxis.set_major_locator(MultipleLocator(20))
        axis.tick_params(axis="y", labelsize=6.5, labelcolor="#777777")
        axis.spines["polar"].set_visible(False)
        legend(figure, look)
        footnote_on_incomplete(figure, leaderboard)
    return figure
