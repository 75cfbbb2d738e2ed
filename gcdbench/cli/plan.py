"""The verbs plan and status: what would run, and the state of each cell. No torch."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Mapping, Sequence

from gcdbench.cli.arguments import say, seconds
from gcdbench.core.json_text import json_text
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.experiment.index import Done, Index
from gcdbench.experiment.plan import Cell, Request, make_cells

log = logging.getLogger("gcdbench")


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``plan`` in addition to those of a request."""
    add_device(parser)
    parser.add_argument("--cells", action="store_true", help="every cell, with its key")
    parser.add_argument("--json", action="store_true", help="every cell, for programs")


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add the flag that names the device whose time is estimated."""
    from gcdbench.runner.cost import DEFAULT, DEVICES

    where = f"estimate the time on it (default: {DEFAULT}); cpu: from records only"
    parser.add_argument("--on", choices=DEVICES, default=DEFAULT, help=where)


def plan(arguments: argparse.Namespace, request: Request) -> int:
    """Show what would run, what it will cost and what is done."""
    from gcdbench.cli import cost_tables
    from gcdbench.cli.backbones import check_backbones
    from gcdbench.runner.cost import CostModel

    records.check_folder(arguments.results)
    cells = make_cells(request)
    check_backbones(cells)
    absent = _absent(cells)
    with Index(arguments.results) as index:
        model = CostModel(index.readable(), arguments.on)
        rows = [
            cost_tables.Row(
                cell,
                key=None if cell.dataset in absent else cell.key,
                done=cell.dataset not in absent and isinstance(index.done(cell), Done),
                cost=model.estimate(cell),
            )
            for cell in cells
        ]
    for reason, datasets in _by_reason(absent).items():
        log.warning("data not there: %s", f"{', '.join(datasets)}: {reason}")
    if arguments.json:
        say(json_text([row.as_dict() for row in rows]))
    else:
        render = cost_tables.every_cell if arguments.cells else cost_tables.summary
        say(render(rows, model))
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


def _by_reason(absent: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the missing datasets by reason; of several reasons the first."""
    first = next(iter(absent.values()), "")
    return {first: list(absent)} if absent else {}


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
            say(json_text([row.as_dict() for row in rows]))
        else:
            if arguments.watch and sys.stdout.isatty():
                sys.stdout.write("\x1b[H\x1b[2J")  # clear the screen
            say(status_.render(rows))
        if not arguments.watch or status_.settled(rows):
            return 0
        time.sleep(arguments.watch)
