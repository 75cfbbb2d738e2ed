"""The verb plot: plots of many records, and plots of single cells.

Both are listed by their packages; what draws them is imported when they are drawn, so that
``--help`` stays fast.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gcdbench.cell_plots import CELL_PLOTS, CellPlot, Options
from gcdbench.cli import report as reports
from gcdbench.errors import UserError, unknown
from gcdbench.report import plots
from gcdbench.report.plots import Plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gcdbench.experiment.plan import Request

log = logging.getLogger("gcdbench")


def names() -> list[str]:
    """Return the names of all plots, for the completion of words."""
    return [*plots.PLOTS, *CELL_PLOTS]


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``plot``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        f"plots:\n{_listing(plots.PLOTS)}\n\n"
        f"pictures, one for each cell of the request:\n{_listing(CELL_PLOTS)}"
    )
    parser.add_argument(
        "kinds", nargs="*", metavar="PLOT", help="see below (default: all that the records allow)"
    )
    parser.add_argument(
        "--over", metavar="SETTING", help="what sensitivity varies: train.lr, task.num_classes"
    )
    parser.add_argument(
        "--terms",
        nargs="*",
        metavar="NAME",
        help="what curves shows: loss terms and diagnostics (default: all)",
    )
    reports.add_out(parser)
    parser.add_argument("--block", type=int, metavar="N", help="of attention (default: the last)")
    parser.add_argument(
        "--sets", nargs="+", default=(), metavar="SET", help="of clusters (default: source, worst)"
    )
    parser.add_argument("--rows", type=int, default=10, metavar="N", help="clusters that are shown")


def _listing(known: Mapping[str, Plot] | Mapping[str, CellPlot]) -> str:
    return "\n".join(f"  {name:<12} {plot.help}" for name, plot in known.items())


def plot(arguments: argparse.Namespace, request: Request) -> int:
    """Draw plots of the records, or pictures of single cells."""
    for name in arguments.kinds:
        if name not in names():
            raise unknown("plot", name, names())
    of_records = [name for name in arguments.kinds if name in plots.PLOTS]
    of_cells = [name for name in arguments.kinds if name in CELL_PLOTS]
    if of_records or not of_cells:
        _draw_records(of_records, arguments, request)
    if of_cells:
        _draw_cells(of_cells, arguments, request)
    return 0


def _draw_records(asked: Sequence[str], arguments: argparse.Namespace, request: Request) -> None:
    """Draw the plots that were asked for, or all for which there are data."""
    for name in asked:
        if plots.PLOTS[name].over and not arguments.over:
            raise UserError(f"plot {name}: say over which setting, for example --over train.lr")
    possible = [name for name, one in plots.PLOTS.items() if arguments.over or not one.over]
    leaderboard = reports.load_leaderboard(arguments, request)
    for name in asked or possible:
        one = plots.PLOTS[name]
        try:
            if one.over:
                from gcdbench.report.sensitivity import collect_varied

                given = {"any_code": arguments.any_code, "judge": reports.judge}
                varied = collect_varied(request, arguments.results, arguments.over, **given)
                figure = one.draw(varied)
            elif name == "curves" and arguments.terms is not None:
                figure = one.draw(leaderboard, terms=arguments.terms)
            else:
                figure = one.draw(leaderboard)
        except plots.NothingToDraw as reason:
            if asked:
                raise
            log.info("%s", reason)
            continue
        _write(arguments, figure, reports.folder(arguments) / f"{leaderboard.suite}-{name}")


def _draw_cells(asked: Sequence[str], arguments: argparse.Namespace, request: Request) -> None:
    from gcdbench.experiment.plan import make_cells

    start = reports.folder(arguments) / reports.suite_name(request)
    options = Options(arguments.results, arguments.block, tuple(arguments.sets), arguments.rows)
    for cell in make_cells(request):
        for name in asked:
            for suffix, figure in CELL_PLOTS[name].draw(cell, options):
                end = f"{name}-{cell.dataset}-{cell.spec.text}-seed{cell.seed}{suffix}"
                _write(arguments, figure, start.with_name(f"{start.name}-{end}"))


def _write(arguments: argparse.Namespace, figure: Figure, path: Path) -> None:
    """Write a figure and print the paths of its files."""
    from gcdbench.report.plots.canvas import write

    with reports.writing(arguments):
        paths = write(figure, path)
    sys.stdout.writelines(f"{written}\n" for written in paths)
