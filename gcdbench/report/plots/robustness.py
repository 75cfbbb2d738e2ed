"""What a shift costs: accuracy on shifted images against accuracy on source images."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gcdbench.report import series
from gcdbench.report.board import Board
from gcdbench.report.names import dataset_title, method_title, set_title
from gcdbench.report.plots.canvas import FAINT, NothingToDraw, drawing, sheet
from gcdbench.report.style import MARKERS, looks


def drop(board: Board) -> Figure:
    """Draw one point per dataset and method; the nearer to the diagonal, the less is lost."""
    table = series.drops(board)
    if table.empty:
        raise NothingToDraw("drop: these records have no shifted evaluation sets")
    look = looks(board.rows)
    markers = dict(zip(table["dataset"].unique(), MARKERS, strict=False))
    with drawing():
        figure = sheet(5.0, 3.6)
        axis = figure.subplots()
        high = 10 * np.ceil(max(table["source"].max(), table["shifted"].max()) / 10)
        low = 10 * np.floor(min(table["source"].min(), table["shifted"].min()) / 10)
        for lost in range(0, int(high - low), 10):
            axis.plot([low, high], [low - lost, high - lost], color=FAINT, lw=0.7, zorder=0)
            if lost:
                place = (high, high - lost)
                axis.annotate(f"−{lost}", place, (2, 0), textcoords="offset points", va="center")
        for row in table.itertuples():
            colour = look[row.method].colour
            spread = (row.source_std, row.shifted_std)
            axis.errorbar(
                row.source, row.shifted, yerr=spread[1], xerr=spread[0], color=colour, lw=0.8
            )
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
        axis.set(xlim=(low, high), ylim=(low, high), aspect="equal")
        axis.set(xlabel="source, All (%)", ylabel="shifted, All (%)")
        handles = [_dot(look[m].colour, "o", method_title(m)) for m in board.rows]
        handles += [_dot("#555555", m, dataset_title(d)) for d, m in markers.items()]
        figure.legend(handles=handles, loc="outside right upper")
    return figure


def _dot(colour: str, marker: str, label: str) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, ls="", markersize=5, label=label)


def radar(board: Board) -> Figure:
    """Draw a polygon per method with an axis per dataset and evaluation set."""
    axes = [(d, n) for d in board.collection.datasets for n, _ in board.sets_of(d)]
    if len(axes) < 3:
        raise NothingToDraw("radar: needs at least three evaluation sets, over all datasets")
    look, angles = looks(board.rows), np.linspace(0, 2 * np.pi, len(axes), endpoint=False)
    with drawing():
        figure = sheet(6.2, 4.2)
        axis = figure.add_subplot(projection="polar")
        axis.set(theta_offset=np.pi / 2, theta_direction=-1)
        for method in board.rows:
            values = np.array([board.lookup[d, name, "All", method].mean for d, name in axes])
            if np.isnan(values).any():
                continue  # a polygon with a hole would be read as a low value
            kind = look[method]
            around = np.r_[angles, angles[0]], np.r_[values, values[0]]
            axis.plot(*around, color=kind.colour, ls=kind.dashes, label=method_title(method))
            axis.scatter(angles, values, s=14, color=kind.colour, marker=kind.marker, zorder=3)
        titles = [f"{dataset_title(d)}\n{set_title(name)}" for d, name in axes]
        axis.set_xticks(angles, titles)
        axis.tick_params(axis="x", pad=12)
        axis.set_ylim(bottom=0)
        axis.set_rlabel_position(180 / len(axes))
        axis.tick_params(axis="y", labelsize=6.5, labelcolor="#777777")
        axis.spines["polar"].set_visible(False)
        figure.legend(loc="outside right upper")
    return figure
