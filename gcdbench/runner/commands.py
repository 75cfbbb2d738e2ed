"""The verbs that run cells and tell where they stand: their flags, and what they print.

Torch is imported by ``run`` alone.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import logging
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gcdbench import records
from gcdbench.errors import UserError
from gcdbench.plan import Cell, Request, make_cells

log = logging.getLogger("gcdbench")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``run`` beside those of a request."""
    add = parser.add_argument
    add("--device", default="auto", help="cpu, cuda, cuda:1, ... (default: all GPUs, else the CPU)")
    add("--jobs", type=_positive, metavar="N", help="cells at a time (default: one per GPU)")
    add("--nproc-per-node", type=_positive, default=1, metavar="N", help="processes for each cell")
    loading = "processes that load images, per cell"
    add("--workers", type=_count, default=0, metavar="N", help=loading)
    space = "disk space for frozen features, shared by all cells and processes (default: none)"
    add("--cache-gb", type=_amount, default=0.0, metavar="GB", help=space)
    together = "train cells that draw the same batches side by side, by one pass over the trunk"
    add("--share-trunk", action="store_true", help=together)
    add("--strict", action="store_true", help="fail cells with an image that cannot be read")
    add("--rerun", action="store_true", help="train recorded cells again; old records are kept")
    add("--tensorboard", action="store_true", help="write curves for TensorBoard as well")
    add("--keep-weights", action="store_true", help="keep what was trained, for plot pca|attention")
    add("--launcher", choices=("local", "slurm"), default="local", help="slurm: submit and return")
    add("--slurm", type=Path, metavar="FILE", help="YAML with what a job asks of the cluster")


def run(arguments: argparse.Namespace, request: Request) -> int:
    """Train and score the cells that have no record yet."""
    cells = make_cells(request)
    outcome = execute(arguments, cells)
    if leads() and (outcome.trained or outcome.skipped):
        _publish(arguments, request, cells)
    return 1 if outcome.failed else 0


def execute(arguments: argparse.Namespace, cells: list[Cell]) -> Any:
    """Train the cells that have no record yet and return the outcome, after having told it.

    What is missing or not writable is said before anything is trained.
    """
    records.check_writable(arguments.results)
    for cell in cells:
        _ = cell.key  # needs the data and the weights
    if arguments.launcher == "slurm":
        return _submit(arguments, cells)
    outcome = _run_here(arguments, cells)
    if not leads():
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


def without_weights(cells: Sequence[Cell], results: Path) -> list[Cell]:
    """Return the cells whose trained weights were not kept."""
    return [c for c in cells if not (records.cell_folder(results, c) / records.WEIGHTS).exists()]


def leads() -> bool:
    """Tell whether this process reports: of those that torchrun has started, only the first."""
    return os.environ.get("RANK", "0") == "0"


def abandon(code: int) -> None:
    """End the process at once if cells run in threads of it: Python would abort over them."""
    circle = sys.modules.get("gcdbench.runner.circle")  # it imports torch
    if circle is not None and circle.running():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _rerun_note(results: Path, cells: Sequence[Cell]) -> Path:
    """Return the file that remembers when the unfinished rerun of these cells was started."""
    name = hashlib.sha256(" ".join(sorted(cell.key for cell in cells)).encode()).hexdigest()
    return results / f"rerun-{name[:16]}.json"


def _rerun_start(results: Path, cells: Sequence[Cell]) -> float:
    """Return when the rerun was started: now, unless the same one was interrupted before."""
    note = _rerun_note(results, cells)
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        before = float(json.loads(note.read_text(encoding="utf-8"))["started"])
        if not all(records.is_done(results, cell, since=before) for cell in cells):
            log.info("going on with the rerun of %s", time.strftime("%c", time.localtime(before)))
            return before
    now = time.time()
    if leads():
        records.write_atomically(note, json.dumps({"started": now}).encode())
    return now


def _options(arguments: argparse.Namespace, cells: Sequence[Cell]) -> dict[str, Any]:
    """Return how cells are run, wherever that is."""
    from gcdbench.runner.tracker import check_tensorboard

    if arguments.tensorboard:
        check_tensorboard()
    several = (arguments.jobs or 1) > 1 or arguments.nproc_per_node > 1
    if arguments.share_trunk and (several or arguments.launcher == "slurm"):
        raise UserError("--share-trunk: cells share a trunk in one process, on this machine only")
    together = arguments.nproc_per_node > 1 or os.environ.get("WORLD_SIZE", "1") != "1"
    if arguments.cache_gb and together and leads():
        log.warning("--cache-gb does nothing here: processes of one cell keep features in memory")
    return {
        "workers": arguments.workers,
        "tensorboard": arguments.tensorboard,
        "keep_weights": arguments.keep_weights,
        "strict": arguments.strict,
        "since": _rerun_start(arguments.results, cells) if arguments.rerun else 0.0,
        **_cache(arguments),
    }


def _submit(arguments: argparse.Namespace, cells: list[Cell]) -> Any:
    """Hand the cells that nobody has over to the cluster; those that are recorded are skipped."""
    from gcdbench.runner import slurm
    from gcdbench.runner.local import Outcome

    if arguments.jobs:
        raise UserError("--jobs is for one machine; for --launcher slurm set at_a_time in --slurm")
    jobs = slurm.submit(
        cells,
        arguments.results,
        slurm.read_config(arguments.slurm),
        plugins=[Path(plugin) for plugin in arguments.plugin or ()],
        device=arguments.device,
        processes=arguments.nproc_per_node,
        **_options(arguments, cells),
    )
    if known := len(cells) - len(jobs):
        log.info("%d of %d cells are recorded or have a job already", known, len(cells))
    if jobs:
        span = jobs[0] if len(jobs) == 1 else f"{jobs[0]} ... {jobs[-1]}"
        log.info("%d cells were submitted as jobs %s; status tells how they do", len(jobs), span)
    return Outcome(skipped=[cell for cell in cells if records.is_done(arguments.results, cell)])


def _run_here(arguments: argparse.Namespace, cells: list[Cell]) -> Any:
    from gcdbench.runner.distributed import is_member
    from gcdbench.runner.local import choose_device, run_cells
    from gcdbench.runner.pool import Pool, posts
    from gcdbench.runner.squad import launch, run_as_member

    if arguments.slurm:
        raise UserError("--slurm: add --launcher slurm to run on a cluster")
    options = _options(arguments, cells)
    if is_member():
        return run_as_member(cells, arguments.results, arguments.device, **options)
    if arguments.nproc_per_node > 1:
        if arguments.jobs:
            raise UserError("--jobs and --nproc-per-node: either many cells at a time or one")
        where = arguments.results, arguments.device, arguments.nproc_per_node
        return launch(cells, *where, **options)
    places = posts(arguments.device, arguments.jobs)
    if arguments.share_trunk:
        options["share_trunk"] = True
    elif len(places) > 1:
        return Pool(arguments.results, places, options).run(cells)
    device = choose_device(arguments.device)
    return run_cells(cells, arguments.results, device=device, **options)


def _cache(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return where frozen features are kept, and how much of them."""
    if arguments.cache_gb <= 0:
        return {}
    place = os.environ.get("GCDBENCH_CACHE")
    folder = Path(place).expanduser() if place else arguments.results / "cache"
    return {"cache": folder / "tokens", "cache_bytes": int(arguments.cache_gb * 10**9)}


def _publish(arguments: argparse.Namespace, request: Request, cells: Sequence[Cell]) -> None:
    from gcdbench.report import commands as reports

    methods = tuple(dict.fromkeys(cell.spelling.text for cell in cells))
    reports.publish(arguments, dataclasses.replace(request, methods=methods))


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``plan`` beside those of a request."""
    parser.add_argument("--json", action="store_true", help="for programs")


def plan(arguments: argparse.Namespace, request: Request) -> int:
    """Show what would run, what it will cost and what is done."""
    from gcdbench.runner.cost import CostModel, duration

    records.check_folder(arguments.results)
    cells = make_cells(request)
    sound = (r for _, r in records.read_all(arguments.results) if isinstance(r, dict))
    model = CostModel(sound)
    absent = _absent(cells)
    rows = [
        {
            "dataset": cell.dataset,
            "method": cell.spelling.text,
            "seed": cell.seed,
            "key": None if cell.dataset in absent else cell.key,
            "done": cell.dataset not in absent and records.is_done(arguments.results, cell),
            **dataclasses.asdict(model.estimate(cell)),
        }
        for cell in cells
    ]
    for reason in dict.fromkeys(absent.values()):
        log.warning("data not there: %s", reason)
    if arguments.json:
        _say(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        key = row["key"] or "-"
        place = f"{row['dataset']:<20} {row['method']:<24} seed {row['seed']:<4} {key:<16}"
        time_ = "" if row["seconds"] is None else f", about {duration(row['seconds'])}"
        cost = f"to do: {row['images']:,} images{time_} ({row['basis']})"
        _say(f"{place}  {'done' if row['done'] else cost}")
    left = [row for row in rows if not row["done"]]
    total = f"{len(rows)} cells, {len(rows) - len(left)} done"
    known = [row["seconds"] for row in left if row["seconds"] is not None]
    if known:
        some = "" if len(known) == len(left) else f" for {len(known)} of the other {len(left)}"
        total += f"; about {duration(sum(known))} of one process{some}"
    _say(total)
    return 0


def _absent(cells: Sequence[Cell]) -> dict[str, str]:
    """Return the datasets that are not there, with what is missing; their cells have no key."""
    reasons = {}
    for cell in {cell.dataset: cell for cell in cells}.values():
        try:
            cell.problem()
        except UserError as error:
            reasons[cell.dataset] = str(error)
    return reasons


def add_status(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``status`` beside those of a request."""
    add = parser.add_argument
    add(
        "--watch",
        type=_seconds,
        nargs="?",
        const=5.0,
        metavar="SECONDS",
        help="look again and again",
    )
    add("--json", action="store_true", help="for programs")


def status(arguments: argparse.Namespace, request: Request) -> int:
    """Show where each cell stands, and why one failed or is stale."""
    from gcdbench.runner import status as status_

    records.check_folder(arguments.results)
    cells = make_cells(request)
    while True:
        rows = status_.states(cells, arguments.results)
        if arguments.json:
            _say(json.dumps([row.as_dict() for row in rows], indent=1))
        else:
            clear = "\x1b[H\x1b[2J" if arguments.watch and sys.stdout.isatty() else ""
            _say(clear + status_.render(rows))
        if not arguments.watch or status_.settled(rows):
            return 0
        time.sleep(arguments.watch)


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add what can be done with results folders."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    merging = actions.add_parser("merge", help="copy the records of other folders into one")
    merging.add_argument("sources", nargs="+", type=Path, metavar="DIR")
    merging.add_argument("--into", type=Path, default=Path("results/runs"), metavar="DIR")
    verifying = actions.add_parser("verify", help="check every record and its predictions")
    verifying.add_argument("folder", nargs="?", type=Path, default=Path("results/runs"))


def results(arguments: argparse.Namespace) -> int:
    """Merge results folders, or verify one."""
    from gcdbench.runner.merge import merge, sound

    if arguments.action == "verify":
        if not arguments.folder.is_dir():
            raise UserError(f"results verify: no folder {arguments.folder}")
        refused: list[tuple[Path, str]] = []
        count = sum(1 for _ in sound(arguments.folder, refused))
        _say(f"{count} sound records, {len(refused)} that cannot be trusted")
    else:
        merged = merge(arguments.sources, arguments.into)
        refused = merged.refused
        for folder in merged.beside:
            log.warning("%s: two records with one key and other numbers; both are kept", folder)
        counts = len(merged.copied), len(merged.same), len(merged.beside), len(refused)
        _say("{} copied, {} there already, {} kept beside another, {} refused".format(*counts))
    for path, reason in refused:
        log.error("%s %s", path, reason)
    return 1 if refused else 0


def _positive(text: str) -> int:
    return _count(text, least=1)


def _count(text: str, least: int = 0) -> int:
    try:
        number = int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from error
    if number < least:
        raise argparse.ArgumentTypeError(f"expected at least {least}, got {number}")
    return number


def _amount(text: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from error
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a finite number of at least 0, got {text}")
    return number


def _seconds(text: str) -> float:
    number = _amount(text)
    if number == 0:
        raise argparse.ArgumentTypeError("expected a number above 0, got 0")
    return number


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
