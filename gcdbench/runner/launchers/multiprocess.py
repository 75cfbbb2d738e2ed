"""Run every cell on several processes: started by this module, or by torchrun.

An error that occurs in all processes fails the cell only. An error in a single process (out of
memory, killed) ends all of them, because the others would wait for it forever.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

import torch

from gcdbench.core import registry
from gcdbench.errors import UserError
from gcdbench.experiment import heartbeat, records
from gcdbench.experiment.outcome import CHANGED, Attempt, Outcome
from gcdbench.experiment.plan import Cell
from gcdbench.runner.cell import CellRun, RunContext
from gcdbench.runner.contained import Contained
from gcdbench.runner.devices import check_devices, device_of_rank
from gcdbench.runner.launchers import child
from gcdbench.runner.launchers.local import explain, no_folder, run_locked, run_queue
from gcdbench.runner.launchers.pool import POLL_SECONDS, block_sigint, cause_of_death
from gcdbench.runner.options import (
    RunOptions,
    WorkerSlot,
    plugin_files,
    threads_of_children,
    worker_slots,
)
from gcdbench.runner.process_group import TorchProcessGroup, is_torchrun_worker
from gcdbench.runner.stop import INTERRUPTED, Interrupted, Stop
from gcdbench.runner.watchdog import overdue_in
from gcdbench.training.trainer import Diverged

COMMON_ERRORS = (Diverged, UserError)  # occur in every process at the same step
GRACE_SECONDS = 10.0  # for the others to notice that one has died
log = logging.getLogger(__name__)


class MultiProcessLauncher:
    """Runs one cell after the other, each on several processes of this machine or of torchrun."""

    def __init__(self, stop: Stop | None = None) -> None:
        self.stop = stop

    def run(self, cells: Sequence[Cell], options: RunOptions) -> Outcome:
        """Run the cells that have no record."""
        if is_torchrun_worker():
            return _run_as_torchrun_worker(cells, options)
        with self.stop or Stop() as stop:
            return run_queue(cells, MultiProcessRunner(options, stop))


class GroupMember:
    """Runs cells as one process of a group."""

    def __init__(self, context: RunContext, group: TorchProcessGroup) -> None:
        self.context, self.group = context, group

    def __call__(self, cell: Cell) -> Attempt:
        """Run a cell if the main process, which holds its lock, decides to."""
        self.group.check_same(cell.key, "cell (code, data or weights differ)")
        if self.group.broadcast_object(self.context.stop.asked):
            raise Interrupted
        with contextlib.ExitStack() as stack:
            verdict = self._judge(stack, cell) if self.group.is_main else None
            verdict = self.group.broadcast_object(verdict)
            if verdict is not None:
                return verdict
            folder = records.cell_folder(self.context.results, cell)
            if self.group.is_main:
                return run_locked(cell, self.context, folder, survives=COMMON_ERRORS)
            return self._assist(cell, folder)

    def _judge(self, stack: contextlib.ExitStack, cell: Cell) -> Attempt | None:
        """Lock a cell and return None if it is to be trained."""
        context = self.context
        folder = records.cell_folder(context.results, cell)
        try:
            stack.enter_context(heartbeat.locked(folder))
        except heartbeat.Busy:
            return Attempt("busy")
        except OSError as error:
            return no_folder(folder, error)
        done = records.is_done(context.results, cell, since=context.options.since)
        return Attempt("skipped") if done else None

    def _assist(self, cell: Cell, folder: Path) -> Attempt:
        """Train a cell with the main process, which writes the record."""
        began = time.time()
        try:
            with Contained(self.context.stop):
                CellRun(cell, self.context, heartbeat.NullHeartbeat(folder)).execute()
        except COMMON_ERRORS as error:  # what a plug-in raises to end the process is none of them
            return Attempt("failed", explain(error))
        except Exception as error:
            message = f"process {self.group.rank} of {self.group.size}: {explain(error)}"
            heartbeat.note_failure(folder, message, traceback.format_exc(), since=began)
            raise
        return Attempt("trained")


def _run_as_torchrun_worker(cells: Sequence[Cell], options: RunOptions) -> Outcome:
    """Run cells as one of the processes that torchrun has started."""
    device, stop = device_of_rank(options.device, _local_rank()), Stop(patient=True)
    group = TorchProcessGroup(device)
    if not group.is_main:
        logging.getLogger().setLevel(logging.WARNING)
    member = GroupMember(RunContext(options, device, stop=stop, group=group), group)
    try:
        with stop:
            return run_queue(cells, member)
    finally:
        group.close()


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


class MultiProcessRunner:
    """Starts the processes of one cell after the other and ensures that all of them end."""

    def __init__(self, options: RunOptions, stop: Stop) -> None:
        check_devices(options.device, options.processes)
        self.options, self.stop = replace(options, plugins=plugin_files()), stop
        self.slots = worker_slots(options.device, options.processes)

    def __call__(self, cell: Cell) -> Attempt:
        """Run a cell, unless it is done; a process that dies fails it."""
        self.stop.check()
        if records.is_done(self.options.results, cell, since=self.options.since):
            return Attempt("skipped")
        began = time.time()
        answer, codes = self._run(cell)
        if self.stop.asked or INTERRUPTED in codes:
            raise Interrupted
        if answer is not None:
            return answer
        return self._failed(records.cell_folder(self.options.results, cell), codes, began)

    def _run(self, cell: Cell) -> tuple[Attempt | None, list[int]]:
        """Return the main process's result and the exit codes of all processes."""
        here, there = multiprocessing.Pipe(duplex=False)
        processes: list[SpawnProcess] = []
        with here, tempfile.TemporaryDirectory(prefix="gcdbench-") as folder:
            try:
                with there:
                    for slot in self.slots:
                        url = f"file://{folder}/rendezvous"
                        processes.append(self._start(slot, url, there, cell))
                codes = self._watch(processes, records.cell_folder(self.options.results, cell))
            finally:
                for process in processes:
                    process.kill()
                    process.join()
            with contextlib.suppress(EOFError):
                return here.recv(), codes
            return None, codes

    def _start(self, slot: WorkerSlot, url: str, there: Connection, cell: Cell) -> SpawnProcess:
        worker = Worker(slot, len(self.slots), url, cell, cell.key)
        serving = (os.getpid(), f"{__name__}:{_serve.__name__}")
        arguments = (*serving, worker, there, self.options)
        process = multiprocessing.get_context("spawn").Process(target=child.serve, args=arguments)
        with threads_of_children(slot.threads), block_sigint():
            process.start()
        return process

    def _watch(self, processes: list[SpawnProcess], folder: Path) -> list[int]:
        """Wait for the end of all processes; those that outlive a dead one are ended as well."""
        terminated, deadline, codes, began = False, float("inf"), [0] * len(processes), time.time()
        while living := [process for process in processes if process.is_alive()]:
            wait([process.sentinel for process in living], timeout=POLL_SECONDS)
            codes = [process.exitcode or 0 for process in processes]
            if any(codes):
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            if time.monotonic() > deadline:
                break
            if reason := overdue_in(folder, began, self.options):
                heartbeat.note_failure(folder, reason, since=began)
                break
            if self.stop.asked and not terminated:
                terminated = True
                for process in living:
                    process.terminate()
        return codes

    def _failed(self, folder: Path, codes: list[int], began: float) -> Attempt:
        """Record why the processes ended: the signal that killed one, or a reported error."""
        rank = codes.index(min(codes) or max(codes))
        death = f"process {rank} of {len(codes)}: {cause_of_death(codes[rank])}"
        heartbeat.note_failure(folder, death, since=0.0 if codes[rank] < 0 else began)
        noted = heartbeat.read(folder, heartbeat.FAILURE)
        return Attempt("failed", death if noted is None else noted["message"])


@dataclass(frozen=True)
class Worker:
    """What a process needs to join its group."""

    slot: WorkerSlot
    size: int  # of the group
    url: str  # for the rendezvous of the processes
    cell: Cell
    key: str

    def join(self, options: RunOptions) -> TorchProcessGroup:
        """Join the group, as if torchrun had started this process."""
        level = logging.INFO if self.slot.number == 0 else logging.WARNING
        logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr, force=True)
        rank = str(self.slot.number)
        os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=str(self.size))
        torch.set_num_threads(self.slot.threads)
        for path in options.plugins:
            registry.add_plugin(path)
        return TorchProcessGroup(device_of_rank(options.device, self.slot.number), self.url)


def _serve(parent: int, worker: Worker, answers: Connection, options: RunOptions) -> None:
    """Run a cell as one of several processes; the main one sends the result to the parent."""
    with Stop(parent=parent) as stop:  # also while it waits for the others
        _serve_group(worker, answers, options, stop)


def _serve_group(worker: Worker, answers: Connection, options: RunOptions, stop: Stop) -> None:
    group = worker.join(options)
    try:
        # a killed process leaves nothing there: the launcher deletes the folder
        scratch = Path(worker.url.removeprefix("file://")).parent
        context = RunContext(options, group.device, stop=stop, group=group, scratch=scratch)
        member = GroupMember(context, group)
        same = worker.cell.key == worker.key
        answer = member(worker.cell) if same else Attempt("failed", CHANGED)
        if group.is_main:
            answers.send(answer)
    except Interrupted:
        sys.exit(INTERRUPTED)
    except Exception as error:  # its traceback is in the cell's folder
        log.warning("process %d of %d: %s", group.rank, group.size, explain(error))
        sys.exit(1)
    finally:
        group.close()
