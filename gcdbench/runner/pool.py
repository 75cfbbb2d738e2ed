"""Runs several cells at a time: one process per GPU, or per job with the cores divided.

The parent hands out one cell at a time, to a process that has its dataset's features if there is
one. A process that dies takes its cell along, not the others: it is noted as failed, and another
process takes the dead one's place.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import IO, Any

import torch

from gcdbench import records, registry
from gcdbench.errors import UserError
from gcdbench.plan import Cell
from gcdbench.runner import journal
from gcdbench.runner.cell import Setting
from gcdbench.runner.local import (
    WAIT_SECONDS,
    Attempt,
    Outcome,
    Solo,
    choose_device,
    no_folder,
    note,
)
from gcdbench.runner.stop import Interrupted, Stop

OUTPUT = "output.log"  # what a process said while it had the cell
CHANGED = "code or data have changed since the run was started: start again"
POLL_SECONDS = 0.5
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Post:
    """A place for a process: its device and how many threads it may use there."""

    number: int
    device: str
    threads: int


def posts(device: str, jobs: int | None) -> list[Post]:
    """Return one place per job: all GPUs in turn if the device is ``auto``, else the device."""
    gpus = torch.cuda.device_count() if device == "auto" else 0
    names = [f"cuda:{number}" for number in range(gpus)] or [str(choose_device(device))]
    count = jobs or len(names)
    threads = _wanted_threads() or max(_cores() // count, 1)
    return [Post(number, names[number % len(names)], threads) for number in range(count)]


def _wanted_threads() -> int | None:
    """Return the number of threads that the environment asks for, if it does."""
    given = os.environ.get("OMP_NUM_THREADS")
    if not given:
        return None
    if not given.strip().isdecimal() or int(given) < 1:
        raise UserError(f"OMP_NUM_THREADS={given}: expected one whole number of threads")
    return int(given)


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass
class Worker:
    """A process, and the cell it has."""

    post: Post
    process: SpawnProcess
    connection: Connection
    cell: Cell | None = None
    dataset: str = ""  # whose features it has


@dataclass
class Pool:
    """Hands cells out to processes and collects what became of them."""

    results: Path
    posts: list[Post]
    options: dict[str, Any] = field(default_factory=dict)  # of Setting, as far as they can travel
    stop: Stop = field(default_factory=Stop)

    def run(self, cells: Sequence[Cell]) -> Outcome:
        """Run all cells; raise Interrupted after a stop, when all processes have saved theirs."""
        self.outcome, self.total = Outcome(), len(cells)
        self.waiting: list[tuple[float, Cell]] = [(0.0, cell) for cell in self._skim(cells)]
        self.workers: list[Worker] = []
        try:
            with self.stop:
                while self.waiting or self._busy():
                    self._hand_out()
                    self._collect()
                    if self.stop.asked:
                        self._wind_up()
        finally:
            self._dismiss()
        return self.outcome

    def _skim(self, cells: Sequence[Cell]) -> Iterator[Cell]:
        """Yield the cells that have no record."""
        for cell in cells:
            if records.is_done(self.results, cell, since=self.options.get("since", 0.0)):
                self.outcome.skipped.append(cell)
            else:
                yield cell

    def _busy(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.cell is not None]

    def _hand_out(self) -> None:
        idle = [worker for worker in self.workers if worker.cell is None]
        while cell := self._next(idle[0].dataset if idle else ""):
            if idle:
                worker = idle.pop(0)
            elif len(self.workers) < len(self.posts):
                worker = self._start()
            else:
                return
            self.waiting = [entry for entry in self.waiting if entry[1] is not cell]
            worker.cell, worker.dataset = cell, cell.dataset
            log.info("%s, on %s", cell.label, worker.post.device)
            with contextlib.suppress(BrokenPipeError):  # it has died: _collect will see that
                worker.connection.send((cell, cell.key))

    def _next(self, dataset: str) -> Cell | None:
        """Choose a cell: of this dataset, else of one that nobody works on, else any."""
        now = time.monotonic()
        ready = [cell for moment, cell in self.waiting if moment <= now]
        taken = {worker.dataset for worker in self._busy()}
        for fits in (lambda c: c.dataset == dataset, lambda c: c.dataset not in taken, bool):
            for cell in ready:
                if fits(cell):
                    return cell
        return None

    def _collect(self) -> None:
        """Hear from the processes that have something to say, or have died."""
        busy = self._busy()
        if not busy:
            time.sleep(min(POLL_SECONDS, WAIT_SECONDS))  # all that is left is with another run
        for connection in wait([w.connection for w in busy], timeout=POLL_SECONDS) if busy else ():
            worker = next(w for w in busy if w.connection is connection)
            cell, worker.cell = worker.cell, None
            assert cell is not None
            try:
                result = worker.connection.recv()
            except (EOFError, ConnectionResetError):
                result = self._bury(worker, cell)
            if result is None:
                continue
            if result.kind == "busy":
                self.waiting.append((time.monotonic() + WAIT_SECONDS, cell))
            else:
                note(self.outcome, cell, result, self.total)

    def _bury(self, worker: Worker, cell: Cell) -> Attempt | None:
        """Note the failure of a dead process's cell, unless it was asked to stop."""
        worker.process.join()
        self.workers.remove(worker)
        if self.stop.asked:
            return None
        folder = records.cell_folder(self.results, cell)
        message = f"{cause_of_death(worker.process.exitcode)} (see {folder / OUTPUT})"
        journal.note_failure(folder, message)
        return Attempt("failed", message)

    def _start(self) -> Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        taken = [worker.post for worker in self.workers]
        post = next(post for post in self.posts if post not in taken)
        arguments = (there, self.results, post, self.options, plugins())
        process = context.Process(target=_serve, args=arguments, name=f"gcdbench {post.device}")
        with threads(post.threads), deaf():
            process.start()
        there.close()
        worker = Worker(post, process, here)
        self.workers.append(worker)
        return worker

    def _wind_up(self) -> None:
        """Let every process save its cell and end, then say that the run was interrupted."""
        for worker in self.workers:
            with contextlib.suppress(OSError):
                worker.connection.send(None)  # for those that wait
            worker.process.terminate()  # which those that train take as a wish to stop
        for worker in self.workers:
            worker.process.join()
        raise Interrupted

    def _dismiss(self) -> None:
        for worker in self.workers:
            with contextlib.suppress(OSError):
                worker.connection.send(None)
            if worker.cell is not None:
                worker.process.kill()
            worker.process.join()
            worker.connection.close()


def cause_of_death(exitcode: int | None) -> str:
    """Say how a process ended, and what may help.

    >>> cause_of_death(3)
    'its process ended with code 3'
    """
    if exitcode is None or exitcode >= 0:
        return f"its process ended with code {exitcode}"
    name = signal.Signals(-exitcode).name
    hint = ": the machine is probably out of memory, try fewer --jobs" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{hint}"


def plugins() -> list[Path]:
    """Return the files that were added by --plugin: a new process does not know them."""
    found = (face for kind in registry.KINDS for face in registry.faces(kind).values())
    return [face.path for face in found if face.module.startswith("gcdbench_plugin_")]


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """Let a process that is started in the context use a number of threads."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(number)
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """Let a process that is started in the context never hear Ctrl-C: its parent tells it."""
    resource_tracker.ensure_running()  # what starts it lets Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:  # one that has come meanwhile is heard now
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(
    connection: Connection, results: Path, post: Post, options: dict[str, Any], plugins: list[Path]
) -> None:
    """Run the cells that the parent sends, until it sends None or is gone."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    stop = Stop(parent=os.getppid())
    with stop:
        for path in plugins:
            registry.add_plugin(path)
        torch.set_num_threads(post.threads)
        solo = Solo(Setting(results, choose_device(post.device), stop=stop, **options))
        with contextlib.suppress(EOFError, Interrupted, BrokenPipeError):
            while (message := connection.recv()) is not None:
                connection.send(_attempt(solo, results, *message))


def _attempt(solo: Solo, results: Path, cell: Cell, key: str) -> Attempt:
    if cell.key != key:  # numbers of two versions must never be mixed
        return Attempt("failed", CHANGED)
    folder = records.cell_folder(results, cell)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        output = (folder / OUTPUT).open("a", encoding="utf-8")
    except OSError as error:
        return no_folder(folder, error)
    with _output_to(output):
        return solo(cell)


@contextlib.contextmanager
def _output_to(file: IO[str]) -> Iterator[None]:
    """Send all that the process says, also when it crashes, to a file."""
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
