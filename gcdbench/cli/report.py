"""The verbs leaderboard, plot and report: their arguments and what they do.

Heavy modules are imported inside the functions, so that ``--help`` stays fast.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcdbench.errors import UserError

if TYPE_CHECKING:
    from gcdbench.experiment.plan import Request
    from gcdbench.report.leaderboard import Board

FORMATS = ("md", "csv", "latex", "json")
PLOTS = {
    "bars": "accuracies with deviations, All, Old and New",
    "drop": "shifted against source accuracy",
    "radar": "a polygon per method over all evaluation sets",
    "errors": "where images end up: old and new taken for each other",
    "curves": "loss and accuracy by epoch",
    "critical": "average ranks with Nemenyi's critical difference",
    "corruptions": "heat maps by corruption and severity",
    "sensitivity": "accuracy by the value of one setting (give --over)",
}
log = logging.getLogger("gcdbench")


def add_leaderboard(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``leaderboard``."""
    parser.add_argument("--format", choices=FORMATS, default="md", help="printed to stdout")
    _add_out(parser)


def add_plot(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``plot``."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "plots:\n" + "\n".join(f"  {name:<12} {text}" for name, text in PLOTS.items())
    parser.add_argument(
        "kinds", nargs="*", metavar="PLOT", help="see below (default: all that the records allow)"
    )
    parser.add_argument(
        "--over", metavar="SETTING", help="what sensitivity varies: train.lr, task.num_classes"
    )
    _add_out(parser)


def add_report(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``report``."""
    _add_out(parser)


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder (default: RESULTS/leaderboard)"
    )


def leaderboard(arguments: argparse.Namespace, request: Request) -> int:
    """Write the leaderboard in all formats and print one of them."""
    from gcdbench.report.formats import FORMATS, write_all

    board = _board(arguments, request)
    sys.stdout.write(FORMATS[arguments.format](board))
    try:
        with writing(arguments):
            paths = write_all(board, folder(arguments))
    except UserError as error:
        if arguments.out is not None:
            raise
        log.warning("not written: %s", error)  # results of somebody else can be read all the same
        return 0
    log.info("written: %s", ", ".join(map(str, paths)))
    return 0


@contextlib.contextmanager
def writing(arguments: argparse.Namespace) -> Iterator[None]:
    """Say in one sentence that a report cannot be written."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(
            f"{folder(arguments)}: the report cannot be written ({error.strerror or error}); name "
            "another folder with --out"
        ) from error


def plot(arguments: argparse.Namespace, request: Request) -> int:
    """Draw the plots that were asked for, or all for which there are data."""
    if "sensitivity" in arguments.kinds and not arguments.over:
        raise UserError("plot sensitivity: say over which setting, for example --over train.lr")

    from gcdbench.report import plots

    kinds = arguments.kinds or [*plots.PLOTS, *(["sensitivity"] if arguments.over else [])]
    board = _board(arguments, request)
    for kind in kinds:
        try:
            figure = (
                _sensitivity(arguments, request)
                if kind == "sensitivity"
                else plots.PLOTS[kind](board)
            )
        except plots.NothingToDraw as reason:
            if arguments.kinds:
                raise
            log.info("%s", reason)
            continue
        with writing(arguments):
            paths = plots.write(figure, folder(arguments) / f"{board.suite}-{kind}")
        sys.stdout.writelines(f"{path}\n" for path in paths)
    return 0


def _sensitivity(arguments: argparse.Namespace, request: Request) -> Any:
    from gcdbench.report.plots import sensitivity
    from gcdbench.report.sensitivity import collect_varied

    return sensitivity(collect_varied(request, arguments.results, arguments.over))


def report(arguments: argparse.Namespace, request: Request) -> int:
    """Write the page and print its path."""
    board = _board(arguments, request)
    with writing(arguments):
        path = _write_page(board, arguments, request)
    sys.stdout.write(f"{path}\n")
    return 0


def publish(arguments: argparse.Namespace, request: Request) -> None:
    """Write leaderboard, page and bars after a run, and print the leaderboard."""
    from gcdbench.report import plots
    from gcdbench.report.formats import write_all
    from gcdbench.report.formats.markdown import markdown

    board = _board(arguments, request)
    sys.stdout.write(markdown(board))
    target = folder(arguments)
    with writing(arguments):
        paths = [*write_all(board, target), _write_page(board, arguments, request)]
        paths += plots.write(plots.PLOTS["bars"](board), target / f"{board.suite}-bars")
    log.info("written: %s", ", ".join(map(str, paths)))


def _board(arguments: argparse.Namespace, request: Request) -> Board:
    from gcdbench.report.collect import collect
    from gcdbench.report.leaderboard import make

    collection = collect(request, arguments.results)
    by_reason: dict[str, list[str]] = {}
    for one in collection.left_out:
        by_reason.setdefault(one.reason, []).append(one.path)
    for reason, paths in by_reason.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        log.warning("left out: %s%s: %s", paths[0], more, reason)
    if not collection.records:
        raise UserError("none of these cells has a record; run them first (gcdbench run ...)")
    return make(collection, suite_name(request))


def suite_name(request: Request) -> str:
    """Return what the files of a report are called by."""
    from gcdbench.core.suites import Suite

    return Suite.load(request.suite).name + ("-quick" if request.quick else "")


def folder(arguments: argparse.Namespace) -> Path:
    """Return where reports are written to."""
    return getattr(arguments, "out", None) or arguments.results / "leaderboard"


def _write_page(board: Board, arguments: argparse.Namespace, request: Request) -> Path:
    from gcdbench.core.files import write_atomically
    from gcdbench.report.page.build import page

    path = folder(arguments) / f"{board.suite}.html"
    write_atomically(path, page(board, command=_command(request)).encode())
    return path


def _command(request: Request) -> str:
    """Return the command that makes this page again, without folders of this machine."""
    words = ["gcdbench", "report", "--suite", Path(request.suite).name]
    for flag, values in (
        ("--methods", request.methods),
        ("--datasets", request.datasets),
        ("--seeds", request.seeds),
    ):
        words += [flag, *map(str, values)] if values else []
    for section, settings in request.assignments.items():
        for name, value in settings.items():
            words += ["--set", f"{section}.{name}={value}"]
    return shlex.join([*words, *(["--quick"] if request.quick else [])])
