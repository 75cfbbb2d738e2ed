"""Run cells as jobs of a SLURM cluster, through submitit. Torch is imported by the jobs only.

A job is one cell. It needs only the cell's folder to resume, so after a time limit, a preemption or
a node failure the next job of the cell continues from the checkpoint. The state of a cell is read
from its folder and from ``squeue``: submitit's own result is missing if the job was killed.
"""

from __future__ import annotations

import importlib
import json
import logging
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcdbench.core import registry
from gcdbench.core.config import build, load_yaml
from gcdbench.core.files import write_atomically
from gcdbench.errors import UserError
from gcdbench.experiment import heartbeat, records
from gcdbench.experiment.outcome import CHANGED, Outcome
from gcdbench.experiment.plan import Cell
from gcdbench.runner.options import RunOptions

if TYPE_CHECKING:
    from gcdbench.runner.stop import Stop

FOLDER = ".slurm"  # in the results folder: what submitit needs, and the logs of the jobs
LONGEST_MINUTES = 10 * 366 * 24 * 60
LARGEST_ARRAY = 1000  # SLURM's default limit
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SlurmConfig:
    """What a job asks of the cluster; the keys of the file that ``--slurm`` names."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    gpus: int = 1  # of each process of a cell; 0 for a cluster without
    cpus: int = 4  # of each process of a cell
    memory_gb: float | None = None
    hours: float = 24.0  # a cell that needs more is requeued and resumed
    notice_seconds: int = 120  # before the time limit: time to write the checkpoint
    at_a_time: int = 64  # jobs of an array that may run together
    setup: tuple[str, ...] = ()  # shell commands before Python, such as "module load cuda"
    sbatch: Any = field(default_factory=dict)  # further options of sbatch, by their long names

    def __post_init__(self) -> None:
        if not isinstance(self.sbatch, Mapping):
            raise ValueError("sbatch must be a mapping of sbatch's long options to values")
        if self.gpus < 0 or min(self.cpus, self.at_a_time) < 1 or self.notice_seconds < 0:
            raise ValueError(
                "gpus and notice_seconds must not be negative, cpus and at_a_time at least 1"
            )
        if not 1 <= self.hours * 60 <= LONGEST_MINUTES:
            raise ValueError("hours must be at least one minute and at most ten years")
        # SLURM takes 0 for all the memory of a node
        if self.memory_gb is not None and not 1 <= self.memory_gb * 1024 < 2**40:
            raise ValueError("memory_gb must be a number of at least 0.001")
        for name, value in (("partition", self.partition), ("account", self.account),
                            ("qos", self.qos), *self.sbatch.items()):  # fmt: skip
            _check_option(name, value)

    def parameters(self, processes: int) -> dict[str, Any]:
        """Return submitit's parameters for a job with a number of processes."""
        memory = None if self.memory_gb is None else f"{round(self.memory_gb * 1024)}M"
        optional = {
            "partition": self.partition,
            "account": self.account,
            "qos": self.qos,
            "mem": memory,
            "gpus_per_node": processes * self.gpus or None,
        }
        return {
            **{name: value for name, value in optional.items() if value is not None},
            "cpus_per_task": processes * self.cpus,
            "ntasks_per_node": 1,
            "time": round(self.hours * 60),
            "signal_delay_s": self.notice_seconds,
            "array_parallelism": self.at_a_time,
            "setup": list(self.setup),
            "job_name": "gcdbench",
            "stderr_to_stdout": True,
            "additional_parameters": {"requeue": True, **self.sbatch},
        }


def _check_option(name: Any, value: Any) -> None:
    """Refuse an option that would end its line of the job's script and begin another one."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
        raise ValueError(f"sbatch: {name!r} is no long option of sbatch")
    if value is not None and not isinstance(value, (str, int, float)):
        raise ValueError(f"{name} must be a word, a number, or true or false, not {value!r}")
    if isinstance(value, str) and (not value.isprintable() or value != value.strip()):
        raise ValueError(f"{name} must be one line of printable text, not {value!r}")


def read_config(path: Path | None) -> SlurmConfig:
    """Return the options of the cluster from a file; without one, the defaults."""
    return build(SlurmConfig, {} if path is None else load_yaml(path), str(path))


@dataclass(frozen=True)
class Job:
    """What runs on the cluster: one cell."""

    cell: Cell
    folder: Path  # of the cell, when it was submitted
    options: RunOptions

    def __call__(self) -> str:
        """Run the cell; when time is up, save it and put the job back into the queue."""
        from gcdbench.runner.stop import NOTICE, Interrupted, Stop

        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
        for path in self.options.plugins:
            registry.add_plugin(path)
        stop = Stop(patient=True)
        try:
            return self._run(stop)
        except Interrupted:
            if stop.heard == NOTICE:
                requeue()
            raise SystemExit(1) from None  # by SIGTERM: its sender decides what happens next

    def _run(self, stop: Stop) -> str:
        from gcdbench.runner.launchers.local import LocalLauncher
        from gcdbench.runner.launchers.multiprocess import MultiProcessLauncher

        if records.cell_folder(self.options.results, self.cell) != self.folder:
            heartbeat.note_failure(self.folder, CHANGED)
            raise RuntimeError(CHANGED)
        launcher = MultiProcessLauncher if self.options.processes > 1 else LocalLauncher
        outcome = launcher(stop).run([self.cell], self.options)
        if outcome.failed:
            raise RuntimeError(outcome.failed[0][1])
        return "trained" if outcome.trained else "recorded already"


def requeue() -> None:
    """Put the job that this process runs in back into the queue."""
    job = importlib.import_module("submitit").JobEnvironment().job_id
    log.warning("time is up: job %s goes back into the queue", job)
    subprocess.run(["scontrol", "requeue", job], check=True)


class SlurmLauncher:
    """Submits an array of jobs and returns; ``status`` shows their progress."""

    def run(self, cells: Sequence[Cell], options: RunOptions) -> Outcome:
        """Submit the cells that have neither a record nor a job."""
        if options.jobs:
            raise UserError("--jobs is for one machine; with --launcher slurm set at_a_time")
        results = options.results.resolve()
        skipped = [c for c in cells if records.is_done(results, c, since=options.since)]
        jobs = submit([cell for cell in cells if cell not in skipped], options)
        if known := len(cells) - len(jobs):
            log.info("%d of %d cells are recorded or have a job already", known, len(cells))
        if jobs:
            span = jobs[0] if len(jobs) == 1 else f"{jobs[0]} ... {jobs[-1]}"
            log.info("%d cells were submitted as jobs %s; see gcdbench status", len(jobs), span)
        return Outcome(skipped=skipped, submitted=jobs)


def submit(cells: Sequence[Cell], options: RunOptions) -> list[str]:
    """Submit an array of the cells that have no job yet; return its jobs."""
    config = read_config(options.slurm)
    executor = _executor(options.results / FOLDER, config.parameters(options.processes))
    results, queued = options.results.resolve(), queue()
    plugins = tuple(path.resolve() for path in options.plugins)
    options = replace(options, results=results, plugins=plugins)
    folders = {cell.key: records.cell_folder(results, cell) for cell in cells}
    jobs = [
        Job(cell, folders[cell.key], options)
        for cell in cells
        if not _taken(folders[cell.key], queued)
    ]
    for job in jobs:
        heartbeat.forget_failure(job.folder)
    submitted = []
    for first in range(0, len(jobs), LARGEST_ARRAY):
        part = jobs[first : first + LARGEST_ARRAY]
        submitted += _submit_array(executor, part)
    return submitted


def _submit_array(executor: Any, jobs: Sequence[Job]) -> list[str]:
    """Submit cells and write the number of their job to their folders."""
    try:
        submitted = executor.submit_array(jobs)
    except (RuntimeError, OSError, UnicodeError) as error:  # FailedJobError among them
        said = _text(str(error)) or "without a reason"
        raise UserError(f"--launcher slurm: sbatch has refused the jobs ({said})") from error
    for job, sent in zip(jobs, submitted, strict=True):
        note = {"job": sent.job_id, "log": str(sent.paths.stdout), "time": time.time()}
        write_atomically(job.folder / heartbeat.JOB, json.dumps(note).encode())
    return [sent.job_id for sent in submitted]


def _taken(folder: Path, queued: Mapping[str, str]) -> bool:
    """Return whether a process works on a cell, or a job for it exists."""
    progress, job = (
        heartbeat.read(folder, heartbeat.PROGRESS),
        heartbeat.read(folder, heartbeat.JOB),
    )
    running = progress is not None and heartbeat.is_alive(progress)
    return running or (job is not None and job["job"] in queued)


def _executor(folder: Path, parameters: Mapping[str, Any]) -> Any:
    try:
        submitit = importlib.import_module("submitit")
    except ImportError as error:
        raise UserError(
            "--launcher slurm: the package submitit is not installed; pip install 'gcdbench[slurm]'"
        ) from error
    if shutil.which("srun") is None:
        raise UserError("--launcher slurm: no srun here; run this on a machine of the cluster")
    executor = submitit.SlurmExecutor(folder.resolve())
    executor.update_parameters(**parameters)
    return executor


def queue() -> dict[str, str]:
    """Return the states of all jobs that wait or run: job -> PENDING, RUNNING, ..."""
    command = ["squeue", "--noheader", "--array", "--format=%i %T"]
    try:
        answer = subprocess.run(command, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        said = _text(getattr(error, "stderr", None) or b"") or str(error)
        raise UserError(f"the scheduler cannot be queried: {said}") from error
    rows = (line.split() for line in answer.stdout.decode(errors="replace").splitlines())
    return {row[0]: row[1] for row in rows if len(row) == 2}  # others are messages of the site


def _text(said: bytes | str) -> str:
    """Return what a program has said as one line."""
    text = said if isinstance(said, str) else said.decode(errors="replace")
    return " ".join(text.split())
