"""The verbs leaderboard and report: their arguments and what they do.

Heavy modules are imported inside the functions, so that ``--help`` stays fast.
"""

from __future__ import annotations

import argparse
import gc
import logging
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcdbench.cli.arguments import plain, terminal_width
from gcdbench.errors import UserError
from gcdbench.report.plots import PLOTS

if TYPE_CHECKING:
    from gcdbench.experiment.plan import Cell, Request
    from gcdbench.experiment.verdict import Verdict
    from gcdbench.report.collect import LeftOut
    from gcdbench.report.leaderboard import Leaderboard

FORMATS = ("text", "md", "csv", "latex", "json")
log = logging.getLogger("gcdbench")


def add_leaderboard(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``leaderboard``."""
    help_ = "printed to stdout (default: text, as wide as the terminal)"
    parser.add_argument("--format", choices=FORMATS, default="text", help=help_)
    add_baselines(parser)
    add_out(parser)


def add_report(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``report``."""
    add_baselines(parser)
    add_out(parser)


def add_baselines(parser: argparse.ArgumentParser) -> None:
    """Add the flag that names a file of baselines."""
    help_ = "rows to show among the methods, not ranked (benchmarks/embedded/baselines.py)"
    parser.add_argument("--baselines", type=Path, metavar="CSV", help=help_)


def add_out(parser: argparse.ArgumentParser, usual: str = "RESULTS/leaderboard") -> None:
    """Add the flags that say which records count and where files are written."""
    parser.add_argument(
        "--any-code",
        action="store_true",
        help="also use records made by other versions of the code, if their settings, split and "
        "weights are the same",
    )
    parser.add_argument(
        "--as-recorded",
        action="store_true",
        help="use the newest record of every cell, whatever settings and code it was made with",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder (default: {usual})")


def leaderboard(arguments: argparse.Namespace, request: Request) -> int:
    """Write the leaderboard in all formats and print one of them."""
    from gcdbench.report.formats import FORMATS, write_all

    leaderboard = load_leaderboard(arguments, request)
    if arguments.format == "text":
        _print(leaderboard)
    else:
        sys.stdout.write(plain(FORMATS[arguments.format](leaderboard)))
    try:
        with writing(arguments):
            paths = write_all(leaderboard, folder(arguments))
    except UserError as error:
        if arguments.out is not None:
            raise
        log.warning("not written: %s", error)  # the results of another user can still be read
        return 0
    log.info("written: %s", ", ".join(map(str, paths)))
    return 0


def _print(leaderboard: Leaderboard) -> None:
    """Print a leaderboard that is as wide as the terminal, or as COLUMNS says."""
    from gcdbench.report.formats.terminal import as_terminal

    sys.stdout.write(plain(as_terminal(leaderboard, terminal_width())))


@contextmanager
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


@contextmanager
def printed_anyway(folder: Path) -> Iterator[None]:
    """Warn that files cannot be written: what they hold was printed, from anybody's results."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        log.warning("not written: %s (%s)", folder, error.strerror or error)


def report(arguments: argparse.Namespace, request: Request) -> int:
    """Write the page and print its path."""
    with _no_garbage_collection(), writing(arguments):
        path = _write_page(load_leaderboard(arguments, request), arguments, request)
    sys.stdout.write(f"{path}\n")
    return 0


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Pause the garbage collector: nothing can be freed here, and it takes a tenth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def publish(
    arguments: argparse.Namespace, request: Request, cells: Sequence[Cell] | None = None
) -> None:
    """Write leaderboard, page and bars after a run, and print the leaderboard."""
    from gcdbench.report.formats import write_all
    from gcdbench.report.plots.canvas import write

    leaderboard = load_leaderboard(arguments, request, cells)
    _print(leaderboard)
    target = folder(arguments)
    with writing(arguments):
        paths = [*write_all(leaderboard, target), _write_page(leaderboard, arguments, request)]
        paths += write(PLOTS["bars"].draw(leaderboard), target / f"{leaderboard.suite}-bars")
    log.info("written: %s", ", ".join(map(str, paths)))


def load_leaderboard(
    arguments: argparse.Namespace, request: Request, cells: Sequence[Cell] | None = None
) -> Leaderboard:
    """Compute the leaderboard of a request; say which records were left out."""
    from gcdbench.report.collect import collect
    from gcdbench.report.leaderboard import make_leaderboard

    collection = collect(
        request,
        arguments.results,
        any_code=_any_code(arguments),
        as_recorded=bool(getattr(arguments, "as_recorded", False)),
        cells=cells,
        judge=judge,
    )
    say_left_out(collection.left_out)
    if not collection.records:
        raise UserError("none of these cells has a record; run them first (gcdbench run ...)")
    board = make_leaderboard(collection, suite_name(request), smoke=request.quick)
    if (path := getattr(arguments, "baselines", None)) is None:
        return board
    from gcdbench.report.baselines import with_baselines

    return with_baselines(board, path)


def judge(*given: Any, **more: Any) -> Verdict:
    """Compute a record's scores again; what that needs is imported when a record is new."""
    from gcdbench.training.scoring.rescore import judge

    return judge(*given, **more)


def say_left_out(left_out: Iterable[LeftOut]) -> None:
    """Say which records were left out."""
    by_reason: dict[str, list[str]] = {}
    for one in left_out:
        by_reason.setdefault(one.reason, []).append(one.path)
    for reason, paths in by_reason.items():
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        log.warning("left out: %s%s: %s", paths[0], more, reason)


def _any_code(arguments: argparse.Namespace) -> bool:
    """Tell whether records of other code count; after a run they do not."""
    return bool(getattr(arguments, "any_code", False))


def suite_name(request: Request) -> str:
    """Return the name that the files of a report begin with."""
    from gcdbench.core.suites import Suite

    return Suite.load(request.suite).name + ("-quick" if request.quick else "")


def folder(arguments: argparse.Namespace) -> Path:
    """Return the folder that reports are written to."""
    return Path(getattr(arguments, "out", None) or arguments.results / "leaderboard")


def _write_page(leaderboard: Leaderboard, arguments: argparse.Namespace, request: Request) -> Path:
    from gcdbench.core.files import write_atomically
    from gcdbench.report.page.build import page

    path = folder(arguments) / f"{leaderboard.suite}.html"
    command = _command(request, _any_code(arguments))
    write_atomically(path, page(leaderboard, command=command).encode())
    return path


def _command(request: Request, any_code: bool) -> str:
    """Return the command that makes this page, without local paths."""
    words = ["gcdbench", "report", "--suite", Path(request.suite).name]
    for flag, values in (
        ("--methods", request.methods),
        ("--datasets", request.datasets),
        ("--seeds", request.seeds),
        ("--class-splits", request.class_splits),
    ):
        words += [flag, *map(str, values)] if values else []
    for section, settings in request.assignments.items():
        for name, value in settings.items():
            words += ["--set", f"{section}.{name}={value}"]
    flags = {"--quick": request.quick, "--any-code": any_code}
    return shlex.join([*words, *(flag for flag, given in flags.items() if given)])
