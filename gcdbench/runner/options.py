"""Options of a run: where and how. They cannot change numbers. Nothing here imports torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gcdbench.core import registry
from gcdbench.errors import UserError


@dataclass(frozen=True)
class RunOptions:
    """The options of a run, from the command line to the cell."""

    results: Path
    device: str = "auto"  # cpu, cuda, cuda:1, ...; auto: all GPUs, else the CPU
    launcher: str = "auto"  # by default chosen from the other options
    jobs: int | None = None  # cells at a time; one per GPU by default
    processes: int = 1  # for each cell
    workers: int | None = None  # processes that load images, for each cell; None: by the device
    cache: Path | None = None  # folder of frozen features, shared by all processes
    cache_bytes: int = 0  # that may be in it
    strict: bool = False  # an image that cannot be read fails its cell
    keep_weights: bool = False  # write what was trained next to the record
    trackers: tuple[str, ...] = ()  # names, in addition to the log
    since: float = 0.0  # records written before (seconds of the epoch) do not count as done
    cell_timeout: float | None = None  # seconds after which a cell has failed
    stall_timeout: float | None = None  # seconds without a step after which a cell has failed
    slurm: Path | None = None  # YAML with what a job asks of the cluster
    plugins: tuple[Path, ...] = ()  # files of --plugin, for processes that must load them again


@dataclass(frozen=True)
class WorkerSlot:
    """A place for a process: its device and how many threads it may use there."""

    number: int
    device: str
    threads: int


def worker_slots(device: str, jobs: int | None) -> list[WorkerSlot]:
    """Return one slot per job: all GPUs in turn if the device is ``auto``, else the device."""
    from gcdbench.runner.devices import choose_device, count_gpus

    gpus = count_gpus() if device == "auto" else 0
    names = [f"cuda:{number}" for number in range(gpus)] or [str(choose_device(device))]
    count = jobs or len(names)
    threads = _threads_from_environment() or max(available_cores() // count, 1)
    return [WorkerSlot(number, names[number % len(names)], threads) for number in range(count)]


def _threads_from_environment() -> int | None:
    """Return the number of threads that OMP_NUM_THREADS asks for, if it is set."""
    given = os.environ.get("OMP_NUM_THREADS")
    if not given:
        return None
    if not given.strip().isdecimal() or int(given) < 1:
        raise UserError(f"OMP_NUM_THREADS={given}: expected one whole number of threads")
    return int(given)


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def threads_of_children(number: int) -> Iterator[None]:
    """Set the number of threads of processes that are started in the context."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(number)
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def plugin_files() -> tuple[Path, ...]:
    """Return the files that were added by --plugin, for new processes to load them again."""
    found = (info for kind in registry.KINDS for info in registry.available(kind).values())
    return tuple(info.path for info in found if info.is_file_plugin)
