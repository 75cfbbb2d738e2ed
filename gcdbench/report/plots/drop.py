"""Accuracy on shifted images against accuracy on source images."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gcdbench.report import plot_data
from gcdbench.report.leaderboard import Leaderboard
from gcdbench.report.plots import NothingToDraw
from gcdbench.report.plots.canvas import FAINT, MUTED, PAPER, belongs_to, drawing, sheet
from gcdbench.report.style import MARKERS, looks
from gcdbench.report.titles import dataset_title, method_title


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
            across = [row.source - row.source_std, row.source + row.source_std]
            along = [row.shifted - row.shifted_std, row.shifted + row.shifted_std]
            whiskers = [
                *axis.plot(across, [row.shifted] * 2, color=colour, lw=0.8, alpha=0.6),
                *axis.plot([row.source] * 2, along, color=colour, lw=0.8, alpha=0.6),
            ]
            point = axis.scatter(
                row.source,
                row.shifted,
                s=34,
                marker=markers[row.dataset],
                color=colour,
                edgecolor=PAPER,
                linewidth=0.6,
                zorder=3,
            )
            belongs_to(row.method, [point, *whiskers])
        axis.set(xlim=(low, high), ylim=(low, high))
        axis.set(xlabel="source, All (%)", ylabel="shifted, All (%)")
        handles = [_dot(look[m].colour, "o", method_title(m)) for m in leaderboard.rows]
        handles += [_dot(MUTED, m, dataset_title(d)) for d, m in markers.items()]
        figure.legend(handles=handles, loc="outside right upper")
    return figure


def _dot(colour: str, marker: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, ls="", markersize=5, label=label)
