"""Accuracy by corruption and severity."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from gcdbench.report import plot_data
from gcdbench.report.leaderboard import Leaderboard
from gcdbench.report.plots import NothingToDraw
from gcdbench.report.plots.canvas import ON_DARK, ON_LIGHT, drawing, sheet
from gcdbench.report.titles import method_title, set_title


def corruptions(leaderboard: Leaderboard) -> Figure:
    """Draw a heat map per method; all share one scale, from white (0) to dark (best)."""
    table = plot_data.corruptions(leaderboard.collection.records)
    if table.empty:
        raise NothingToDraw("corruptions: these records have no sets by corruption and severity")
    methods = [method for method in leaderboard.methods if method not in leaderboard.incomplete]
    kinds = list(table["corruption"].unique())
    severities = sorted(table["severity"].unique())
    across = min(4, len(methods))
    down = -(-len(methods) // across)
    top = table["accuracy"].max()
    edges = np.arange(len(severities) + 1) - 0.5, np.arange(len(kinds) + 1) - 0.5
    with drawing(), mpl.rc_context({"axes.spines.left": False, "axes.spines.bottom": False}):
        size = (1.5 + 1.55 * across, 0.6 + (0.45 + 0.2 * len(kinds)) * down)
        figure = sheet(*size)
        panels = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
        used = list(panels.flat[: len(methods)])
        for axis in panels.flat[len(methods) :]:
            axis.set_visible(False)
        for axis, method in zip(used, methods, strict=True):
            rows = table[table["method"] == method]
            grid = rows.pivot(index="corruption", columns="severity", values="accuracy")
            grid = grid.reindex(index=kinds, columns=severities)
            axis.pcolormesh(*edges, grid, cmap="Blues", vmin=0, vmax=1.15 * top)
            axis.set_ylim(len(kinds) - 0.5, -0.5)  # the first corruption on top
            for (row, column), value in np.ndenumerate(grid.to_numpy()):
                if not np.isnan(value):
                    ink = ON_DARK if value > 0.72 * top else ON_LIGHT
                    text = f"{value:.0f}"
                    axis.text(column, row, text, ha="center", va="center", color=ink, fontsize=6.5)
            axis.set_title(method_title(method))
            axis.set_xticks(range(len(severities)), [str(severity) for severity in severities])
            axis.set_yticks(range(len(kinds)), [set_title(kind) for kind in kinds])
            axis.tick_params(length=0)
        figure.supxlabel("severity; numbers are All (%)", fontsize=8)
    return figure
