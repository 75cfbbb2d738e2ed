"""Ways to run cells: one after the other, several at a time, on several processes, on a cluster.

A launcher is a class without arguments whose ``run`` takes cells and options and returns an
``Outcome``. Third parties add launchers through the entry-point group ``gcdbench.launchers``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gcdbench.core.extensions import Extensions
from gcdbench.core.registry import ENDINGS
from gcdbench.errors import UserError
from gcdbench.experiment.outcome import Outcome
from gcdbench.experiment.plan import Cell
from gcdbench.runner.options import RunOptions

LAUNCHERS = Extensions(
    "launcher",
    {
        "local": "gcdbench.runner.launchers.local:LocalLauncher",
        "pool": "gcdbench.runner.launchers.pool:PoolLauncher",
        "multiprocess": "gcdbench.runner.launchers.multiprocess:MultiProcessLauncher",
        "ray": "gcdbench.runner.launchers.ray:RayLauncher",
        "slurm": "gcdbench.runner.launchers.slurm:SlurmLauncher",
    },
)


class Launcher(Protocol):
    """Runs cells somewhere."""

    def run(self, cells: Sequence[Cell], options: RunOptions) -> Outcome:
        """Run the cells that have no record, or hand them to a scheduler; return the outcome."""


def get_launcher(name: str) -> Launcher:
    """Return the launcher of a name."""
    made = LAUNCHERS.load(name)
    try:
        return made()
    except ENDINGS as error:  # a third party's class may fail in any way
        raise UserError(f"--launcher {name}: {type(error).__name__}: {error}") from error


def choose_launcher(options: RunOptions) -> str:
    """Return the name of the launcher that the options ask for."""
    from gcdbench.runner.options import worker_slots
    from gcdbench.runner.process_group import is_torchrun_worker

    if options.launcher != "auto":
        return options.launcher
    if options.processes > 1 or is_torchrun_worker():
        return "multiprocess"
    return "pool" if len(worker_slots(options.device, options.jobs)) > 1 else "local"
