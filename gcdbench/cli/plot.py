"""The verb plot: what the report draws from many records, and pictures of single cells.

Heavy modules are imported inside the functions, so that ``--help`` stays fast.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gcdbench.cli import report as reports
from gcdbench.errors import UserError, unknown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gcdbench.experiment.plan import Cell, Request

    Drawn = Iterator[tuple[str, Figure]]  # what is added to the file's name, picture

PICTURES = {
    "pca": "domain and semantic features in the plane, with thumbnails (kept weights)",
    "attention": "what the class token attends to, by head (kept weights)",
    "clusters": "contact sheets: what was put together, worst first",
}


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``plot``."""
    reports.add_plot(parser)
    listing = "\n".join(f"  {name:<12} {text}" for name, text in PICTURES.items())
    parser.epilog = f"{parser.epilog}\n\npictures, one for each cell of the request:\n{listing}"
    parser.add_argument("--block", type=int, metavar="N", help="of attention (default: the last)")
    parser.add_argument(
        "--sets", nargs="+", default=(), metavar="SET", help="of clusters (default: source, worst)"
    )
    parser.add_argument("--rows", type=int, default=10, metavar="N", help="clusters that are shown")


def plot(arguments: argparse.Namespace, request: Request) -> int:
    """Draw plots of the records, or pictures of single cells."""
    known = {**reports.PLOTS, **PICTURES}
    for kind in arguments.kinds:
        if kind not in known:
            raise unknown("plot", kind, known)
    plots = [kind for kind in arguments.kinds if kind in reports.PLOTS]
    if plots or not arguments.kinds:
        reports.plot(argparse.Namespace(**{**vars(arguments), "kinds": plots}), request)
    pictures = [kind for kind in arguments.kinds if kind in PICTURES]
    if pictures:
        _draw(pictures, arguments, request)
    return 0


def _draw(kinds: list[str], arguments: argparse.Namespace, request: Request) -> None:
    from gcdbench.experiment.plan import make_cells
    from gcdbench.report.plots import write

    start = reports.folder(arguments) / reports.suite_name(request)
    for cell in make_cells(request):
        for kind in kinds:
            for suffix, figure in DRAWERS[kind](cell, arguments):
                name = f"{kind}-{cell.dataset}-{cell.spec.text}-seed{cell.seed}{suffix}"
                with reports.writing(arguments):
                    paths = write(figure, start.with_name(f"{start.name}-{name}"))
                sys.stdout.writelines(f"{path}\n" for path in paths)


def _caption(cell: Cell) -> str:
    return f"{cell.label} (record {cell.key})"


def _pca(cell: Cell, arguments: argparse.Namespace) -> Drawn:
    from gcdbench.cell_plots.pca import pca
    from gcdbench.cell_plots.trained import Trained

    yield "", pca(Trained.load(cell, arguments.results), _caption(cell))


def _attention(cell: Cell, arguments: argparse.Namespace) -> Drawn:
    from gcdbench.cell_plots.attention import attention
    from gcdbench.cell_plots.trained import Trained

    trained = Trained.load(cell, arguments.results)
    yield "", attention(trained, _caption(cell), block=arguments.block)


def _clusters(cell: Cell, arguments: argparse.Namespace) -> Drawn:
    from gcdbench.cell_plots import choice
    from gcdbench.cell_plots.clusters import clusters
    from gcdbench.experiment.records import Damaged, cell_folder, read_done
    from gcdbench.report.correctness import read_predictions

    record, problem = read_done(arguments.results, cell), cell.problem()
    if isinstance(record, Damaged):
        raise UserError(f"{record.path} {record.reason}; train the cell again (gcdbench run ...)")
    if record is None:
        raise UserError(f"{cell.label} has no record; train it first (gcdbench run ...)")
    predicted = read_predictions(record, cell_folder(arguments.results, cell))
    if isinstance(predicted, str):
        raise UserError(f"{cell.label}: {predicted}")
    for name in choice.sets(record, problem, arguments.sets):
        figure = clusters(problem, name, predicted[name], _caption(cell), number=arguments.rows)
        yield f"-{name.replace('/', '-')}", figure


DRAWERS: dict[str, Callable[[Cell, argparse.Namespace], Drawn]] = {
    "pca": _pca,
    "attention": _attention,
    "clusters": _clusters,
}
