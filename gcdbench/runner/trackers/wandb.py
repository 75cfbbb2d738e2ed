"""Weights & Biases: a run per cell, sent or, with ``WANDB_MODE=offline``, kept on disk."""

from __future__ import annotations

import os
from collections.abc import Mapping

import wandb

from gcdbench.runner.trackers import TrackedCell


class WandbTracker:
    """Logs to the project of ``WANDB_PROJECT``; files are in the folder of the cell."""

    def __init__(self, cell: TrackedCell) -> None:
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "gcdbench"),
            name=cell.label,
            group=cell.key,  # a cell that was interrupted has several runs
            config=dict(cell.settings),
            dir=cell.folder,
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        # final scores come in the epoch of the last losses
        self._run.log({**numbers, "epoch": epoch})

    def close(self, *, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))
