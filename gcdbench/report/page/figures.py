"""The page's figures as inline SVG; small ones side by side, so that they fit a phone."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from gcdbench.report import plot_data
from gcdbench.report.formats.markdown import number
from gcdbench.report.leaderboard import Leaderboard
from gcdbench.report.page.svg import Drawing, ticks
from gcdbench.report.plot_data import OUTCOMES
from gcdbench.report.style import MARKERS, looks
from gcdbench.report.titles import dataset_title, method_title, set_title

WIDTH = 340.0
LEFT, RIGHT = 86.0, 14.0


@dataclass(frozen=True)
class Figure:
    """Drawings that belong together."""

    name: str
    title: str
    note: str
    drawings: list[tuple[str, str]]  # a caption and an SVG each
    small: bool = False  # more of them fit into a row


def figures(leaderboard: Leaderboard) -> list[Figure]:
    """Draw all figures for which the records hold data."""
    makers: list[Callable[[Leaderboard], Figure]] = [
        spans,
        drop,
        radar,
        outcomes,
        curves,
        corruptions,
    ]
    return [figure for figure in (make(leaderboard) for make in makers) if figure.drawings]


def kind_of(leaderboard: Leaderboard) -> dict[str, str]:
    """Return the class of the style sheet that each method's shapes belong to."""
    return {method: f"m m{number}" for number, method in enumerate(leaderboard.rows)}


def spans(leaderboard: Leaderboard) -> Figure:
    """Draw, per dataset, a line per method from its shifted to its source accuracy."""
    kinds, points = kind_of(leaderboard), plot_data.drops(leaderboard)
    top = 10 * math.ceil(max((max(p.source, p.shifted) for p in points), default=10) / 10)
    drawings = []
    for dataset in dict.fromkeys(point.dataset for point in points):
        rows = {point.method: point for point in points if point.dataset == dataset}
        height = 30 + 22 * len(leaderboard.methods)
        drawing = Drawing(WIDTH, height, f"accuracy on {dataset} by method")
        x = _scale(0, top, LEFT, WIDTH - RIGHT)
        _grid(drawing, x, ticks(0, top), height - 22)
        for place, method in enumerate(leaderboard.methods):
            y = 14 + 22 * place
            drawing.group(kinds[method])
            drawing.text(LEFT - 8, y, method_title(method), "name", "end")
            if method in rows:
                _span(drawing, rows[method], x, y)
            else:
                drawing.text(LEFT + 6, y, "not recorded", "faint")
            drawing.end()
        drawings.append((dataset_title(dataset), str(drawing)))
    note = "All, in percent: ● shifted images, ○ source images. The line between is what is lost."
    return Figure("spans", "Accuracy by dataset", note, drawings)


def _span(drawing: Drawing, point: plot_data.Drop, x: Callable[[float], float], y: float) -> None:
    title = (
        f"{method_title(point.method)}: source {number(point.source, point.source_std)}, "
        f"shifted {number(point.shifted, point.shifted_std)}"
    )
    drawing.line(x(point.shifted), y, x(point.source), y, "stroke thin")
    drawing.mark(x(point.source), y, "o", "hollow", title)
    drawing.mark(x(point.shifted), y, "o", "fill", title)


def drop(leaderboard: Leaderboard) -> Figure:
    """Draw shifted against source accuracy, with lines of equal loss."""
    kinds, points = kind_of(leaderboard), plot_data.drops(leaderboard)
    if not points:
        return Figure("drop", "", "", [])
    values = [value for point in points for value in (point.source, point.shifted)]
    low, high = 10 * math.floor(min(values) / 10), 10 * math.ceil(max(values) / 10)
    shapes = dict(zip(dict.fromkeys(p.dataset for p in points), MARKERS, strict=False))
    drawing = Drawing(WIDTH, 318, "accuracy on shifted against source images")
    x, y = _scale(low, high, 34, WIDTH - 40), _scale(low, high, 276, 10)
    for value in ticks(low, high):
        drawing.text(x(value), 290, f"{value:.0f}", "tick", "middle")
        drawing.text(28, y(value), f"{value:.0f}", "tick", "end")
    for lost in range(0, high - low, 10 if high - low <= 60 else 20):
        drawing.line(x(low + lost), y(low), x(high), y(high - lost), "grid")
        drawing.text(x(high) + 3, y(high - lost), f"−{lost}" if lost else "no loss", "tick")
    for point in points:
        title = f"{method_title(point.method)} on {dataset_title(point.dataset)}: source "
        title += f"{number(point.source)}, shifted {number(point.shifted)}"
        drawing.group(kinds[point.method])
        drawing.mark(x(point.source), y(point.shifted), shapes[point.dataset], "fill edge", title)
        drawing.end()
    drawing.text((34 + WIDTH - 40) / 2, 308, "source, All (%)", "tick", "middle")
    drawing.text(34, 4, "shifted, All (%)", "tick")
    legend = "  ".join(f"{_GLYPHS.get(s, s)} {dataset_title(d)}" for d, s in shapes.items())
    note = f"The nearer to the upper diagonal, the less the shift costs. {legend}."
    return Figure("drop", "What the shift costs", note, [("", str(drawing))])


_GLYPHS = {"o": "●", "s": "■", "D": "◆", "^": "▲", "v": "▼", "<": "◀", ">": "▶"}


def outcomes(leaderboard: Leaderboard) -> Figure:
    """Draw the shares of right images and of the four kinds of error."""
    table = plot_data.outcomes(leaderboard).dropna()
    shares: dict[str, dict[Any, float]] = {kind: table[kind].to_dict() for kind in OUTCOMES}
    methods = [method for method in leaderboard.methods if method not in leaderboard.incomplete]
    drawings = []
    for role in ("source", "shifted"):
        if role not in table.index.get_level_values("role"):
            continue
        drawing = Drawing(WIDTH, 10 + 24 * len(methods), f"kinds of error on {role} images")
        x = _scale(0, 100, LEFT, WIDTH - 2)
        for place, method in enumerate(methods):
            y, left = 4 + 24 * place, 0.0
            drawing.text(LEFT - 8, y + 9, method_title(method), "name", "end")
            for kind, title in OUTCOMES.items():
                share = shares[kind][role, method]
                drawing.rect(x(left), y, x(share) - x(0), 18, f"o-{kind}", f"{title}: {share:.1f}%")
                if share >= 6:
                    middle = x(left + share / 2)
                    drawing.text(middle, y + 9, f"{share:.0f}", f"on o-{kind}-ink", "middle")
                left += share
        drawings.append((f"{role} images", str(drawing)))
    note = "Percent of images, mean over datasets and seeds."
    return Figure("outcomes", "Where the errors go", note, drawings)


def radar(leaderboard: Leaderboard) -> Figure:
    """Draw a polygon per method with an axis per dataset and evaluation set."""
    axes = [(d, n) for d in leaderboard.collection.datasets for n, _ in leaderboard.sets_of(d)]
    methods = [method for method in leaderboard.rows if method not in leaderboard.incomplete]
    if len(axes) < 3 or not methods:
        return Figure("radar", "", "", [])
    values = {m: [leaderboard.lookup[d, n, "All", m].mean for d, n in axes] for m in methods}
    top = 10 * math.ceil(max(map(max, values.values())) / 10)
    middle = 210.0
    drawing = Drawing(2 * middle, 318, "accuracy by dataset and evaluation set, as polygons")

    def at(axis: int, value: float) -> tuple[float, float]:
        angle = 2 * math.pi * axis / len(axes)
        length = 118 * value / top
        return middle + length * math.sin(angle), 160 - length * math.cos(angle)

    for value in ticks(0, top, most=4)[1:]:
        drawing.path([at(axis, value) for axis in range(len(axes))], "grid none", closed=True)
        drawing.text(middle + 3, at(0, value)[1], f"{value:.0f}", "tick")
    for axis, (dataset, name) in enumerate(axes):
        drawing.line(middle, 160, *at(axis, top), "grid")
        px, py = at(axis, top * 1.13)
        side = "middle" if abs(px - middle) < 20 else "start" if px > middle else "end"
        drawing.text(px, py - 6, dataset_title(dataset), "tick", side)
        drawing.text(px, py + 6, set_title(name), "tick", side)
    for method, kind in kind_of(leaderboard).items():
        if method in values:
            drawing.group(kind)
            corners = [at(axis, value) for axis, value in enumerate(values[method])]
            drawing.path(corners, "stroke none", closed=True)
            drawing.end()
    note = "All, in percent, one axis per dataset and evaluation set."
    return Figure("radar", "Profile over datasets", note, [("", str(drawing))])


def curves(leaderboard: Leaderboard) -> Figure:
    """Draw accuracy on shifted images, or else the loss, by epoch."""
    table, column = plot_data.learning(leaderboard.collection.records), "accuracy"
    if not table.empty:
        table = table[table["role"] == leaderboard.role]
        note = f"{leaderboard.role.capitalize()} images, All, in percent by epoch; mean over seeds."
    if table.empty:
        table, column = plot_data.losses(leaderboard.collection.records), "loss"
        note = (
            "Sum of the loss terms by epoch, mean over seeds. Losses of different methods differ."
        )
    drawings = [
        (dataset_title(dataset), _curve(leaderboard, table[table["dataset"] == dataset], column))
        for dataset in leaderboard.collection.datasets
        if table.loc[table["dataset"] == dataset, "epoch"].nunique() > 1
    ]
    return Figure("curves", "Learning curves", note, drawings)


def _curve(leaderboard: Leaderboard, table: pd.DataFrame, column: str) -> str:
    means = table.groupby(["method", "epoch"])[column].mean().dropna()
    low = 0.0 if column == "accuracy" else float(min(0, means.min()))
    high, last = float(means.max()) * 1.05, int(table["epoch"].max())
    drawing = Drawing(WIDTH, 180, f"{column} by epoch")
    x, y = _scale(1, last, 34, WIDTH - 10), _scale(low, high, 152, 8)
    for value in ticks(low, high):
        drawing.line(34, y(value), WIDTH - 10, y(value), "grid")
        drawing.text(28, y(value), f"{value:g}", "tick", "end")
    for epoch in ticks(1, last):
        if epoch == int(epoch):
            drawing.text(x(epoch), 164, f"{epoch:.0f}", "tick", "middle")
    for method, kind in kind_of(leaderboard).items():
        if method in means.index.get_level_values("method"):
            drawing.group(kind)
            rows = means[method]
            drawing.path([(x(e), y(v)) for e, v in rows.items()], "stroke none")
            drawing.end()
    return str(drawing)


def corruptions(leaderboard: Leaderboard) -> Figure:
    """Draw a heat map of corruption and severity per method."""
    table = plot_data.corruptions(leaderboard.collection.records)
    drawings = []
    top = table["accuracy"].max() if len(table) else 1.0
    kinds, severities = list(table["corruption"].unique()), sorted(table["severity"].unique())
    for method in leaderboard.methods:
        if method in leaderboard.incomplete or table.empty:
            continue
        grid = table[table["method"] == method].set_index(["corruption", "severity"])["accuracy"]
        drawing = Drawing(250, 24 + 20 * len(kinds), f"{method} by corruption and severity")
        for row, kind in enumerate(kinds):
            drawing.text(98, 10 + 20 * row, set_title(kind), "name", "end")
            for place, severity in enumerate(severities):
                if (kind, severity) in grid.index:
                    value = float(grid[kind, severity])
                    x, title = 104 + 28 * place, f"{set_title(kind)} {severity}: {value:.1f}"
                    drawing.shade(x, 20 * row, 27, 19, 0.06 + 0.6 * value / top, title)
                    drawing.text(x + 13.5, 10 + 20 * row, f"{value:.0f}", "on", "middle")
        for place, severity in enumerate(severities):
            drawing.text(117.5 + 28 * place, 20 * len(kinds) + 10, str(severity), "tick", "middle")
        drawings.append((method_title(method), str(drawing)))
    note = "All, in percent, by corruption and severity; mean over datasets and seeds."
    return Figure("corruptions", "Corruptions", note, drawings, small=True)


def critical(leaderboard: Leaderboard) -> str:
    """Draw the critical-difference diagram, or nothing where there is no ranking."""
    ranking = leaderboard.ranking
    if ranking is None:
        return ""
    kinds, count = kind_of(leaderboard), len(ranking.methods)
    half = (count + 1) // 2
    below = 66 + 10 * len(ranking.groups)
    drawing = Drawing(560, below + 22 * half, "average ranks and critical difference")
    x = _scale(1, count, 150, 410)
    drawing.line(x(1), 44, x(count), 44, "axis")
    for rank in range(1, count + 1):
        drawing.line(x(rank), 44, x(rank), 39, "axis")
        drawing.text(x(rank), 31, str(rank), "tick", "middle")
    width = min(ranking.critical_difference, float(count - 1))
    drawing.line(x(1), 14, x(1 + width), 14, "axis")
    for end in (1.0, 1 + width):
        drawing.line(x(end), 10, x(end), 18, "axis")
    more = " (wider than the axis)" if width < ranking.critical_difference else ""
    text = f"critical difference {ranking.critical_difference:.2f}{more}"
    drawing.text(x(1 + width / 2), 4, text, "tick", "middle")
    for place, (first, last) in enumerate(ranking.groups):
        y = 54 + 10 * place
        drawing.line(x(ranking.ranks[first]) - 3, y, x(ranking.ranks[last]) + 3, y, "bar")
    for place, (method, value) in enumerate(zip(ranking.methods, ranking.ranks, strict=True)):
        left = place < half
        y = below + 22 * (place if left else count - 1 - place)
        stop, anchor = (140, "end") if left else (420, "start")
        drawing.group(kinds[method])
        drawing.path([(x(value), 44), (x(value), y), (stop, y)], "stroke none")
        title = method_title(method)
        label = f"{title}  {value:.2f}" if left else f"{value:.2f}  {title}"
        drawing.text(stop + (-6 if left else 6), y, label, "name", anchor)
        drawing.end()
    return str(drawing)


def interval(low: float, mean: float, high: float, top: float) -> str:
    """Draw a mean with its interval, for a column of a table."""
    drawing = Drawing(120, 16, f"{mean:.1f}, from {low:.1f} to {high:.1f}")
    x = _scale(0, top, 4, 116)
    drawing.line(4, 8, 116, 8, "grid")
    if not math.isnan(low):
        drawing.line(x(low), 8, x(high), 8, "stroke wide")
    drawing.mark(x(mean), 8, "o", "fill")
    return str(drawing)


def styles(leaderboard: Leaderboard) -> str:
    """Return the methods' colours on a light and on a dark page, as rules of a style sheet."""
    look = looks(leaderboard.rows)
    rules = (
        f".m{place}{{--c:light-dark({look[method].colour},{look[method].dark})}}"
        for place, method in enumerate(leaderboard.rows)
    )
    return "".join(rules)


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _grid(
    drawing: Drawing, x: Callable[[float], float], values: list[float], bottom: float
) -> None:
    for value in values:
        drawing.line(x(value), 2, x(value), bottom, "grid")
        drawing.text(x(value), bottom + 11, f"{value:.0f}", "tick", "middle")
