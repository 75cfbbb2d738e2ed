"""The verb tune: search settings at equal budgets, train the winners, print both."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
from collections.abc import Sequence
from pathlib import Path

from gcdbench.cli import run
from gcdbench.cli.arguments import positive, say, seed, terminal_width
from gcdbench.cli.report import judge, printed_anyway, say_left_out, writing
from gcdbench.core.files import write_atomically
from gcdbench.core.json_text import json_text
from gcdbench.core.suites import Suite
from gcdbench.data.tuning.names import FOLDS
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.experiment.plan import Cell, Request, make_cells
from gcdbench.experiment.tuning import criteria
from gcdbench.experiment.tuning.samplers import SAMPLERS, check_sampler, flat_settings
from gcdbench.experiment.tuning.search import Draw, Search, attach, missing

SEEDS = (0, 1, 2)  # of the winner on the true split
TUNE_SEEDS = (0, 1)  # whole searches
log = logging.getLogger("gcdbench")


def add_tune(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``tune`` to those of a request and of ``run``."""
    add = parser.add_argument
    add("--budget", type=positive, default=12, metavar="N", help="draws per search (default: 12)")
    names = ", ".join(criteria.CRITERIA)
    add(
        "--criterion",
        choices=tuple(criteria.CRITERIA),
        default=criteria.DEFAULT,
        help=f"what settings are chosen by: {names} (oracle reads hidden labels: a diagnostic)",
    )
    add("--sampler", choices=SAMPLERS, default="random", help="tpe needs Optuna")
    text = "whole searches, each with draws, fold and seed of its own (default: 0 1)"
    add("--tune-seeds", nargs="+", type=seed, default=TUNE_SEEDS, metavar="N", help=text)
    add("--folds", type=positive, default=1, metavar="N", help=f"per draw, 1 to {FOLDS}")
    add("--show", action="store_true", help="print what is recorded, train nothing")
    add("--out", type=Path, metavar="DIR", help="folder of the tables (default: RESULTS/tune)")


def tune(arguments: argparse.Namespace, request: Request) -> int:
    """Search settings without hidden labels and train the winners."""
    check_sampler(arguments.sampler)
    searches = plan_searches(arguments, request)
    seeds = tuple(request.seeds) or SEEDS
    if len(seeds) < len(SEEDS) and not request.quick:
        raise UserError(f"--seeds: a winner needs at least {len(SEEDS)} seeds")
    records.check_folder(arguments.results)
    failed: set[str] = set()
    if not arguments.show and not run_draws(arguments, searches, failed):
        return 0
    chosen = choose(searches, arguments.results, failed, quiet=arguments.show)
    if not chosen:
        raise UserError("no draw is recorded yet; run the command without --show")
    defaults = [cell for search in first_of(chosen) for cell in search.final_cells({}, seeds)]
    cells = distinct(
        [*defaults, *(c for s, _, w in chosen for c in s.final_cells(w.settings, seeds))]
    )
    lost = 0
    if not arguments.show:
        log.info("training the winners and the defaults on the true split: %d cells", len(cells))
        outcome = run.execute(arguments, cells)
        if outcome.submitted:
            log.info("submitted; run the same command again when the jobs are done")
            return 0
        lost = len(outcome.failed)
    for search, draws, winner in chosen:
        for cell in search.final_cells(winner.settings, seeds):
            attach(arguments.results, cell, search.facts(draws, winner))
    if run.is_main():
        with run.finished_anyway(arguments.debug):
            _publish(arguments, request, distinct(defaults), chosen)
    return 1 if lost or len(chosen) < len(searches) else 0


Chosen = tuple[Search, Sequence[Draw], Draw]  # a search, its draws and the winner


def plan_searches(arguments: argparse.Namespace, request: Request) -> list[Search]:
    """Return a search for each dataset, method and seed of a search."""
    if arguments.folds > FOLDS:
        raise UserError(f"--folds {arguments.folds}: there are {FOLDS}")
    cells = make_cells(dataclasses.replace(request, seeds=(0,)))  # checks all names and settings
    return [
        Search(
            request,
            cell.spec.text,
            cell.dataset,
            number,
            arguments.budget,
            arguments.criterion,
            arguments.sampler,
            arguments.folds,
        )
        for cell in cells
        for number in dict.fromkeys(arguments.tune_seeds)
    ]


def run_draws(arguments: argparse.Namespace, searches: Sequence[Search], failed: set[str]) -> bool:
    """Train the draws that have no record; return False if they were handed to a scheduler."""
    while True:
        cells = [
            cell
            for search in searches
            for cell in missing(search.draws(arguments.results, failed), arguments.results, failed)
        ]
        if not cells:
            return True
        log.info("%d draws are to be trained", len(cells))
        cells.sort(key=lambda cell: cell.dataset)  # cells of one dataset share frozen features
        outcome = run.execute(arguments, distinct(cells))
        if outcome.submitted:
            log.info("submitted; run the same command again when the jobs are done")
            return False
        for cell, reason in outcome.failed:
            log.warning("a draw of %s counts as the worst: %s", cell.label, reason)
            failed.add(cell.key)


def choose(
    searches: Sequence[Search], results: Path, failed: set[str], *, quiet: bool = False
) -> list[Chosen]:
    """Return the searches that have a winner, with their draws; name the others."""
    found: list[Chosen] = []
    for search in searches:
        draws = search.draws(results, failed)
        winner = search.winner(draws)
        if winner is None:
            log.warning("%s: no draw has a value", search.label)
            continue
        known = sum(one.values is not None for one in draws)
        settings = flat_settings(winner.settings) or "the defaults"
        if not quiet or known < search.budget:
            log.info(
                "%s: draw %d of %d wins by %s (%.4f): %s",
                *(search.label, winner.number, known, search.criterion),
                *(search.value(winner), settings),
            )
        found.append((search, draws, winner))
    return found


def first_of(chosen: Sequence[Chosen]) -> list[Search]:
    """Return one search for each dataset and method."""
    return list({(s.dataset, s.method): s for s, _, _ in chosen}.values())


def distinct(cells: Sequence[Cell]) -> list[Cell]:
    """Return cells without repetition, in order."""
    return list({cell.key: cell for cell in cells}.values())


def _publish(
    arguments: argparse.Namespace,
    request: Request,
    defaults: Sequence[Cell],
    chosen: Sequence[Chosen],
) -> None:
    """Print and write default and tuned settings side by side, and every draw."""
    from gcdbench.report.collect import collect
    from gcdbench.report.formats.terminal import tuned_as_terminal
    from gcdbench.report.formats.tuned import draws_csv, tuned_csv, tuned_markdown
    from gcdbench.report.leaderboard import make_leaderboard
    from gcdbench.report.tuning.tuned import tuned

    collection = collect(request, arguments.results, cells=defaults, judge=judge)
    say_left_out(collection.left_out)
    name = Suite.load(request.suite).name + ("-quick" if request.quick else "")
    rows = tuned(make_leaderboard(collection, name)) if collection.records else []
    wanted = {s.facts(draws, w).identity for s, draws, w in chosen}
    rows = [row for row in rows if row.search.identity in wanted]
    say(tuned_as_terminal(rows, terminal_width(), smoke=request.quick))
    folder = arguments.out or arguments.results / "tune"
    every = [
        {
            "dataset": search.dataset,
            "method": search.method,
            "search_seed": search.seed,
            "draw": one.number,
            "settings": json.dumps(flat_settings(one.settings)),
            "chosen": one is winner,
            **{key: (one.values or {}).get(key) for key in criteria.CRITERIA},
            "cpu_seconds": one.seconds,
        }
        for search, draws, winner in chosen
        for one in draws
    ]
    files = {
        ".md": tuned_markdown(rows),
        ".csv": tuned_csv(rows),
        ".json": json_text([row.as_dict() for row in rows]) + "\n",
        "-draws.csv": draws_csv(every),
    }
    with writing(arguments) if arguments.out else printed_anyway(folder):
        for suffix, content in files.items():
            write_atomically(folder / f"{name}{suffix}", content.encode())
        log.info("written: %s.md, .csv, .json and -draws.csv", folder / name)
