"""The verb run: its flags and the report of the outcome. Torch is imported by launchers."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from gcdbench.cli.arguments import amount, count, positive, seconds
from gcdbench.cli.backbones import check_backbones, fetch_weights
from gcdbench.core.files import read_regular, write_atomically
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.experiment.outcome import Outcome
from gcdbench.experiment.plan import Cell, Request, make_cells
from gcdbench.runner.launchers import LAUNCHERS, choose_launcher, get_launcher
from gcdbench.runner.options import RunOptions, plugin_files
from gcdbench.runner.trackers import TRACKERS, check_trackers

PATIENCE = 1.0  # seconds without a word
log = logging.getLogger("gcdbench")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``run`` to those of a request."""
    add = parser.add_argument
    add("--device", default="auto", help="cpu, cuda, cuda:1, ... (default: all GPUs, else the CPU)")
    add("--jobs", type=positive, metavar="N", help="cells at a time (default: one per GPU)")
    add("--nproc-per-node", type=positive, default=1, metavar="N", help="processes for each cell")
    loading = "processes that load images, per cell (default: on GPUs cores / GPUs, else none)"
    add("--workers", type=count, metavar="N", help=loading)
    space = "disk space for frozen features, shared by all cells and processes (default: none)"
    add("--cache-gb", type=amount, default=0.0, metavar="GB", help=space)
    add("--strict", action="store_true", help="fail cells with an image that cannot be read")
    add("--rerun", action="store_true", help="train recorded cells again; old records are kept")
    tracked = "log there, too, and not in log.jsonl alone; may be given several times"
    add("--tracker", action="append", choices=TRACKERS.names(), default=[], help=tracked)
    add("--keep-weights", action="store_true", help="keep what was trained, for plot pca|attention")
    limit = "fail cells that take longer (default: no limit)"
    add("--cell-timeout", type=seconds, metavar="MINUTES", help=limit)
    stall = "fail cells that make no step for so long, reading features included"
    add("--stall-timeout", type=seconds, metavar="MINUTES", help=stall)
    launchers = ("auto", *LAUNCHERS.names())
    where = "how cells are run (default: auto, by the flags above; slurm: submit and return)"
    add("--launcher", choices=launchers, default="auto", help=where)
    add("--slurm", type=Path, metavar="FILE", help="YAML with what a job asks of the cluster")


def run(arguments: argparse.Namespace, request: Request) -> int:
    """Train and score the cells that have no record yet."""
    cells = make_cells(request)
    outcome = execute(arguments, cells)
    if is_main() and (outcome.trained or outcome.skipped):
        _publish(arguments, request, cells)
    return 1 if outcome.failed else 0


def execute(arguments: argparse.Namespace, cells: list[Cell]) -> Outcome:
    """Train the cells that have no record yet, log the outcome and return it.

    Missing data, unusable backbones, weights that cannot be had and folders that cannot be written
    are reported before anything is trained.
    """
    records.check_writable(arguments.results)
    check_backbones(cells)
    with _said_after(PATIENCE, f"{_described(cells)}: looking for data and weights ..."):
        for cell in cells:
            _ = cell.key  # needs the data and the weights
    if is_main():
        log.info("%s; records go to %s", _described(cells), arguments.results)
    options = make_options(arguments, cells)
    if is_main():
        fetch_weights(
            c for c in cells if not records.is_done(options.results, c, since=options.since)
        )
    outcome = get_launcher(choose_launcher(options)).run(cells, options)
    if not is_main() or outcome.submitted:
        return outcome
    if arguments.rerun and not outcome.failed:
        _rerun_note(arguments.results, cells).unlink(missing_ok=True)
    if not outcome.trained and not outcome.failed:
        log.info("all %d cells are recorded already: nothing was trained", len(cells))
    elif outcome.skipped:
        log.info("%d of %d cells were recorded already", len(outcome.skipped), len(cells))
    if arguments.keep_weights and (bare := without_weights(outcome.skipped, arguments.results)):
        log.warning("%d recorded cells have no weights: --rerun trains them again", len(bare))
    if outcome.failed:
        log.error("%d of %d cells failed", len(outcome.failed), len(cells))
    return outcome


@contextlib.contextmanager
def _said_after(seconds: float, text: str) -> Iterator[None]:
    """Log a text if what is done in the context takes longer."""
    timer = threading.Timer(seconds, log.info, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _described(cells: Sequence[Cell]) -> str:
    """Return what will be run, in one line that is printed before torch is imported."""
    methods = list(dict.fromkeys(cell.spec.text for cell in cells))
    datasets, seeds = {cell.dataset for cell in cells}, {cell.seed for cell in cells}
    named = ", ".join(methods[:4]) + (f" and {len(methods) - 4} more" if methods[4:] else "")
    counts = f"{len(datasets)} dataset{'s' * (len(datasets) > 1)}"
    counts += f", {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    return f"{len(cells)} cell{'s' * (len(cells) > 1)}: {named} on {counts}"


def without_weights(cells: Sequence[Cell], results: Path) -> list[Cell]:
    """Return the cells whose trained weights were not kept."""
    return [c for c in cells if not (records.cell_folder(results, c) / records.WEIGHTS).exists()]


def is_main() -> bool:
    """Return whether this process reports: of those that torchrun has started, only the first."""
    return os.environ.get("RANK", "0") == "0"


def _rerun_note(results: Path, cells: Sequence[Cell]) -> Path:
    """Return the file that holds when the unfinished rerun of these cells was started."""
    name = hashlib.sha256(" ".join(sorted(cell.key for cell in cells)).encode()).hexdigest()
    return results / f"rerun-{name[:16]}.json"


def _rerun_start(results: Path, cells: Sequence[Cell]) -> float:
    """Return when the rerun was started: now, unless the same one was interrupted before."""
    note = _rerun_note(results, cells)
    damaged = (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError)
    with contextlib.suppress(*damaged):
        before = float(json.loads(read_regular(note))["started"])
        if not 0 < before <= time.time():
            raise ValueError("no moment of the past")
        if not all(records.is_done(results, cell, since=before) for cell in cells):
            log.info("resuming the rerun of %s", time.strftime("%c", time.localtime(before)))
            return before
    now = time.time()
    if is_main():
        write_atomically(note, json.dumps({"started": now}).encode())
    return now


def make_options(arguments: argparse.Namespace, cells: Sequence[Cell]) -> RunOptions:
    """Return the options of a run; raise a UserError for those that exclude each other."""
    check_trackers(arguments.tracker)
    if arguments.slurm and arguments.launcher != "slurm":
        raise UserError("--slurm: add --launcher slurm to run on a cluster")
    if arguments.jobs and arguments.nproc_per_node > 1:
        raise UserError("--jobs and --nproc-per-node: either many cells at a time or one")
    several = arguments.nproc_per_node > 1 or os.environ.get("WORLD_SIZE", "1") != "1"
    if arguments.cache_gb and several and is_main():
        log.warning("--cache-gb does nothing here: processes of one cell keep features in memory")
    return RunOptions(
        results=arguments.results,
        device=arguments.device,
        launcher=arguments.launcher,
        jobs=arguments.jobs,
        processes=arguments.nproc_per_node,
        workers=arguments.workers,
        cache=_cache_folder(arguments),
        cache_bytes=int(arguments.cache_gb * 10**9),
        strict=arguments.strict,
        keep_weights=arguments.keep_weights,
        trackers=tuple(arguments.tracker),
        since=_rerun_start(arguments.results, cells) if arguments.rerun else 0.0,
        cell_timeout=arguments.cell_timeout and 60 * arguments.cell_timeout,
        stall_timeout=arguments.stall_timeout and 60 * arguments.stall_timeout,
        slurm=arguments.slurm,
        plugins=plugin_files(),
    )


def _cache_folder(arguments: argparse.Namespace) -> Path | None:
    """Return the folder of the cache of frozen features, or None without a cache."""
    if arguments.cache_gb <= 0:
        return None
    place = os.environ.get("GCDBENCH_CACHE")
    return (Path(place).expanduser() if place else arguments.results / "cache") / "features"


def _publish(arguments: argparse.Namespace, request: Request, cells: Sequence[Cell]) -> None:
    from gcdbench.cli import report

    methods = tuple(dict.fromkeys(cell.spec.text for cell in cells))
    with finished_anyway(arguments.debug):
        report.publish(arguments, dataclasses.replace(request, methods=methods), cells)


@contextlib.contextmanager
def finished_anyway(debug: bool = False) -> Iterator[None]:
    """Log that a report after a run has failed: the cells are done and stay done."""
    try:
        yield
    except BrokenPipeError:
        raise
    except Exception as error:
        if debug:
            raise
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        log.warning("the cells are recorded, but there is no report: %s%s", kind, error)
