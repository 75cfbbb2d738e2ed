"""Plots of records, drawn without a display."""

from __future__ import annotations

import io
from pathlib import Path

import matplotlib as mpl
import seaborn as sns
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from gcdbench.records import write_atomically
from gcdbench.report.collect import Collection


def bars(collection: Collection, title: str) -> Figure:
    """Draw accuracy (All) per evaluation set and method, one panel per dataset."""
    table = collection.table[collection.table["split"] == "All"]
    datasets = list(table["dataset"].unique())
    with mpl.rc_context({"font.size": 9, **sns.axes_style("whitegrid")}):
        figure = Figure(figsize=(2.2 + 2.6 * len(datasets), 3.2), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, len(datasets), sharey=True, squeeze=False)[0]
        methods = list(table["method"].unique())
        for axis, dataset in zip(axes, datasets, strict=True):
            sns.barplot(
                table[table["dataset"] == dataset],
                x="set",
                y="accuracy",
                hue="method",
                hue_order=methods,
                errorbar="sd",
                palette="colorblind",
                capsize=0.2,
                err_kws={"linewidth": 1},
                ax=axis,
            )
            axis.set(title=dataset, xlabel="", ylabel="clustering accuracy, All (%)")
            axis.get_legend().remove()
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right upper", frameon=False)
        figure.suptitle(title, fontsize=10)
    return figure


def write(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, metadata={"Software": None})
    write_atomically(path, buffer.getvalue())
    return path
