"""Runs cells as tasks of Ray, on this machine or on a Ray cluster. Ray is imported when it is used.

A task is one cell. Ray starts it again, on another node if need be, when its process dies; it then
resumes from the checkpoint in the cell's folder if the results folder is shared by all nodes. Where
it is not, the cell's files are fetched back when it is done. Without RAY_ADDRESS the run starts a
Ray of its own, which other machines cannot reach.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gcdbench.core import registry
from gcdbench.core.files import write_atomically
from gcdbench.errors import UserError
from gcdbench.experiment import heartbeat, records
from gcdbench.experiment.outcome import Attempt, Outcome
from gcdbench.experiment.plan import Cell
from gcdbench.runner.launchers.grid import Grid
from gcdbench.runner.options import RunOptions, plugin_files, worker_slots
from gcdbench.runner.stop import Interrupted, Stop

RETRIES = 3  # of a task whose process or node has died
POLL_SECONDS = 0.5
LOOPBACK = "127.0.0.1"
FETCHED = (records.PREDICTIONS, heartbeat.LOG, records.WEIGHTS, records.RECORD)  # the record last
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """What a task returns: what became of its cell, and its files where they are not shared."""

    attempt: Attempt
    files: dict[str, bytes]


@dataclass(frozen=True)
class Task:
    """What runs on a node: one cell."""

    cell: Cell
    key: str
    options: RunOptions
    threads: int
    token: str  # a file in the results folder: seen by nodes that share it

    def __call__(self) -> Answer:
        """Run the cell in the results folder, or in one of this node's own."""
        if (self.options.results / self.token).exists():
            return Answer(self._run(self.options), {})
        with tempfile.TemporaryDirectory(prefix="gcdbench-") as place:
            options = replace(self.options, results=Path(place), cache=None)
            attempt = self._run(options)
            folder = records.cell_folder(options.results, self.cell)
            files = {n: (folder / n).read_bytes() for n in FETCHED if (folder / n).is_file()}
            return Answer(attempt, files)

    def _run(self, options: RunOptions) -> Attempt:
        import torch

        from gcdbench.runner.cell import RunContext
        from gcdbench.runner.devices import choose_device
        from gcdbench.runner.launchers.local import SequentialRunner
        from gcdbench.runner.launchers.pool import attempt_with_output

        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
        for path in options.plugins:
            registry.add_plugin(path)
        torch.set_num_threads(self.threads)
        with Stop(patient=True) as stop:
            runner = SequentialRunner(RunContext(options, choose_device(options.device), stop=stop))
            return attempt_with_output(runner, options.results, self.cell, self.key)


class RayLauncher:
    """Runs all cells as tasks of Ray, as many at a time as Ray has room for."""

    def __init__(self, stop: Stop | None = None) -> None:
        self.stop = stop or Stop()

    def run(self, cells: Sequence[Cell], options: RunOptions) -> Outcome:
        """Run the cells that have no record."""
        if options.processes > 1:
            raise UserError("--nproc-per-node: not with --launcher ray, which runs a cell by one")
        results = options.results.resolve()
        options = replace(options, results=results, plugins=plugin_files())
        grid = Grid(len(cells))
        for cell in cells:
            if records.is_done(results, cell, since=options.since):
                grid.add(cell, Attempt("skipped"))
        left = [cell for cell in cells if cell not in grid.outcome.skipped]
        if left:
            with connected(options) as ray, self.stop, _token(results) as token, grid:
                Tasks(ray, options, token, self.stop, grid).run(left)
        return grid.outcome


class Tasks:
    """Submits one task per cell and collects what became of them."""

    def __init__(
        self,
        ray: Any,
        options: RunOptions,
        token: str,
        stop: Stop,
        grid: Grid,
    ) -> None:
        self.ray, self.options, self.token, self.stop = ray, options, token, stop
        self.grid = grid
        gpus = options.device != "cpu" and ray.cluster_resources().get("GPU", 0) >= 1
        self.remote = ray.remote(_call).options(
            num_cpus=1, num_gpus=int(gpus), max_retries=RETRIES, retry_exceptions=False
        )
        self.threads = worker_slots("cpu" if gpus else options.device, options.jobs)[0].threads
        self.running: dict[Any, Cell] = {}

    def run(self, cells: Sequence[Cell]) -> None:
        """Run all cells; raise Interrupted after a stop, when all tasks have saved theirs."""
        for cell in cells:
            self._submit(cell)
        while self.running:
            done, _ = self.ray.wait(list(self.running), timeout=POLL_SECONDS)
            for reference in done:
                self._collect(reference, self.running.pop(reference))
            if self.stop.asked:
                self._cancel()

    def _submit(self, cell: Cell) -> None:
        task = Task(cell, cell.key, self.options, self.threads, self.token)
        self.running[self.remote.remote(task)] = cell

    def _collect(self, reference: Any, cell: Cell) -> None:
        from gcdbench.runner.launchers.local import WAIT_SECONDS

        folder = records.cell_folder(self.options.results, cell)
        try:
            answer: Answer = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:  # died more often than it is retried
            reason = str(error).strip().splitlines()[0]
            message = f"its task was lost {RETRIES + 1} times ({reason}); run again to resume"
            heartbeat.note_failure(folder, message)
            answer = Answer(Attempt("failed", message), {})
        if answer.attempt.kind == "busy":
            time.sleep(WAIT_SECONDS)
            self._submit(cell)
            return
        _keep(folder, answer)
        self.grid.add(cell, answer.attempt)

    def _cancel(self) -> None:
        """Let every task save its cell and end, then raise Interrupted."""
        for reference in self.running:
            self.ray.cancel(reference, force=False)
        self.ray.wait(list(self.running), num_returns=len(self.running))
        raise Interrupted


def _call(task: Task) -> Answer:
    return task()


def _keep(folder: Path, answer: Answer) -> None:
    """Write the files of a cell that was run elsewhere, or the note of its failure."""
    with heartbeat.locked(folder):
        if records.RECORD in answer.files and (folder / records.RECORD).exists():
            records.set_aside(folder)
        for name in FETCHED:
            if name in answer.files:
                write_atomically(folder / name, answer.files[name])
    if answer.attempt.kind == "failed" and not (folder / heartbeat.FAILURE).exists():
        heartbeat.note_failure(folder, answer.attempt.message)


@contextmanager
def _token(results: Path) -> Iterator[str]:
    """Leave a file in the results folder by which nodes know that they share it."""
    name = f".ray-{uuid.uuid4().hex}"
    write_atomically(results / name, b"")
    try:
        yield name
    finally:
        (results / name).unlink(missing_ok=True)


@contextmanager
def connected(options: RunOptions) -> Iterator[Any]:
    """Connect to the cluster that RAY_ADDRESS names, or start a Ray for this run alone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anybody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    address = os.environ.get("RAY_ADDRESS")
    if not address:  # what Ray calls a cluster listens on all interfaces; read when it is imported
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")  # cells are no work of the background
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise UserError(
            "--launcher ray: the package ray is not installed; pip install 'gcdbench[ray]'"
        ) from error
    own: dict[str, Any] = {
        "address": "local",
        "num_cpus": len(worker_slots(options.device, options.jobs)),
        "_node_ip_address": LOOPBACK,
        "include_dashboard": False,
    }
    try:
        shared = {"log_to_driver": False, "logging_level": logging.WARNING}
        ray.init(**({"address": address} if address else own), **shared)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        where = f"RAY_ADDRESS={address}" if address else "a Ray of its own"
        raise UserError(f"--launcher ray: {where} cannot be reached ({reason})") from error
    try:
        yield ray
    finally:
        ray.shutdown()
