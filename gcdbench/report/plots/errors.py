"""Confusion between old and new classes: shares of the kinds of error."""

from __future__ import annotations

from matplotlib.figure import Figure

from gcdbench.report import plot_data
from gcdbench.report.leaderboard import Leaderboard
from gcdbench.report.plot_data import OUTCOMES
from gcdbench.report.plots import NothingToDraw
from gcdbench.report.plots.canvas import (
    ON_DARK,
    ON_LIGHT,
    drawing,
    footnote_on_incomplete,
    sheet,
)
from gcdbench.report.titles import method_title

# Right in grey; errors among old in blues, among new in oranges; the two that cross are dark. None
# is a method's colour: the page gives those another shade in its dark theme.
COLOURS = {
    "all": "#D9D9D9",
    "old_to_wrong_old": "#9CCDEB",
    "old_to_new": "#0A6CAB",
    "new_to_old": "#C14A00",
    "new_to_wrong_new": "#F4B98A",
}


def errors(leaderboard: Leaderboard) -> Figure:
    """Draw the shares of right images and of the four kinds of error, mean over datasets."""
    table = plot_data.outcomes(leaderboard)
    roles = [r for r in ("source", "shifted") if r in table.index.get_level_values("role")]
    table = table.dropna()
    if table.empty:
        raise NothingToDraw("errors: these records do not say which kinds of error were made")
    methods = [m for m in reversed(leaderboard.methods) if m not in leaderboard.incomplete]
    with drawing():
        figure = sheet(7.2, 0.95 + 0.26 * len(methods))
        panels = figure.subplots(1, len(roles), sharey=True, squeeze=False)[0]
        for axis, role in zip(panels, roles, strict=True):
            left = [0.0] * len(methods)
            rows = table.loc[role].reindex(methods)
            for kind, title in OUTCOMES.items():
                shares = list(rows[kind])
                axis.barh(methods, shares, left=left, color=COLOURS[kind], label=title, height=0.72)
                for place, (start, share) in enumerate(zip(left, shares, strict=True)):
                    if share >= 5:
                        ink = ON_DARK if kind in ("old_to_new", "new_to_old") else ON_LIGHT
                        middle = start + share / 2
                        axis.text(
                            middle, place, f"{share:.0f}", ha="center", va="center", color=ink
                        )
                left = [a + b for a, b in zip(left, shares, strict=True)]
            axis.set(xlim=(0, 100), xlabel="share of images (%)", title=f"{role} images")
            axis.tick_params(axis="y", length=0)
            axis.spines["left"].set_visible(False)
        panels[0].set_yticks(range(len(methods)), [method_title(method) for method in methods])
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=5, columnspacing=1.2)
        footnote_on_incomplete(figure, leaderboard)
    return figure
