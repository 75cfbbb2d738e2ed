"""Runs cells of the toy suite on the pretend device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from helpers.bench import small_config
from helpers.toy import Toy, make_toy

from device.pretend.machine import one_gpu
from gcdbench.core import registry
from gcdbench.experiment import records
from gcdbench.experiment.heartbeat import TRACEBACK
from gcdbench.experiment.plan import Cell, Request, make_cells
from gcdbench.experiment.record import Record
from gcdbench.runner import cell as cell_module
from gcdbench.runner.launchers.local import LocalLauncher
from gcdbench.runner.options import RunOptions
from gcdbench.runner.stop import Interrupted, Stop

TRAIN = {"epochs": 2, "batch_size": 8, "draws_per_epoch": 16, "view_bank": 0, "eval_every": 1}


class StopAfter(Stop):
    """Asks for a stop after a number of training steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    @property
    def asked(self) -> bool:
        return self.steps <= 0


@dataclass
class DeviceBench:
    """The toy suite below a folder, and as many results folders as there were runs."""

    folder: Path
    toy: Toy
    runs: int = 0

    @classmethod
    def make(cls, folder: Path) -> DeviceBench:
        """Write the suite."""
        return cls(folder, make_toy(folder))

    def cell(self, spec: str, **settings: dict[str, Any]) -> Cell:
        """Return a cell with small heads; ``settings`` are those of its parts."""
        method = spec.replace("-", "+").split("+")[0]
        small = small_config("method", method)
        given = {"train": {**TRAIN, **settings.pop("train", {})}, **settings}
        given[method] = {**small, **settings.get(method, {})}
        request = Request(str(self.toy.suite), (spec,), assignments=given, seeds=(0,))
        (cell,) = make_cells(request)
        return cell

    def results(self) -> Path:
        """Return a new results folder."""
        self.runs += 1
        return self.folder / f"results-{self.runs}"

    def run(self, cell: Cell, *, device: str = "cuda", **options: Any) -> Record:
        """Run a cell and return its record; fail with the traceback of the cell."""
        results = options.pop("results", None) or self.results()
        initialised = options.pop("initialised", True)
        with one_gpu(initialised=initialised):
            LocalLauncher().run([cell], RunOptions(results, device=device, **options))
        note = records.cell_folder(results, cell) / TRACEBACK
        if note.exists():
            raise AssertionError(note.read_text(encoding="utf-8"))
        record = records.read_done(results, cell)
        assert isinstance(record, Record), record
        return record

    def interrupted(self, cell: Cell, *, device: str, after: int) -> Path:
        """Stop a cell after some steps and return its results folder."""
        results, stop, on_step = self.results(), StopAfter(after), cell_module.CellRun._on_step

        def counted(run: Any, event: Any) -> None:
            stop.steps -= 1
            on_step(run, event)

        with one_gpu(), patch.object(cell_module.CellRun, "_on_step", counted):
            try:
                LocalLauncher(stop).run([cell], RunOptions(results, device=device))
            except Interrupted:
                assert list(results.rglob("checkpoint-*.pt")), "nothing was saved"
                return results
        raise AssertionError("the cell was not interrupted")


def presets(kind: str) -> dict[str, list[str]]:
    """Return the presets of every plug-in of a kind that has any."""
    found = {
        name: list(getattr(info.config, "presets", {}))
        for name, info in registry.available(kind).items()
    }
    return {name: names for name, names in found.items() if names}
