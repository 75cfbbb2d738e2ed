"""Run cells one after the other in this process, skipping those that are recorded."""

from __future__ import annotations

import logging
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from gcdbench.experiment import heartbeat, records
from gcdbench.experiment.outcome import Attempt, Outcome
from gcdbench.experiment.plan import Cell
from gcdbench.experiment.record import Record
from gcdbench.runner.cell import CellRun, RunContext
from gcdbench.runner.contained import Contained, PluginExit
from gcdbench.runner.devices import choose_device
from gcdbench.runner.launchers.grid import Grid
from gcdbench.runner.options import RunOptions
from gcdbench.runner.stop import Stop
from gcdbench.runner.watchdog import Watchdog

WAIT_SECONDS = 2.0  # before retrying cells that another run holds
log = logging.getLogger(__name__)


class LocalLauncher:
    """Runs all cells in this process; a cell that fails does not stop the others."""

    def __init__(self, stop: Stop | None = None) -> None:
        self.stop = stop or Stop()

    def run(self, cells: Sequence[Cell], options: RunOptions) -> Outcome:
        """Run the cells that have no record."""
        records.check_writable(options.results)
        context = RunContext(options, choose_device(options.device), stop=self.stop)
        with self.stop:
            return run_queue(cells, SequentialRunner(context))


class SequentialRunner:
    """Runs one cell after the other; keeps the features of the last cell's dataset in memory."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self._dataset = ""

    def __call__(self, cell: Cell) -> Attempt:
        """Run a cell and return the result."""
        self.context.stop.check()
        if cell.dataset != self._dataset:
            self.context.store.retire()
            self._dataset = cell.dataset
        return attempt(cell, self.context)


def run_queue(cells: Sequence[Cell], run: Callable[[Cell], Attempt]) -> Outcome:
    """Run all cells; those that another run holds are retried when the others are done."""
    queue, held, said = deque(cells), 0, False
    with Grid(len(cells)) as grid:
        while queue:
            cell = queue.popleft()
            result = run(cell)
            if result.kind == "busy":
                queue.append(cell)
                held += 1
                if held == len(queue):
                    if not said:
                        log.info("waiting for %d cells that another run is training", len(queue))
                    held, said = 0, True
                    time.sleep(WAIT_SECONDS)
                continue
            held = 0
            grid.add(cell, result)
    return grid.outcome


def attempt(cell: Cell, context: RunContext) -> Attempt:
    """Run one cell under its lock, unless it is done; a failure is written to its folder."""
    folder = records.cell_folder(context.results, cell)
    if records.is_done(context.results, cell, since=context.options.since):
        return Attempt("skipped")
    try:
        with heartbeat.locked(folder):
            # another run may have finished it between the two lines above
            if records.is_done(context.results, cell, since=context.options.since):
                return Attempt("skipped")
            return run_locked(cell, context, folder)
    except heartbeat.Busy:
        return Attempt("busy")
    except OSError as error:  # of this folder: other cells may be fine
        return no_folder(folder, error)


def no_folder(folder: Path, error: OSError) -> Attempt:
    """Return the failure of a cell whose folder cannot be created, locked or cleaned up."""
    reason = error.strerror or str(error)
    message = f"{folder} cannot be used ({reason}); remove what is in its way and run again"
    heartbeat.note_failure(folder, message)
    return Attempt("failed", message)


def run_locked(
    cell: Cell,
    context: RunContext,
    folder: Path,
    survives: tuple[type[Exception], ...] = (Exception,),
) -> Attempt:
    """Run a cell whose lock is held; errors that end the whole run are raised as well."""
    began = time.time()
    records.clean_up(folder)
    before = records.read_done(context.results, cell)
    log.info("%s", cell.label)
    try:
        with (
            heartbeat.Heartbeat(folder, key=cell.key) as beat,
            Contained(context.stop),
            Watchdog(beat, context.options, context.stop),
        ):
            record = CellRun(cell, context, beat).execute()
    except Exception as error:  # what a plug-in raises to end the process is one as well
        message = explain(error)
        heartbeat.note_failure(folder, message, traceback.format_exc(), since=began)
        if not isinstance(error, survives):
            raise
        return Attempt("failed", message)
    heartbeat.forget_failure(folder)
    return Attempt("trained", _summary(record, before, context, cell))


def explain(error: Exception) -> str:
    """Return an error of a cell as a sentence, with a remedy if memory ran out."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, torch.OutOfMemoryError):
        return (
            f"the device is out of memory ({str(error).splitlines()[0]}); lower train.batch_size, "
            "or give one cell several devices (--nproc-per-node)"
        )
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return f"the machine is out of memory ({text}); lower --jobs, --workers or train.view_bank"
    if isinstance(error, TimeoutError) and error.strerror is None:
        return f"{error}; run again to resume, or raise the limit"
    if isinstance(error, PluginExit):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{text}; what was saved before is kept: run again to resume"
    return text


def _summary(
    record: Record, before: Record | records.Damaged | None, context: RunContext, cell: Cell
) -> str:
    scores = ", ".join(
        f"{name} {100 * s.all:.1f}"
        for name, s in record.sets.items()
        if s.role != "unseen" and "/" not in name
    )
    text = f"{scores} ({record.timing.wall_seconds:.0f} s)"
    if isinstance(before, Record):
        now = records.read_done(context.results, cell)
        same = isinstance(now, Record) and records.same_numbers(before, now)
        text += ", the same numbers as before" if same else ", NOT the numbers of the record before"
    return text
