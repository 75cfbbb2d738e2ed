"""Critical-difference diagram: average ranks, and which methods do not differ significantly."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gcdbench.report.leaderboard import Leaderboard
from gcdbench.report.plots import NothingToDraw
from gcdbench.report.plots.canvas import INK, MUTED, drawing, sheet
from gcdbench.report.statistics import Ranking
from gcdbench.report.style import looks
from gcdbench.report.titles import method_title

STEP = 0.42  # between two names
BELOW = 0.55  # from the axis to the first group


def critical(leaderboard: Leaderboard) -> Figure:
    """Draw average ranks; a bar joins methods whose ranks differ by less than Nemenyi's value."""
    ranking = leaderboard.ranking
    if ranking is None:
        raise NothingToDraw("critical: needs two methods on two datasets or more, all recorded")
    count = len(ranking.methods)
    half = (count + 1) // 2
    depth = BELOW + 0.22 * len(ranking.groups) + STEP * half
    with drawing():
        figure = sheet(6.4, 0.9 + 0.5 * depth)
        axis = figure.subplots()
        axis.axis("off")
        margin = 0.22 * (count - 1) + 0.6
        axis.set(xlim=(1 - margin, count + margin), ylim=(depth + 0.1, -1.15))
        _scale(axis, ranking)
        for number, (first, last) in enumerate(ranking.groups):
            y = 0.3 + 0.22 * number
            span = [ranking.ranks[first] - 0.03, ranking.ranks[last] + 0.03]
            axis.plot(span, [y, y], color=INK, lw=2.6, solid_capstyle="butt")
        _names(axis, leaderboard, ranking, half)
        text = f"Friedman χ² = {ranking.chi2:.2f}, p = {ranking.p:.2g}, {ranking.datasets} datasets"
        if leaderboard.incomplete:
            missing = ", ".join(map(method_title, leaderboard.incomplete))
            text += f"; not ranked, because datasets are missing: {missing}"
        figure.supxlabel(text, fontsize=7, color=MUTED)
    return figure


def _scale(axis: Axes, ranking: Ranking) -> None:
    count, width = len(ranking.methods), ranking.critical_difference
    axis.plot([1, count], [0, 0], color=INK, lw=0.9)
    for rank in range(1, count + 1):
        axis.plot([rank, rank], [0, -0.12], color=INK, lw=0.9)
        axis.text(rank, -0.2, str(rank), ha="center", va="bottom")
    shown = min(width, count - 1)
    axis.plot([1, 1 + shown], [-0.82, -0.82], color=INK, lw=0.9)
    for end in (1, 1 + shown):
        axis.plot([end, end], [-0.76, -0.88], color=INK, lw=0.9)
    more = " (wider than the axis)" if shown < width else ""
    axis.text(
        1 + shown / 2, -0.9, f"CD = {width:.2f}{more}", ha="center", va="bottom", fontsize=7.5
    )


def _names(axis: Axes, leaderboard: Leaderboard, ranking: Ranking, half: int) -> None:
    """Write the names of the better half at the left and of the others at the right."""
    look, count = looks(leaderboard.rows), len(ranking.methods)
    below = BELOW + 0.22 * len(ranking.groups)
    for place, (method, rank) in enumerate(zip(ranking.methods, ranking.ranks, strict=True)):
        left = place < half
        y = below + STEP * (place if left else count - 1 - place)
        end = 1 - 0.12 * (count - 1) - 0.1 if left else count + 0.12 * (count - 1) + 0.1
        axis.plot([rank, rank, end], [0, y, y], color=look[method].colour, lw=1.2)
        label = f"{method_title(method)}  {rank:.2f}"
        label = label if left else f"{rank:.2f}  {method_title(method)}"
        nudge = -0.08 if left else 0.08
        axis.text(end + nudge, y, label, ha="right" if left else "left", va="center")
