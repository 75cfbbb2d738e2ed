"""The verb reproduce: plan a table of the paper, run what is missing, print it."""

from __future__ import annotations

import argparse
import contextlib
import logging

from gcdbench.cli.arguments import aligned, say
from gcdbench.cli.backbones import check_backbones
from gcdbench.cli.cost_tables import Total, notes
from gcdbench.cli.plan import add_device
from gcdbench.cli.report import judge, printed_anyway, say_left_out
from gcdbench.cli.run import execute, finished_anyway, is_main
from gcdbench.cli.tuning import study
from gcdbench.core.config import parse_assignments
from gcdbench.core.files import write_atomically
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.paper_tables.tables import SCALES, Choice, Plan, distinct, load, make_plans, tables
from gcdbench.runner.cost import CostModel

log = logging.getLogger("gcdbench")


def add_reproduce(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``reproduce`` to those that say how cells are run."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("tables", nargs="*", metavar="TABLE", help="see --list; several share their cells")
    add("--list", action="store_true", help="show all tables, their cells and what they would cost")
    add_device(parser)
    add("--show", action="store_true", help="print what is recorded, train nothing")
    add("--scale", choices=SCALES, default="paper", help="embedded: on the drawings, on a laptop")


EXAMPLES = """examples:
  gcdbench reproduce --list                                  all tables and their cost
  gcdbench reproduce ssb_c --data-root /data                 the main table; can be resumed
  gcdbench reproduce ablation_step --scale embedded --seeds 0    the same rows on drawings
  gcdbench reproduce ablation_step --show                    recorded and printed numbers
  gcdbench reproduce selection --scale embedded              which criterion to tune by
"""


def reproduce(arguments: argparse.Namespace) -> int:
    """Run a table of the paper and print it with the measured numbers."""
    if arguments.tables == [study.NAME]:
        return study.study(arguments)
    choice = Choice(
        scale=arguments.scale,
        datasets=tuple(arguments.datasets),
        seeds=tuple(arguments.seeds),
        assignments=parse_assignments(arguments.assignments),
        quick=arguments.quick,
        data_root=arguments.data_root,
    )
    if not arguments.tables and not arguments.list:
        raise UserError("reproduce: name a table; 'gcdbench reproduce --list' shows them")
    names = dict.fromkeys(arguments.tables or tables())
    plans = make_plans([load(name) for name in names], choice)
    records.check_folder(arguments.results)
    check_backbones(cell for plan in plans for cell in plan.cells.values())
    if arguments.list:
        model = CostModel(records.readable(arguments.results), arguments.on)
        say(listing(plans, model))
        return 0
    failed = 0 if arguments.show else _run(arguments, plans)
    if is_main():
        with contextlib.nullcontext() if arguments.show else finished_anyway(arguments.debug):
            _publish(arguments, plans)
    return 1 if failed else 0


def _run(arguments: argparse.Namespace, plans: list[Plan]) -> int:
    """Train the cells without a record; return how many failed."""
    shared = distinct(cell for plan in plans for cell in plan.cells.values())
    # cells of one dataset run in a row and share frozen features
    cells = sorted(shared.values(), key=lambda cell: cell.dataset)
    return len(execute(arguments, cells).failed)


def _publish(arguments: argparse.Namespace, plans: list[Plan]) -> None:
    from gcdbench.paper_tables.render import markdown, to_csv
    from gcdbench.paper_tables.results import gather

    folder = arguments.results / "reproduce"
    for plan in plans:
        result = gather(plan, arguments.results, judge)
        say_left_out(result.left_out)
        text = markdown(result)
        say(text)
        if result.recorded:
            stem = folder / (result.name + "-quick" * arguments.quick)
            with printed_anyway(folder):
                for suffix, content in ((".md", text), (".csv", to_csv(result))):
                    write_atomically(stem.with_name(stem.name + suffix), content.encode())
                log.info("written: %s.md, .csv", stem)


def listing(plans: list[Plan], model: CostModel) -> str:
    """Return one line per table: rows, cells, what they cost, and the total after sharing."""
    shared = distinct(cell for plan in plans for cell in plan.cells.values())
    costs = {key: model.estimate(cell) for key, cell in shared.items()}
    rows = [["table", "rows", "cells", "images", "FLOPs", f"on {model.device}", "title"]]
    for plan in plans:
        lines = len({entry.row.name for entry in plan.entries})
        cost = Total.of(costs[key] for key in plan.cells)
        counts = [str(lines), str(len(plan.cells))]
        rows.append([plan.table.name, *counts, *cost.words, plan.table.title])
    images, flops, time = Total.of(costs.values()).words
    asked = sum(len(plan.cells) for plan in plans)
    total = f"{asked} cells in {len(plans)} tables are {len(shared)} different ones"
    return "\n".join(
        [
            *aligned(rows, left=(0, 6)),
            "",
            f"{total}: {images} images, {flops} FLOPs, {time} on one {model.device}.",
            *notes(costs.values(), model),
        ]
    )
