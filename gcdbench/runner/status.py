"""The state of each cell, from the results folder and, for cells with a job, the scheduler's queue.

Nothing here imports torch.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from gcdbench.errors import UserError
from gcdbench.experiment import heartbeat, records
from gcdbench.experiment.index import Done, Index
from gcdbench.experiment.key import score_version
from gcdbench.experiment.plan import Cell
from gcdbench.experiment.record import Record
from gcdbench.runner.cost import duration
from gcdbench.runner.launchers import slurm

Kind = Literal[
    "done", "running here", "running elsewhere", "queued", "failed", "stale", "damaged", "waiting"
]
# queries the scheduler for the states of all jobs: job -> PENDING, RUNNING, ...
Queue = Callable[[], Mapping[str, str]]

OLDER_SCORES = "; scored by other code (gcdbench results rescore)"
STALLED_SECONDS = 120.0  # without a step, after which a running cell is not said to progress
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class State:
    """The state of one cell."""

    dataset: str
    method: str
    seed: int
    key: str
    kind: Kind
    detail: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the state as a dictionary, for ``--json``."""
        row = asdict(self)
        return {**{k: v for k, v in row.items() if k != "facts"}, **self.facts}


def states(cells: Sequence[Cell], results: Path, queue: Queue = slurm.queue) -> list[State]:
    """Return the state of every cell; the scheduler is queried only if a cell has a job."""
    jobs = {
        cell.key: job
        for cell in cells
        if (job := heartbeat.read(records.cell_folder(results, cell), heartbeat.JOB))
    }
    queued = _ask(queue) if jobs else None
    with Index(results) as index:
        return [_state(cell, index, jobs.get(cell.key), queued) for cell in cells]


def _ask(queue: Queue) -> Mapping[str, str] | None:
    """Return the jobs that wait or run, or None if the scheduler cannot be queried here."""
    try:
        return queue()
    except UserError as error:
        log.warning("%s", error)
        return None


def _state(
    cell: Cell, index: Index, job: Mapping[str, Any] | None, queued: Mapping[str, str] | None
) -> State:
    kind, detail, facts = _judge(cell, index, job, queued)
    return State(cell.dataset, cell.spec.text, cell.seed, cell.key, kind, detail, facts)


def _judge(
    cell: Cell, index: Index, job: Mapping[str, Any] | None, queued: Mapping[str, str] | None
) -> tuple[Kind, str, dict[str, Any]]:
    folder = records.cell_folder(index.results, cell)
    record = index.done(cell)
    progress = heartbeat.read(folder, heartbeat.PROGRESS)
    if progress is not None and heartbeat.is_alive(progress):
        here = progress["host"] == socket.gethostname()
        return "running here" if here else "running elsewhere", describe(progress), progress
    if isinstance(record, Done):
        seconds = record.seconds
        older = "" if record.scores == score_version() else OLDER_SCORES
        return "done", f"in {duration(seconds)}{older}", {"wall_seconds": seconds}
    known = {} if job is None else {"job": job["job"]}
    if job and queued and job["job"] in queued:
        where = queued[job["job"]].lower()
        return "queued", f"as job {job['job']} ({where}); {_next_start(folder)}", known
    failure = heartbeat.read(folder, heartbeat.FAILURE)
    if failure is not None:
        return "failed", failure["message"], {"failed_at": failure["time"]}
    if job and queued is None:
        return "queued", f"as job {job['job']}, unless it was lost", known
    if progress is not None or job:
        return "waiting", f"{_lost(progress, job)}; {_next_start(folder)}", {}
    if record is not None:
        return "damaged", f"its record {record.reason}; it will be trained again", {}
    if reason := _stale(cell, folder):
        return "stale", reason, {}
    return "waiting", _next_start(folder) if folder.exists() else "", {}


def describe(progress: Mapping[str, Any]) -> str:
    """Return a description of a running cell's progress."""
    parts = [str(progress["phase"])]
    if "epoch" in progress:
        parts = [f"epoch {progress['epoch']} of {progress['epochs']}"]
    if progress.get("loss") is not None:
        parts.append(f"loss {progress['loss']:.3f}")
    age = time.time() - progress.get("stepped", progress["updated"])
    if age > STALLED_SECONDS:
        parts.append(f"no step for {duration(age)}")
    elif progress.get("eta") is not None:
        parts.append(f"{duration(max(progress['eta'] - age, 0))} left")
    return f"{', '.join(parts)} (process {progress['pid']} on {progress['host']})"


def _lost(progress: Mapping[str, Any] | None, job: Mapping[str, Any] | None) -> str:
    """Return a description of the process or job that ended without a record."""
    if job:
        where = f" (see {job['log']})" if "log" in job else ""
        return f"job {job['job']} left the queue without a record{where}"
    assert progress is not None
    return f"process {progress['pid']} on {progress['host']} died"


def _next_start(folder: Path) -> str:
    steps = heartbeat.checkpoints(folder)
    return f"resumes after step {max(steps)}" if steps else "starts again"


def _stale(cell: Cell, folder: Path) -> str:
    """Return why the newest record of a cell of this name is out of date, if there is one."""
    paths = folder.parent.glob(f"seed{cell.seed}-*/{records.RECORD}")
    for path in sorted(paths, key=lambda p: p.stat().st_mtime, reverse=True):
        record = records.read_record(path)
        if isinstance(record, Record):
            return f"recorded with {records.differences(record, cell) or 'another key'}"
    return ""


def render(rows: Sequence[State]) -> str:
    """Return the states as a table with a line of counts."""
    widths = [
        max((len(getattr(row, name)) for row in rows), default=0)
        for name in ("dataset", "method", "kind")
    ]
    lines = [
        f"{row.dataset:<{widths[0]}}  {row.method:<{widths[1]}}  seed {row.seed:<3}  "
        f"{row.kind:<{widths[2]}}  {row.detail}".rstrip()
        for row in rows
    ]
    counts = Counter(row.kind for row in rows)
    summary = ", ".join(f"{number} {kind}" for kind, number in counts.items())
    return "\n".join([*lines, f"{len(rows)} cells: {summary}"])


def settled(rows: Sequence[State]) -> bool:
    """Return whether no state will change without a new command."""
    return not any(row.kind.startswith("running") or row.kind == "queued" for row in rows)
