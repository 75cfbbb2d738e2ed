"""The verb site: one static site of all leaderboards of a results folder."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gcdbench.cli.report import add_baselines, add_out, judge, say_left_out, writing
from gcdbench.errors import UserError

if TYPE_CHECKING:
    from gcdbench.report.leaderboard import Leaderboard

log = logging.getLogger("gcdbench")


def add_site(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``site``."""
    add = parser.add_argument
    suites = "names of suites, or YAML files (default: all of the project's that have records)"
    add("--suites", nargs="+", default=(), metavar="SUITE", help=suites)
    add("--results", type=Path, default=Path("results/runs"), metavar="DIR")
    add("--data-root", type=Path, metavar="DIR", help="where the datasets are (or GCDBENCH_DATA)")
    add_baselines(parser)
    add_out(parser, usual="site")
    parser.set_defaults(out=Path("site"))


def site(arguments: argparse.Namespace) -> int:
    """Write a static site of all suites and methods that have records."""
    from gcdbench.core.files import write_atomically
    from gcdbench.report.page.site import site_files

    boards = _boards(arguments)
    with writing(arguments):
        for name, text in site_files(boards):
            write_atomically(arguments.out / name, text.encode())
    sys.stdout.write(f"{arguments.out / 'index.html'}\n")
    return 0


def _boards(arguments: argparse.Namespace) -> dict[str, Leaderboard]:
    """Return the leaderboards of the suites that are asked for and have records."""
    from gcdbench.core.suites import Suite, suites
    from gcdbench.experiment import records
    from gcdbench.experiment.plan import Request, base_name
    from gcdbench.report.baselines import with_baselines
    from gcdbench.report.collect import collect
    from gcdbench.report.leaderboard import make_leaderboard

    if not arguments.results.is_dir():
        raise UserError(f"--results {arguments.results}: no such folder")
    seeds: dict[str, set[int]] = {}  # recorded ones, by dataset
    for record in records.readable(arguments.results):
        seeds.setdefault(base_name(record.dataset), set()).add(record.seed)
    boards, given = {}, arguments.baselines
    for suite in arguments.suites or suites():
        wanted = set().union(*(seeds.get(name, ()) for name in Suite.load(suite).datasets))
        request = Request(suite, seeds=tuple(sorted(wanted)), data_root=arguments.data_root)
        try:
            found = collect(
                request,
                arguments.results,
                any_code=arguments.any_code,
                as_recorded=arguments.as_recorded,
                judge=judge,
            )
        except UserError as error:
            if arguments.suites:
                raise
            log.debug("%s is left out: %s", suite, error)
            continue
        say_left_out(found.left_out)
        if found.records:
            board = make_leaderboard(found, Path(suite).stem)
            if given is not None:
                board = with_baselines(board, given, required=bool(arguments.suites))
            boards[board.suite] = board
        elif arguments.suites:
            raise UserError(f"suite {suite}: none of its cells has a record in {arguments.results}")
    if not boards:
        raise UserError(
            f"no suite has a record in {arguments.results}; make some with: gcdbench run"
        )
    if given is not None and not any(board.baselines for board in boards.values()):
        raise UserError(f"--baselines {given}: no row of {', '.join(boards)} and their datasets")
    return boards
