"""Run several cells at a time: one process per GPU, or per job with the cores divided.

The parent sends one cell at a time, if possible to a process that already has the features of its
dataset. If a process dies, its cell is recorded as failed and another process is started.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import IO

import torch

from gcdbench.core import registry
from gcdbench.experiment import heartbeat, records
from gcdbench.experiment.outcome import CHANGED, Attempt, Outcome
from gcdbench.experiment.plan import Cell
from gcdbench.runner.cell import RunContext
from gcdbench.runner.devices import choose_device
from gcdbench.runner.launchers import child
from gcdbench.runner.launchers.grid import Grid
from gcdbench.runner.launchers.local import WAIT_SECONDS, SequentialRunner, no_folder
from gcdbench.runner.options import (
    RunOptions,
    WorkerSlot,
    plugin_files,
    threads_of_children,
    worker_slots,
)
from gcdbench.runner.stop import INTERRUPTED, Interrupted, Stop
from gcdbench.runner.watchdog import overdue_in

OUTPUT = "output.log"  # output of a process while it ran the cell

POLL_SECONDS = 0.5
log = logging.getLogger(__name__)


@dataclass
class Worker:
    """A process, and the cell that it runs."""

    slot: WorkerSlot
    process: SpawnProcess
    connection: Connection
    cell: Cell | None = None
    dataset: str = ""  # whose features it has
    began: float = 0.0  # when it was given the cell


class PoolLauncher:
    """Runs several cells at a time, each in a process of its own."""

    def run(self, cells: Sequence[Cell], options: RunOptions) -> Outcome:
        """Run the cells that have no record."""
        return Pool(options, worker_slots(options.device, options.jobs)).run(cells)


@dataclass
class Pool:
    """Distributes cells to processes and collects the results."""

    options: RunOptions
    slots: list[WorkerSlot]
    stop: Stop = field(default_factory=Stop)

    def run(self, cells: Sequence[Cell]) -> Outcome:
        """Run all cells; after a stop, raise Interrupted when all processes have saved theirs."""
        self.grid = Grid(len(cells))
        self.waiting: list[tuple[float, Cell]] = [(0.0, cell) for cell in self._unrecorded(cells)]
        self.workers: list[Worker] = []
        try:
            with self.stop, self.grid:
                while self.waiting or self._busy():
                    self._assign()
                    self._collect()
                    self._end_overdue()
                    if self.stop.asked:
                        self._stop_workers()
        finally:
            self._shut_down()
        return self.grid.outcome

    def _unrecorded(self, cells: Sequence[Cell]) -> Iterator[Cell]:
        """Yield the cells that have no record."""
        for cell in cells:
            if records.is_done(self.options.results, cell, since=self.options.since):
                self.grid.add(cell, Attempt("skipped"))
            else:
                yield cell

    def _busy(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.cell is not None]

    def _assign(self) -> None:
        idle = [worker for worker in self.workers if worker.cell is None]
        while cell := self._next(idle[0].dataset if idle else ""):
            if idle:
                worker = idle.pop(0)
            elif len(self.workers) < len(self.slots):
                worker = self._start()
            else:
                return
            self.waiting = [entry for entry in self.waiting if entry[1] is not cell]
            worker.cell, worker.dataset, worker.began = cell, cell.dataset, time.time()
            log.info("%s, on %s", cell.label, worker.slot.device)
            with contextlib.suppress(BrokenPipeError):  # it has died: _collect will see that
                worker.connection.send((cell, cell.key))

    def _next(self, dataset: str) -> Cell | None:
        """Return a cell: of this dataset, else of one that no process works on, else any."""
        now = time.monotonic()
        ready = [cell for moment, cell in self.waiting if moment <= now]
        taken = {worker.dataset for worker in self._busy()}
        for fits in (lambda c: c.dataset == dataset, lambda c: c.dataset not in taken, bool):
            for cell in ready:
                if fits(cell):
                    return cell
        return None

    def _collect(self) -> None:
        """Collect the results of processes that have one, and those that have died."""
        busy = self._busy()
        if not busy:
            time.sleep(min(POLL_SECONDS, WAIT_SECONDS))  # another run holds all other cells
        for connection in wait([w.connection for w in busy], timeout=POLL_SECONDS) if busy else ():
            worker = next(w for w in busy if w.connection is connection)
            cell, worker.cell = worker.cell, None
            assert cell is not None
            try:
                result = worker.connection.recv()
            except (EOFError, ConnectionResetError):
                result = self._reap(worker, cell)
            if result is None:
                continue
            if result.kind == "busy":
                self.waiting.append((time.monotonic() + WAIT_SECONDS, cell))
            else:
                self.grid.add(cell, result)

    def _reap(self, worker: Worker, cell: Cell) -> Attempt | None:
        """Record the failure of a dead process's cell, unless the process was asked to stop."""
        worker.process.join()
        self.workers.remove(worker)
        if self.stop.asked:
            return None
        folder = records.cell_folder(self.options.results, cell)
        message = f"{cause_of_death(worker.process.exitcode)} (see {folder / OUTPUT})"
        heartbeat.note_failure(folder, message, since=worker.began)
        noted = heartbeat.read(folder, heartbeat.FAILURE)  # the process may have said more itself
        return Attempt("failed", message if noted is None else noted["message"])

    def _end_overdue(self) -> None:
        """Kill processes that hang so that their own watchdog cannot end them."""
        for worker in self._busy():
            assert worker.cell is not None
            folder = records.cell_folder(self.options.results, worker.cell)
            if reason := overdue_in(folder, worker.began, self.options):
                heartbeat.note_failure(folder, reason, since=worker.began)
                worker.process.kill()

    def _start(self) -> Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        taken = [worker.slot for worker in self.workers]
        slot = next(slot for slot in self.slots if slot not in taken)
        serving = (os.getpid(), f"{__name__}:{_serve.__name__}")
        arguments = (*serving, there, slot, replace(self.options, plugins=plugin_files()))
        name = f"gcdbench {slot.device}"
        process = context.Process(target=child.serve, args=arguments, name=name)
        with threads_of_children(slot.threads), block_sigint():
            process.start()
        there.close()
        worker = Worker(slot, process, here)
        self.workers.append(worker)
        return worker

    def _stop_workers(self) -> None:
        """Make every process save its cell and end, then raise Interrupted."""
        for worker in self.workers:
            with contextlib.suppress(OSError):
                worker.connection.send(None)  # for those that wait
            worker.process.terminate()  # those that train save a checkpoint and stop
        for worker in self.workers:
            worker.process.join()
        raise Interrupted

    def _shut_down(self) -> None:
        for worker in self.workers:
            with contextlib.suppress(OSError):
                worker.connection.send(None)
            if worker.cell is not None:
                worker.process.kill()
            worker.process.join()
            worker.connection.close()


def cause_of_death(exitcode: int | None) -> str:
    """Return how a process ended, and a remedy if one is known.

    >>> cause_of_death(3)
    'its process ended with code 3'
    """
    if exitcode is None or exitcode >= 0:
        return f"its process ended with code {exitcode}"
    name = signal.Signals(-exitcode).name
    hint = ": the machine is probably out of memory, try fewer --jobs" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{hint}"


@contextlib.contextmanager
def block_sigint() -> Iterator[None]:
    """Block SIGINT (Ctrl-C) in processes started in the context: their parent stops them."""
    resource_tracker.ensure_running()  # starting it later would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:  # a signal that arrived meanwhile is delivered now
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(parent: int, connection: Connection, slot: WorkerSlot, options: RunOptions) -> None:
    """Run the cells that the parent sends, until it sends None or is gone."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    stop = Stop(parent=parent)
    with stop:
        for path in options.plugins:
            registry.add_plugin(path)
        torch.set_num_threads(slot.threads)
        runner = SequentialRunner(RunContext(options, choose_device(slot.device), stop=stop))
        with contextlib.suppress(EOFError, Interrupted, BrokenPipeError):
            while (message := connection.recv()) is not None:
                connection.send(attempt_with_output(runner, options.results, *message))
    if stop.asked:  # all is saved; leaving torch in order takes its time, which nobody waits for
        os._exit(INTERRUPTED)


def attempt_with_output(
    run: Callable[[Cell], Attempt], results: Path, cell: Cell, key: str
) -> Attempt:
    """Run a cell whose key this process agrees with; its output goes to a file of its folder."""
    if cell.key != key:  # numbers of two versions must never be mixed
        return Attempt("failed", CHANGED)
    folder = records.cell_folder(results, cell)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        output = (folder / OUTPUT).open("a", encoding="utf-8")
    except OSError as error:
        return no_folder(folder, error)
    with _output_to(output):
        return run(cell)


@contextlib.contextmanager
def _output_to(file: IO[str]) -> Iterator[None]:
    """Redirect all output of the process, also of a crash, to a file."""
    before = os.dup(2)
    with file:
        os.dup2(file.fileno(), 2)
    faulthandler.enable(file=2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)
