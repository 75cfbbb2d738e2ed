"""Accuracies as grouped bars: one column of panels per dataset, rows All, Old and New."""

from __future__ import annotations

from typing import Any

import numpy as np
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from gcdbench.report.collect import SPLITS
from gcdbench.report.leaderboard import Leaderboard
from gcdbench.report.plots.canvas import drawing, horizontal_grid, sheet
from gcdbench.report.style import looks
from gcdbench.report.titles import dataset_title, method_title, set_title

WIDTH = 0.86  # of a group of bars


def bars(leaderboard: Leaderboard) -> Figure:
    """Draw the mean over seeds of every evaluation set; whiskers are standard deviations."""
    table, methods = leaderboard.collection.table, leaderboard.rows
    look = looks(methods)
    datasets = [d for d in leaderboard.collection.datasets if leaderboard.sets_of(d)]
    colours = {method: kind.colour for method, kind in look.items()}
    hatches = {kind.colour: kind.hatch for kind in look.values()}
    with drawing():
        widths = [len(leaderboard.sets_of(dataset)) for dataset in datasets]
        figure = sheet(1.9 + 0.16 * sum(widths) * (len(methods) + 1.5), 5.4)
        panels = figure.subplots(
            3, len(datasets), sharey=True, sharex="col", squeeze=False, width_ratios=widths
        )
        for row, split in zip(panels, SPLITS, strict=True):
            for axis, dataset in zip(row, datasets, strict=True):
                order = [name for name, _ in leaderboard.sets_of(dataset)]
                sns.barplot(
                    table[(table["dataset"] == dataset) & (table["split"] == split)],
                    x="set",
                    y="accuracy",
                    hue="method",
                    order=order,
                    hue_order=methods,
                    palette=colours,
                    saturation=1,
                    errorbar="sd",
                    width=WIDTH,
                    err_kws={"linewidth": 0.8, "color": "#333333"},
                    capsize=0.25,
                    legend=False,
                    ax=axis,
                )
                for bar in axis.patches:
                    hatch = hatches[to_hex(bar.get_facecolor()).upper()]
                    bar.set(hatch=hatch, edgecolor="white", linewidth=0.4)
                _mark_missing(
                    axis,
                    [
                        [leaderboard.lookup[dataset, name, split, m] for m in methods]
                        for name in order
                    ],
                )
                axis.set(xlabel="", ylabel=f"{split} (%)", xticks=range(len(order)))
                axis.set_xticklabels([set_title(name) for name in order])
                axis.label_outer()
            horizontal_grid(row)
        top = max(axis.get_ylim()[1] for axis in panels.flat)
        panels[0, 0].set_ylim(0, min(100, 10 * np.ceil(top / 10)))
        for axis, dataset in zip(panels[0], datasets, strict=True):
            axis.set_title(dataset_title(dataset))
        handles = [
            Patch(facecolor=kind.colour, hatch=kind.hatch, edgecolor="white", label=method_title(m))
            for m, kind in look.items()
        ]
        figure.legend(handles=handles, loc="outside right upper")
    return figure


def _mark_missing(axis: Axes, groups: list[list[Any]]) -> None:
    """Put a cross where a bar would stand had it been measured."""
    for place, rows in enumerate(groups):
        for number, row in enumerate(rows):
            if np.isnan(row.mean):
                x = place - WIDTH / 2 + WIDTH * (number + 0.5) / len(rows)
                axis.plot(x, 2, marker="x", color="#999999", markersize=3.5, markeredgewidth=0.8)
