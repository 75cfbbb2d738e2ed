"""The verbs plan and status: what would run, and the state of each cell. No torch."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Sequence

from gcdbench.cli.arguments import say, seconds
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.experiment.index import Done, Index
from gcdbench.experiment.plan import Cell, Request, make_cells

log = logging.getLogger("gcdbench")


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``plan`` in addition to those of a request."""
    parser.add_argument("--json", action="store_true", help="for programs")


def plan(arguments: argparse.Namespace, request: Request) -> int:
    """Show what would run, what it will cost and what is done."""
    from gcdbench.runner.cost import CostModel, duration

    records.check_folder(arguments.results)
    cells = make_cells(request)
    absent = _absent(cells)
    with Index(arguments.results) as index:
        model = CostModel(index.readable())
        rows = [
            {
                "dataset": cell.dataset,
                "method": cell.spec.text,
                "seed": cell.seed,
                "key": None if cell.dataset in absent else cell.key,
                "done": cell.dataset not in absent and isinstance(index.done(cell), Done),
                **vars(model.estimate(cell)),
            }
            for cell in cells
        ]
    for reason in dict.fromkeys(absent.values()):
        log.warning("data not there: %s", reason)
    if arguments.json:
        say(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        key = row["key"] or "-"
        place = f"{row['dataset']:<20} {row['method']:<24} seed {row['seed']:<4} {key:<16}"
        time_ = "" if row["seconds"] is None else f", about {duration(row['seconds'])}"
        cost = f"to do: {row['images']:,} images{time_} ({row['basis']})"
        say(f"{place}  {'done' if row['done'] else cost}")
    left = [row for row in rows if not row["done"]]
    total = f"{len(rows)} cells, {len(rows) - len(left)} done"
    known = [row["seconds"] for row in left if row["seconds"] is not None]
    if known:
        some = "" if len(known) == len(left) else f" for {len(known)} of the other {len(left)}"
        total += f"; about {duration(sum(known))} of one process{some}"
    say(total)
    return 0


def _absent(cells: Sequence[Cell]) -> dict[str, str]:
    """Return the missing datasets with the reason; their cells have no key."""
    reasons = {}
    for cell in {cell.dataset: cell for cell in cells}.values():
        try:
            cell.problem()
        except UserError as error:
            reasons[cell.dataset] = str(error)
    return reasons


def add_status(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``status`` in addition to those of a request."""
    add = parser.add_argument
    add(
        "--watch",
        type=seconds,
        nargs="?",
        const=5.0,
        metavar="SECONDS",
        help="refresh until all cells are done",
    )
    add("--json", action="store_true", help="for programs")


def status(arguments: argparse.Namespace, request: Request) -> int:
    """Show the state of each cell, and why one failed or is stale."""
    from gcdbench.runner import status as status_

    records.check_folder(arguments.results)
    cells = make_cells(request)
    while True:
        rows = status_.states(cells, arguments.results)
        if arguments.json:
            say(json.dumps([row.as_dict() for row in rows], indent=1))
        else:
            clear = "\x1b[H\x1b[2J" if arguments.watch and sys.stdout.isatty() else ""
            say(clear + status_.render(rows))
        if not arguments.watch or status_.settled(rows):
            return 0
        time.sleep(arguments.watch)
