"""The study behind ``reproduce selection``: train draws on folds and on the true split, compare."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gcdbench.cli import run
from gcdbench.cli.arguments import positive, say
from gcdbench.cli.report import printed_anyway
from gcdbench.cli.tuning.tune import distinct
from gcdbench.core.config import parse_assignments
from gcdbench.core.files import write_atomically
from gcdbench.errors import UserError
from gcdbench.experiment import heartbeat, records
from gcdbench.experiment.plan import Cell, Request
from gcdbench.experiment.record import Record
from gcdbench.experiment.tuning.criteria import CRITERIA, oracle
from gcdbench.experiment.tuning.samplers import flat_settings
from gcdbench.experiment.tuning.search import Draw, Search

if TYPE_CHECKING:
    from gcdbench.report.tuning.selection import Trial

NAME = "selection"
SUITE = "drawshift"
METHODS = ("rankstats", "uno", "orca", "gcd", "simgcd", "uniot", "hilo")
DATASETS = ("line+solid", "line+quickdraw")
BUDGET = 12
SEED = 0  # of the search, its draws and the runs on the true split
log = logging.getLogger("gcdbench")


def add_study(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``reproduce selection`` to those of ``reproduce``."""
    add = parser.add_argument
    add("--budget", type=positive, default=BUDGET, metavar="N", help="selection: draws per method")
    add("--methods", nargs="+", default=METHODS, metavar="METHOD", help="selection: some of them")


def study(arguments: argparse.Namespace) -> int:
    """Train what is missing of the study and print it."""
    if arguments.scale != "embedded":
        raise UserError("reproduce selection: add --scale embedded; there is no other scale yet")
    searches = plan_study(arguments)
    records.check_folder(arguments.results)
    pairs = [(one, one.draws(arguments.results)) for one in searches]
    cells = [cell for one, draws in pairs for draw in draws for cell in _cells(one, draw)]
    if arguments.list:
        done = sum(records.is_done(arguments.results, cell) for cell in cells)
        say(f"{NAME}: {len(searches)} pairs, {len(cells)} cells, {done} recorded")
        return 0
    failed = 0
    if not arguments.show:
        cells.sort(key=lambda cell: cell.dataset)  # cells of one dataset share frozen features
        outcome = run.execute(arguments, distinct(cells))
        if outcome.submitted:
            log.info("submitted; run the same command again when the jobs are done")
            return 0
        failed = len(outcome.failed)
    if run.is_main():
        with run.finished_anyway(arguments.debug):
            _publish(arguments, searches)
    return 1 if failed else 0


def plan_study(arguments: argparse.Namespace) -> list[Search]:
    """Return a search for each method and dataset."""
    request = Request(
        SUITE,
        assignments=parse_assignments(arguments.assignments),
        quick=arguments.quick,
        data_root=arguments.data_root,
    )
    names = tuple(arguments.datasets) or DATASETS
    return [
        Search(request, method, dataset, SEED, arguments.budget)
        for dataset in names
        for method in dict.fromkeys(arguments.methods)
    ]


def _cells(search: Search, draw: Draw) -> list[Cell]:
    """Return the cells of a draw: on the fold, and on the true split without learning curves."""
    quiet = {**draw.settings, "train": {"eval_every": 0, **draw.settings.get("train", {})}}
    return [*draw.cells, *search.final_cells(quiet, (SEED,))]


def trials(searches: Sequence[Search], results: Path) -> list[Trial]:
    """Return the searches that are complete: all of their draws are recorded or have failed.

    Draws that failed on the fold or on the true split are left out and counted.
    """
    from gcdbench.report.tuning.selection import Trial

    found = []
    for search in searches:
        draws = search.draws(results)
        rows = [_row(search, draw, results) for draw in draws]
        known = [row for row in rows if isinstance(row, tuple)]
        usable = [draw for draw, row in zip(draws, rows, strict=True) if isinstance(row, tuple)]
        if None in rows or not known or not isinstance(rows[0], tuple):
            continue
        found.append(
            Trial(
                search.dataset,
                search.method,
                values={name: [row[0][name] for row in known] for name in CRITERIA},
                target=[row[1] for row in known],
                settings=[flat_settings(draw.settings) for draw in usable],
                seconds=sum(row[2] for row in known),
                failed=len(rows) - len(known),
            )
        )
    return found


Row = tuple[Mapping[str, float], float, float]  # values, target and processor time of a draw


def _row(search: Search, draw: Draw, results: Path) -> Row | Literal["failed"] | None:
    """Return the numbers of a draw; None if it is still to be trained."""
    cells = _cells(search, draw)
    true = records.read_done(results, cells[-1])
    if draw.values is not None and isinstance(true, Record):
        return draw.values, 100 * oracle(true, {}), draw.seconds + true.timing.cpu_seconds
    folders = (records.cell_folder(results, cell) for cell in cells)
    failed = any(heartbeat.read(folder, heartbeat.FAILURE) for folder in folders)
    return "failed" if failed else None


def _publish(arguments: argparse.Namespace, searches: Sequence[Search]) -> None:
    from gcdbench.report.formats.selection import draws_to_csv, markdown, to_csv
    from gcdbench.report.plots.canvas import write
    from gcdbench.report.plots.selection import selection as plot
    from gcdbench.report.tuning import selection

    found = trials(searches, arguments.results)
    lines = selection.lines(found, (selection.DEFAULT, *CRITERIA))
    text = markdown(lines, found, suite=SUITE, planned=len(searches))
    say(text)
    if not found:
        return
    stem = arguments.results / "reproduce" / (f"{NAME}-embedded" + "-quick" * arguments.quick)
    with printed_anyway(stem.parent):
        files = {".md": text, ".csv": to_csv(lines), "-draws.csv": draws_to_csv(found)}
        for suffix, content in files.items():
            write_atomically(stem.with_name(stem.name + suffix), content.encode())
        write(plot(lines), stem)
        log.info("written: %s.md, .csv, .png, .pdf and -draws.csv", stem)
