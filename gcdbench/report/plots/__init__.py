"""Plots of records for print: PNG and PDF, drawn without a display."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.figure import Figure

from gcdbench.report.leaderboard import Leaderboard
from gcdbench.report.plots.bars import bars
from gcdbench.report.plots.canvas import NothingToDraw, write
from gcdbench.report.plots.corruptions import corruptions
from gcdbench.report.plots.critical import critical
from gcdbench.report.plots.curves import curves
from gcdbench.report.plots.errors import errors
from gcdbench.report.plots.robustness import drop, radar
from gcdbench.report.plots.sensitivity import sensitivity

__all__ = ["PLOTS", "NothingToDraw", "sensitivity", "write"]

PLOTS: dict[str, Callable[[Leaderboard], Figure]] = {
    "bars": bars,
    "drop": drop,
    "radar": radar,
    "errors": errors,
    "curves": curves,
    "critical": critical,
    "corruptions": corruptions,
}
