"""Accuracy as a function of one setting: head sizes, learning rate, layers, ..."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gcdbench.report.plots import NothingToDraw
from gcdbench.report.plots.canvas import MUTED, drawing, horizontal_grid, legend, sheet
from gcdbench.report.sensitivity import Varied
from gcdbench.report.style import looks
from gcdbench.report.titles import dataset_title, in_order


def sensitivity(varied: Varied) -> Figure:
    """Draw All on source and shifted images against the setting, a panel per dataset and role.

    Bands reach from the least to the greatest seed; the dotted line is the setting's own value.
    """
    table = varied.table[varied.table["split"] == "All"]
    values = sorted(table["value"].unique(), key=_order)
    if len(values) < 2:
        raise NothingToDraw(
            f"sensitivity: the records differ in no value of {varied.setting}; make some with: "
            f"gcdbench run ... --set {varied.setting}=VALUE"
        )
    datasets = list(table["dataset"].unique())
    roles = [role for role in ("source", "shifted") if role in set(table["role"])]
    look = looks(in_order(table["method"]))
    place, scale = _axis(values)
    with drawing():
        figure = sheet(1.6 + 2.1 * len(datasets), 0.7 + 1.6 * len(roles))
        panels = figure.subplots(len(roles), len(datasets), squeeze=False, sharey=True, sharex=True)
        for line, role in zip(panels, roles, strict=True):
            for axis, dataset in zip(line, datasets, strict=True):
                for method, kind in look.items():
                    rows = _rows(table, dataset, role, method)
                    x = rows.index.map(place)
                    style = {"color": kind.colour, "ls": kind.dashes, "marker": kind.marker}
                    axis.plot(x, rows["mean"], markersize=4, **style)
                    axis.fill_between(x, rows["min"], rows["max"], color=kind.colour, alpha=0.15)
                own = varied.defaults.get(dataset)
                if own in place:
                    axis.axvline(place[own], color=MUTED, ls=":", lw=0.9, zorder=0)
                axis.set_xscale(scale)
                axis.set_xticks(list(place.values()), [str(value) for value in place])
                axis.tick_params(axis="x", labelrotation=35 if len(place) > 3 else 0)
                axis.minorticks_off()
            line[0].set_ylabel(f"{role}, All (%)")
            horizontal_grid(line)
        for axis, dataset in zip(panels[0], datasets, strict=True):
            axis.set_title(dataset_title(dataset))
        figure.supxlabel(varied.setting, fontsize=8)
        legend(figure, look)
    return figure


def _rows(table: pd.DataFrame, dataset: str, role: str, method: str) -> pd.DataFrame:
    """Return mean, least and greatest seed by value, in the order of the values."""
    chosen = (table["dataset"] == dataset) & (table["role"] == role) & (table["method"] == method)
    by_seed = table[chosen].groupby(["value", "seed"])["accuracy"].mean()
    found = by_seed.groupby("value").agg(["mean", "min", "max"])
    return found.reindex(sorted(found.index, key=_order))


def _order(value: object) -> tuple[bool, float, str]:
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return False, float(value), ""
    return True, 0.0, str(value)


def _axis(values: list[Any]) -> tuple[dict[object, float], str]:
    """Return the position of each value and the scale: log for a wide range of numbers.

    Values that are not numbers are spaced evenly.
    """
    if any(_order(value)[0] for value in values):
        return {value: float(number) for number, value in enumerate(values)}, "linear"
    wide = min(values) > 0 and np.log10(max(values) / min(values)) > 1
    return {value: float(value) for value in values}, "log" if wide else "linear"
