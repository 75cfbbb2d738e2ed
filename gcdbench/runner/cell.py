"""Trains and scores one cell and writes its record."""

from __future__ import annotations

import json
import math
import resource
import time
from pathlib import Path
from typing import Any

import torch

from gcdbench import records
from gcdbench.compose import compose
from gcdbench.data.loader import Loader
from gcdbench.evaluator import Evaluation, Sweeper, evaluate, services_for
from gcdbench.method import Task
from gcdbench.nn.load import load_backbone
from gcdbench.plan import Cell
from gcdbench.runner import checkpoint
from gcdbench.tokens import BankedLoader, TokenStore
from gcdbench.trainer import Progress, train

CHECKPOINT_SECONDS = 60.0  # least time between two checkpoints


class CellRun:
    """One cell on its way from settings to record."""

    def __init__(
        self,
        cell: Cell,
        results: Path,
        device: torch.device,
        *,
        workers: int = 0,
        store: TokenStore | None = None,
    ) -> None:
        self.cell = cell
        self.folder = records.cell_folder(results, cell)
        self.device = device
        self.curve: list[dict[str, Any]] = []
        self.problem = cell.problem()
        backbone = load_backbone(cell.backbone)
        config = cell.train
        self.loader = Loader(
            self.problem,
            size=backbone.image_size,
            batch_size=config.batch_size,
            seed=cell.seed,
            workers=workers,
            draws_per_epoch=config.draws_per_epoch,
        )
        task = Task(
            num_classes=self.problem.num_classes,
            num_old=self.problem.num_old,
            labels=self.loader.labels,
            epochs=config.epochs,
            steps_per_epoch=self.loader.steps_per_epoch,
            seed=cell.seed,
        )
        self.model = compose(cell.spelling, cell.settings()["config"], task, backbone).to(device)
        store = TokenStore() if store is None else store
        trunk = (cell.fingerprints()["weights"], cell.backbone)
        self.sweeper = Sweeper(self.problem, self.loader, backbone, device, store, trunk)
        self.batches: Loader | BankedLoader = self.loader
        if config.view_bank and self.model.level != "images":
            self.batches = BankedLoader(
                self.loader, backbone, self.model.level, config.view_bank, store, trunk, device
            )
        self.services = services_for(self.sweeper, cell.seed)
        self._saved = time.monotonic()

    def execute(self) -> dict[str, Any]:
        """Train, evaluate and write the record; an interrupted run goes on where it was."""
        started, cpu = time.time(), time.process_time()
        self.folder.mkdir(parents=True, exist_ok=True)
        resume = checkpoint.load_latest(self.folder)
        if resume is not None:
            self.curve = resume.pop("curve")
        train(
            self.model,
            self.batches,
            self.cell.train,
            self.services,
            seed=self.cell.seed,
            device=self.device,
            resume=resume,
            on_epoch=self._on_epoch,
            forget_sweep=self.sweeper.forget,
            label=self.cell.label,
        )
        final = self._evaluate()
        record = self._record(final, started, cpu)
        records.write_record(self.folder, record, final.predictions)
        checkpoint.discard(self.folder)
        return record

    def _on_epoch(self, progress: Progress) -> None:
        row: dict[str, Any] = {"epoch": progress.epoch, "lr": progress.lr, "terms": progress.terms}
        every, number = self.cell.train.eval_every, progress.epoch + 1
        if every and number % every == 0 and number < self.cell.train.epochs:
            row["sets"] = _accuracies_only(self._evaluate())
        self.curve.append(row)
        with (self.folder / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), **row}) + "\n")
        last = number == self.cell.train.epochs
        if not last and time.monotonic() - self._saved >= CHECKPOINT_SECONDS:
            checkpoint.save(self.folder, number, {**progress.state(), "curve": self.curve})
            self._saved = time.monotonic()

    def _evaluate(self) -> Evaluation:
        return evaluate(self.model, self.problem, self.sweeper, self.services)

    def _record(self, final: Evaluation, started: float, cpu: float) -> dict[str, Any]:
        cell, problem = self.cell, self.problem
        return _without_nan(
            {
                "key": cell.key,
                "dataset": cell.dataset,
                "method": cell.spelling.text,
                "seed": cell.seed,
                "settings": cell.settings(),
                "fingerprints": cell.fingerprints(),
                "problem": {
                    "num_classes": problem.num_classes,
                    "num_old": problem.num_old,
                    "labelled": len(problem.labelled),
                    "unlabelled": len(problem.unlabelled),
                    "notes": problem.notes,
                },
                "sets": final.sets,
                "summary": final.summary,
                "curve": self.curve,
                "provenance": {
                    **records.provenance(),
                    "device": _device_name(self.device),
                    "threads": torch.get_num_threads(),
                },
                "timing": {
                    "started": started,
                    "wall_seconds": time.time() - started,
                    "cpu_seconds": time.process_time() - cpu,
                    "peak_memory_mb": _peak_memory_mb(self.device),
                },
            }
        )


def _accuracies_only(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    return {n: {k: s[k] for k in ("all", "old", "new")} for n, s in evaluation.sets.items()}


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _peak_memory_mb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _without_nan(value: Any) -> Any:
    """Replace NaN by None: JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _without_nan(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_without_nan(v) for v in value]
    return None if isinstance(value, float) and math.isnan(value) else value
