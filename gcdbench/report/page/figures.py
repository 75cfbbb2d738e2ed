"""The page's figures: those of ``gcdbench/report/plots`` as inline SVG, in the page's colours."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape, unescape

from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from gcdbench.report.leaderboard import Leaderboard
from gcdbench.report.plots import PLOTS, NothingToDraw, Plot
from gcdbench.report.plots.canvas import FAINT, INK, METHOD, MUTED, PAPER, drawing
from gcdbench.report.style import looks

NARROW = 480  # points; two figures of at most this width fit into a row of the page
LARGEST, SMALLEST = 1.5, 1.1  # pixels of the page per point; below the smallest, a figure scrolls
# colours of print -> colours of the page's theme
_THEME = {INK: "currentColor", PAPER: "var(--bg)", MUTED: "var(--muted)", FAINT: "var(--line)"}
_NO_METADATA = {"Date": None, "Creator": None, "Format": None, "Type": None}


@dataclass(frozen=True)
class PageFigure:
    """A plot as an SVG element."""

    plot: Plot
    svg: str
    is_narrow: bool  # it takes half of the page's width


def class_of(leaderboard: Leaderboard) -> dict[str, str]:
    """Return the class of the style sheet that gives each method's elements their colour."""
    return {method: f"m{number}" for number, method in enumerate(leaderboard.rows)}


def styles(leaderboard: Leaderboard) -> str:
    """Return the methods' colours on a light and on a dark page, as rules of a style sheet."""
    look, classes = looks(leaderboard.rows), class_of(leaderboard)
    colours = [
        f"--{name}:light-dark({look[method].colour},{look[method].dark})"
        for method, name in classes.items()
    ]
    rules = [f".{name}{{--c:var(--{name})}}" for name in classes.values()]
    return f":root{{{';'.join(colours)}}}" + "".join(rules)


def figures(leaderboard: Leaderboard) -> list[PageFigure]:
    """Draw the page's plots for which the records hold data."""
    classes, look = class_of(leaderboard), looks(leaderboard.rows)
    colours = _THEME | {look[method].colour: f"var(--{name})" for method, name in classes.items()}
    drawn = []
    for plot in PLOTS.values():
        if not plot.section:
            continue
        try:
            figure = plot.draw(leaderboard)
        except NothingToDraw:
            continue
        svg = inline(_as_svg(figure), plot, colours, classes)
        drawn.append(PageFigure(plot, svg, 72 * figure.get_figwidth() <= NARROW))
    return drawn


def _as_svg(figure: Figure) -> str:
    """Return a figure as an SVG file without background."""
    for patch in (figure.patch, *(axis.patch for axis in figure.axes)):
        patch.set_visible(False)
    buffer = io.StringIO()
    with drawing():
        if (engine := figure.get_layout_engine()) is not None:
            engine.execute(figure)
        figure.set_layout_engine("none")  # it would be computed a second time
        FigureCanvasSVG(figure).print_svg(buffer, metadata=_NO_METADATA)  # type: ignore[no-untyped-call]
    return buffer.getvalue()


def inline(svg: str, plot: Plot, colours: Mapping[str, str], classes: Mapping[str, str]) -> str:
    """Turn an SVG file written by matplotlib into an element of the page.

    Colours of print become those of the theme, what is drawn for a method gets its class, and ids
    start with the name of the plot, because those of two figures may be the same.
    """
    width, height = re.findall(r'viewBox="0 0 (\S+) (\S+)"', svg)[0]
    body = svg[svg.index(">", svg.index("<svg")) + 1 : svg.rindex("</svg>")]
    body = re.sub(r"<style.*?</style>|<!--.*?-->", "", body, flags=re.S)
    by_hex = {colour.lower(): name for colour, name in colours.items()}

    def shorten(tag: re.Match[str]) -> str:
        text = re.sub(r'^<g id="([^"]*)"', lambda found: _group(found[1], classes), tag[0])
        text = re.sub(r' transform="rotate\(-0 [^"]*"|font-family: [^;"]*;', "", text)
        text = re.sub(r'\bid="|(?:xlink:)?href="#|url\(#', rf"\g<0>{plot.name}-", text)
        text = re.sub(r"#[0-9a-f]{6}\b", lambda found: by_hex.get(found[0], found[0]), text)
        text = re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}", text)
        return re.sub(r"\s+", " ", text.replace("xlink:href", "href"))

    body = re.sub(r"<[^>]+>", shorten, body)
    body = re.sub(r">\s+<", "><", body)
    style = f"width:{LARGEST * float(width):.0f}px;min-width:{SMALLEST * float(width):.0f}px"
    label = escape(f"{plot.title}: {plot.help}")
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}" style="{style}">'
        f"{body}</svg>"
    )


def _group(name: str, classes: Mapping[str, str]) -> str:
    """Return the start of a group: with a method's class, or without the id that nobody needs."""
    method = unescape(name).removeprefix(METHOD)
    return f'<g class="{classes[method]}"' if method in classes else "<g"
