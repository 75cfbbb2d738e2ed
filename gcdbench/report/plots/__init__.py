"""Plots of many records: the list of them, and where each is drawn.

A plot is a module of this package with a function of the same name that returns a matplotlib
figure, and an entry of ``PLOTS``. The command line lists plots from here, so nothing heavy is
imported before one is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from gcdbench.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gcdbench.report.leaderboard import Leaderboard
    from gcdbench.report.sensitivity import Varied


class NothingToDraw(UserError):
    """The records hold no data for a plot."""


@dataclass(frozen=True)
class Plot:
    """A plot of a leaderboard's records."""

    name: str  # also of its module and function
    help: str  # one line
    section: Literal["", "figures", "certainty"] = ""  # of the page; empty: not on the page
    title: str = ""  # heading on the page
    note: str = ""  # text below the heading
    over: bool = False  # it draws records by the value of a setting, which ``--over`` names

    def draw(self, shown: Leaderboard | Varied, **options: object) -> Figure:
        """Return the figure; raise ``NothingToDraw`` if the records hold no data for it."""
        module = import_module(f"{__name__}.{self.name}")
        figure: Figure = getattr(module, self.name)(shown, **options)
        return figure


PLOTS: dict[str, Plot] = {
    plot.name: plot
    for plot in (
        # not on the page, whose table has the same numbers
        Plot("bars", "accuracies with deviations, All, Old and New"),
        Plot(
            "drop",
            "shifted against source accuracy",
            "figures",
            "What the shift costs",
            "The nearer to the upper diagonal, the less the shift costs.",
        ),
        Plot(
            "radar",
            "a polygon per method over all evaluation sets",
            "figures",
            "Profile over datasets",
            "All, in percent, one axis per dataset and evaluation set.",
        ),
        Plot(
            "errors",
            "where images end up: old and new taken for each other",
            "figures",
            "Where the errors go",
            "Percent of images, mean over datasets and seeds.",
        ),
        Plot(
            "curves",
            "loss and accuracy by epoch; with --terms, loss terms and diagnostics",
            "figures",
            "Learning curves",
            "Mean over seeds; bands reach from the least to the greatest seed. Losses of different "
            "methods cannot be compared.",
        ),
        Plot(
            "critical",
            "average ranks with Nemenyi's critical difference",
            "certainty",
            "Average ranks",
            "Methods joined by a bar cannot be told apart (Nemenyi, 5%).",
        ),
        Plot(
            "corruptions",
            "heat maps by corruption and severity",
            "figures",
            "Corruptions",
            "All, in percent, by corruption and severity; mean over datasets and seeds.",
        ),
        Plot("sensitivity", "accuracy by the value of one setting (give --over)", over=True),
    )
}
