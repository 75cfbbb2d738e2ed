"""What settings can be chosen by: rank correlation and regret of every criterion."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gcdbench.report.plots.canvas import INK, MUTED, drawing, horizontal_grid, sheet
from gcdbench.report.style import looks
from gcdbench.report.titles import method_title
from gcdbench.report.tuning.selection import DEFAULT, Line, summaries


def selection(found: Sequence[Line]) -> Figure:
    """Draw one point per method and dataset, and the mean with its interval, by criterion."""
    look = looks(dict.fromkeys(line.trial.method for line in found))
    total = {one.criterion: one for one in summaries(found)}
    with drawing():
        figure = sheet(8.2, 3.6)
        left, right = figure.subplots(1, 2)
        for axis, what in ((left, "correlation"), (right, "regret")):
            names = [n for n in total if not (what == "correlation" and n == DEFAULT)]
            for place, name in enumerate(names):
                own = [line for line in found if line.criterion == name]
                spread = np.linspace(-0.22, 0.22, len(own)) if len(own) > 1 else [0.0]
                for shift, line in zip(spread, own, strict=True):
                    value = line.correlation.value if what == "correlation" else line.regret
                    style = look[line.trial.method]
                    axis.plot(
                        place + shift, value, style.marker, color=style.colour, ms=4, alpha=0.8
                    )
                mean = getattr(total[name], what)
                if not math.isnan(mean.low):
                    axis.plot([place] * 2, [mean.low, mean.high], color=INK, lw=1.2, zorder=4)
                axis.plot(place, mean.value, "_", color=INK, ms=14, mew=1.8, zorder=5)
            labels = [_label(name) for name in names]
            axis.set_xticks(range(len(names)), labels, rotation=35, ha="right")
            axis.set_xlim(-0.5, len(names) - 0.5)
        left.axhline(0, color=MUTED, lw=0.7)
        left.set(ylabel="rank correlation with the target", ylim=(-1.05, 1.05))
        right.set(ylabel="regret: points below the best draw")
        right.set_ylim(bottom=min(0, right.get_ylim()[0]))
        horizontal_grid([left, right])
        handles = [
            Line2D(
                [], [], color=one.colour, marker=one.marker, ls="", ms=4.5, label=method_title(m)
            )
            for m, one in look.items()
        ]
        figure.legend(handles=handles, loc="outside right upper")
    return figure


def _label(name: str) -> str:
    return "oracle (hidden labels)" if name == "oracle" else name
