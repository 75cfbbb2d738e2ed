"""Loss and, if it was measured, accuracy by epoch; or single loss terms and diagnostics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gcdbench.errors import unknown
from gcdbench.experiment.record import Record
from gcdbench.report import plot_data
from gcdbench.report.leaderboard import Leaderboard
from gcdbench.report.plots import NothingToDraw
from gcdbench.report.plots.canvas import (
    belongs_to,
    drawing,
    horizontal_grid,
    legend,
    sheet,
)
from gcdbench.report.style import Look, looks
from gcdbench.report.titles import dataset_title

Panels = list[tuple[str, pd.DataFrame, str]]  # label, table, its column


def curves(leaderboard: Leaderboard, terms: Sequence[str] | None = None) -> Figure:
    """Draw means over seeds with a band from the least to the greatest seed.

    ``terms`` names loss terms and diagnostics to draw in place of loss and accuracy; empty: all.
    """
    records = leaderboard.collection.records
    rows = _results(records) if terms is None else _terms(records, terms)
    drawn = {dataset for _, table, _ in rows for dataset in table["dataset"]}
    datasets = [d for d in leaderboard.collection.datasets if d in drawn]
    look = looks(leaderboard.rows)
    with drawing():
        figure = sheet(1.6 + 2.0 * len(datasets), 0.7 + 1.5 * len(rows))
        panels = figure.subplots(len(rows), len(datasets), squeeze=False, sharex="col")
        for line, (title, table, column) in zip(panels, rows, strict=True):
            grouped = table.groupby(["dataset", "method", "epoch"])[column]
            seeds = grouped.agg(["min", "mean", "max"])
            for axis, dataset in zip(line, datasets, strict=True):
                axis.locator_params(nbins=4)
                if dataset in seeds.index:
                    _draw(axis, seeds.loc[[dataset]].droplevel("dataset"), look)
            if column == "accuracy":
                top = max(axis.get_ylim()[1] for axis in line)
                for axis in line:
                    axis.set_ylim(0, top)
                    axis.label_outer()
            line[0].set_ylabel(title)
            horizontal_grid(line)
        for top, bottom, dataset in zip(panels[0], panels[-1], datasets, strict=True):
            top.set_title(dataset_title(dataset))
            bottom.set_xlabel("epoch")
        legend(figure, look)
    return figure


def _results(records: Sequence[Record]) -> Panels:
    """Return the loss, and the accuracies that were measured."""
    losses, accuracies = plot_data.losses(records), plot_data.learning(records)
    if losses.empty:
        raise NothingToDraw("curves: these records hold no learning curves")
    losses["scaled"] = losses.groupby(["dataset", "method"])["loss"].transform(_scaled)
    rows: Panels = [("loss, own scale", losses, "scaled")]
    for role in ("source", "shifted"):
        chosen = accuracies[accuracies["role"] == role]
        if not chosen.empty:
            rows.append((f"{role}, All (%)", chosen, "accuracy"))
    return rows


def _scaled(losses: pd.Series) -> pd.Series:
    """Return losses from 0, the least, to 1: methods add up other terms, so sums do not compare."""
    low, high = losses.min(), losses.max()
    return (losses - low) / (high - low) if high > low else losses * 0


def _terms(records: Sequence[Record], names: Sequence[str]) -> Panels:
    """Return loss terms and diagnostics, each with a panel of its own."""
    table = plot_data.terms(records)
    if table.empty:
        raise NothingToDraw("curves: these records hold no learning curves")
    known = list(table["name"].unique())
    for name in names:
        if name not in known:
            raise unknown("term", name, known, "--terms")
    return [
        (name.replace("_", " "), table[table["name"] == name], "value") for name in names or known
    ]


def _draw(axis: Axes, seeds: pd.DataFrame, look: dict[str, Look]) -> None:
    """Draw a line per method through the means over seeds, and the band of all seeds."""
    for method, kind in look.items():
        if method not in seeds.index:
            continue
        rows = seeds.loc[method].dropna()
        epochs, (low, mean, high) = rows.index.to_numpy(), rows.to_numpy().T
        lines = axis.plot(
            epochs,
            mean,
            color=kind.colour,
            ls=kind.dashes,
            marker=kind.marker,
            markersize=3,
            markevery=1 if len(mean) <= 12 else len(mean) // 6,
            lw=1.2,
        )
        around = np.r_[epochs, epochs[::-1]], np.r_[low, high[::-1]]
        band = axis.fill(*around, color=kind.colour, alpha=0.15, lw=0)
        belongs_to(method, [*lines, *band])
