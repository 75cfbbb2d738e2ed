"""What all plots share: style, colours, legends and writing files."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from gcdbench.core.files import write_atomically
from gcdbench.report.leaderboard import Leaderboard
from gcdbench.report.style import Look
from gcdbench.report.titles import method_title

# The page replaces the first four by the colours of its theme. Text on a filled area must not
# change with the theme, because the area does not; so it has colours of its own.
INK, PAPER, MUTED, FAINT = "#222222", "#FFFFFF", "#666666", "#DDDDDD"
ON_LIGHT, ON_DARK = "#111111", "#FEFEFE"
METHOD = "method:"  # start of the id of what is drawn for a method
STYLE: dict[Any, Any] = {
    **{"font.family": "DejaVu Sans", "font.size": 8.0, "axes.titlesize": 9.0},
    **{"axes.labelsize": 8.0, "xtick.labelsize": 7.5, "ytick.labelsize": 7.5},
    **{"legend.fontsize": 7.5, "legend.frameon": False, "figure.facecolor": PAPER},
    **{"text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK},
    **{"axes.edgecolor": MUTED, "axes.linewidth": 0.7, "axes.axisbelow": True},
    **{"axes.spines.top": False, "axes.spines.right": False},
    **{"grid.color": FAINT, "grid.linewidth": 0.6, "xtick.major.width": 0.7},
    **{"ytick.major.width": 0.7, "hatch.linewidth": 0.5, "lines.linewidth": 1.4},
    **{"pdf.fonttype": 42, "svg.fonttype": "none"},  # text stays text; journals refuse Type 3
    **{"svg.hashsalt": "gcdbench"},  # ids in an SVG are the same in every process
}


@contextmanager
def drawing() -> Iterator[None]:
    """Draw in the project's style."""
    with mpl.rc_context(STYLE):
        yield


def sheet(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches; no display is needed."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def belongs_to(method: str, artists: Iterable[Artist]) -> None:
    """Mark what is drawn for a method, so that the page can hide it."""
    for artist in artists:
        artist.set_gid(METHOD + method)


def legend(figure: Figure, looks: dict[str, Look], **options: Any) -> None:
    """Add a legend with one entry per method."""
    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, linestyle=look.dashes, label=title)
        for title, look in ((method_title(method), look) for method, look in looks.items())
    ]
    for handle in handles:
        handle.set(markersize=4.5, linewidth=1.2)
    figure.legend(handles=handles, **{"loc": "outside right upper", **options})


def legend_above(figure: Figure, handles: Sequence[Artist]) -> None:
    """Add a legend above the panels, in as many columns as fit."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = int(figure.get_figwidth() / (0.5 + 0.075 * longest))
    columns = max(min(columns, len(handles)), 1)
    figure.legend(handles=handles, loc="outside upper center", ncols=columns)


def footnote_on_incomplete(figure: Figure, leaderboard: Leaderboard) -> None:
    """Name the methods that a plot of means over datasets leaves out."""
    if leaderboard.incomplete:
        left_out = ", ".join(map(method_title, leaderboard.incomplete))
        text = f"not shown, because datasets are missing: {left_out}"
        figure.supxlabel(text, fontsize=6.5, color=MUTED, x=0.99, ha="right")


def horizontal_grid(axes: Iterable[Axes]) -> None:
    """Draw faint lines at the ticks of the y axis only."""
    for axis in axes:
        axis.grid(axis="y")
        axis.tick_params(axis="x", length=0)


def write(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PNG and as PDF; the same figure gives the same bytes."""
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it logs every table of a font
    with drawing():
        figure.draw_without_rendering()  # the layout leaves room for the ticks of its last pass
    paths = []
    for suffix, metadata in ((".png", {"Software": None}), (".pdf", {"CreationDate": None})):
        buffer = io.BytesIO()
        with drawing():
            figure.savefig(buffer, format=suffix[1:], dpi=200, metadata=metadata)
        paths.append(path.with_name(path.name + suffix))
        write_atomically(paths[-1], buffer.getvalue())
    return paths
