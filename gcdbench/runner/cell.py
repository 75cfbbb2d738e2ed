"""Train and score one cell and write its record."""

from __future__ import annotations

import contextlib
import logging
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcdbench.experiment import heartbeat, records
from gcdbench.experiment.key import score_version
from gcdbench.experiment.plan import Cell
from gcdbench.experiment.record import (
    CurvePoint,
    ProblemFacts,
    Provenance,
    Record,
    SetScores,
    Timing,
    Unreadable,
    part,
)
from gcdbench.nn.parallel import ProcessGroup, SingleProcess
from gcdbench.runner import checkpoint
from gcdbench.runner.feature_cache import FeatureCache, TemporaryFeatures
from gcdbench.runner.meter import Meter, device_name
from gcdbench.runner.options import RunOptions
from gcdbench.runner.provenance import provenance
from gcdbench.runner.stop import Interrupted, Stop
from gcdbench.runner.trackers import TrackedCell, Trackers
from gcdbench.training import trainer, weights
from gcdbench.training.assemble import assemble
from gcdbench.training.evaluator import Evaluation, evaluate
from gcdbench.training.features.store import Disk, FeatureStore

CHECKPOINT_SECONDS = 60.0  # minimum time between two checkpoints
NAMED = 20  # unreadable images that a record lists
STOP_EVERY = 10  # steps between two checks of a process group whether to stop
LINE_SECONDS = 60.0  # between log lines about a cell if there is no progress bar
log = logging.getLogger(__name__)


@dataclass
class RunContext:
    """Where a process runs cells; nothing in it can change their numbers."""

    options: RunOptions
    device: torch.device
    stop: Stop = field(default_factory=Stop)
    group: ProcessGroup = field(default_factory=SingleProcess)
    scratch: Path | None = None  # folder for temporary files of the group
    store: FeatureStore = field(init=False)
    # unreadable images by problem; also for cells that reuse the features of an earlier cell
    unreadable: dict[str, dict[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        folder, group, disk = self.options.cache, self.group, None
        if folder is not None:
            disk = FeatureCache(folder, self.options.cache_bytes, group)
        shared: Disk | None = disk
        if group.size > 1:  # processes of several machines cannot map one file
            near = len(set(group.gather_objects(platform.node()))) == 1
            shared = (disk or TemporaryFeatures(group, self.scratch)) if near else None
        self.store = FeatureStore(disk=disk, shared=shared)

    @property
    def results(self) -> Path:
        """The results folder."""
        return self.options.results


class CellRun:
    """Trains and scores one cell, with checkpoints, and writes its record."""

    def __init__(self, cell: Cell, context: RunContext, beat: heartbeat.Heartbeat) -> None:
        self.cell, self.context, self.heartbeat = cell, context, beat
        self.origin = provenance()  # now, because the checkout may change during training
        self.folder = records.cell_folder(context.results, cell)
        self.meter = Meter(context.device, context.group.size)
        self.curve: list[dict[str, Any]] = []
        self.parts = assemble(
            cell,
            device=context.device,
            group=context.group,
            store=context.store,
            workers=context.options.workers,
            strict=context.options.strict,
        )
        cell.check_code()  # by now all of it is imported
        self._saved = self._said = time.monotonic()
        self._fresh_steps = 0

    def execute(self) -> Record:
        """Train, evaluate and write the record; an interrupted run resumes from its checkpoint."""
        resume = checkpoint.load_latest(self.folder, self.cell.key)
        if resume is not None:
            self.curve = resume.pop("curve")
            self.meter.carry(resume.pop("spent"))
        done = self._steps_before(resume)
        if done:
            log.info("%s: resumes after step %d", self.cell.label, done)
        group, options = self.context.group, self.context.options
        group.check_same(done, "checkpoint")
        with self._trackers() as self.tracker:
            self._track("start", restarts=self.meter.restarts, step=done)
            self._train(resume)
            self.heartbeat.update(phase="scoring", eta=None)
            final = self._evaluate(measure=True)
            for others in group.gather_objects(self.parts.loader.unreadable):
                self.parts.loader.unreadable |= others
            record = self._record(final)
            if group.is_main:
                self._tell_unreadable()
                records.write_record(self.folder, record, final.predictions, final.evidence)
                if options.keep_weights:
                    weights.keep(self.folder, self.cell.key, self.parts.model)
                checkpoint.discard(self.folder)
            self._track("end", **{name: s.all for name, s in record.sets.items()})
        return record

    def _trackers(self) -> Trackers:
        """Return the log, and in the main process the trackers that were asked for."""
        cell, options = self.cell, self.context.options
        settings = records.flat(cell.settings())
        tracked = TrackedCell(cell.label, cell.key, settings, self.folder, options.results)
        return Trackers(tracked, options.trackers if self.context.group.is_main else (), self.curve)

    def _steps_before(self, resume: trainer.Snapshot | None) -> int:
        """Return the number of steps that the checkpoint has done."""
        if resume is None:
            return 0
        return resume["epoch"] * self.parts.loader.steps_per_epoch + len(resume["history"])

    def _train(self, resume: trainer.Snapshot | None) -> None:
        self._began = time.monotonic()
        trainer.train(
            self.parts.model,
            self.parts.batches,
            self.cell.train,
            self.parts.context,
            seed=self.cell.seed,
            device=self.context.device,
            resume=resume,
            on_step=self._on_step,
            on_epoch=self._on_epoch,
            forget_features=self.parts.encoder.forget,
            group=self.context.group,
            label=self.cell.label,
        )

    def _on_step(self, event: trainer.StepEvent) -> None:
        clock, group = event.clock, self.context.group
        done, total = clock.step + 1, clock.epochs * clock.steps_per_epoch
        self._fresh_steps += 1
        left = (time.monotonic() - self._began) / self._fresh_steps * (total - done)
        where = {"epoch": clock.epoch + 1, "epochs": clock.epochs, "step": done, "steps": total}
        self.heartbeat.update(phase="training", eta=left, **where)
        stop = self._stop_is_asked(clock.step)
        if group.is_main and (stop or self._checkpoint_is_due()):
            self.heartbeat.update(loss=_loss(event.terms))
            # In a group only this process would know now; at the end of the epoch all of them do.
            unknown_to_others = [trainer.Diverged] if group.size > 1 else []
            with contextlib.suppress(*unknown_to_others):
                self._save(done, event.state())
        if stop:
            raise Interrupted

    def _on_epoch(self, event: trainer.EpochEvent) -> None:
        row: dict[str, Any] = {"epoch": event.epoch, "lr": event.lr, "terms": event.terms}
        row["diagnostics"] = event.diagnostics
        every, number = self.cell.train.eval_every, event.epoch + 1
        if every and number % every == 0 and number < self.cell.train.epochs:
            row["sets"] = _accuracies_only(self._evaluate())
        self.curve.append(row)
        self._track("epoch", **row)
        loss = sum(event.terms.values())
        self.heartbeat.update(loss=loss)
        self._say(number, loss)
        if number < self.cell.train.epochs and self._checkpoint_is_due():
            self._save(number * self.parts.loader.steps_per_epoch, event.state())

    def _stop_is_asked(self, step: int) -> bool:
        """Return whether to stop; a process group asks its main process every few steps."""
        group, asked = self.context.group, self.context.stop.asked
        if group.size == 1:
            return asked
        return step % STOP_EVERY == 0 and group.broadcast_object(asked)

    def _checkpoint_is_due(self) -> bool:
        return time.monotonic() - self._saved >= CHECKPOINT_SECONDS

    def _save(self, step: int, snapshot: trainer.Snapshot) -> None:
        if self.context.group.is_main:
            about = {"key": self.cell.key, "curve": self.curve, "spent": self.meter.read()}
            checkpoint.save(self.folder, step, {**snapshot, **about})
            self._saved = time.monotonic()

    def _track(self, event: str, **row: Any) -> None:
        if self.context.group.is_main:
            self.tracker.write(event, **row)

    def _say(self, number: int, loss: float) -> None:
        """Log the progress of the cell now and then, if there is no progress bar."""
        if time.monotonic() - self._said >= LINE_SECONDS and not sys.stderr.isatty():
            epochs = self.cell.train.epochs
            log.info("%s: epoch %d of %d, loss %.3f", self.cell.label, number, epochs, loss)
            self._said = time.monotonic()

    def _evaluate(self, *, measure: bool = False) -> Evaluation:
        parts = self.parts
        return evaluate(parts.model, parts.problem, parts.encoder, parts.context, measure=measure)

    @property
    def _unreadable(self) -> dict[str, str]:
        """Return the reasons by image of all images of this problem that could not be read."""
        known = self.context.unreadable.setdefault(self.parts.problem.fingerprint, {})
        known.update(self.parts.loader.unreadable)
        return known

    def _tell_unreadable(self) -> None:
        if found := self._unreadable:
            text = "%s: %d of the images cannot be read, the first one is %s; --strict refuses them"
            log.warning(text, self.cell.label, len(found), min(found))

    def _record(self, final: Evaluation) -> Record:
        cell, problem, scores = self.cell, self.parts.problem, final.scores
        return Record(
            key=cell.key,
            dataset=cell.dataset,
            method=cell.spec.text,
            seed=cell.seed,
            settings=cell.settings(),
            fingerprints=cell.fingerprints(),
            problem=ProblemFacts(
                num_classes=problem.num_classes,
                num_old=problem.num_old,
                assumed_classes=self.parts.model.method.task.num_classes,
                labelled=len(problem.labelled),
                unlabelled=len(problem.unlabelled),
                notes=problem.notes,
                unreadable=_noted(self._unreadable),
            ),
            scores=score_version(),
            sets={name: part(SetScores, one) for name, one in scores.sets.items()},
            summary={name: part(SetScores, one) for name, one in scores.summary.items()},
            curve=tuple(part(CurvePoint, row) for row in self.curve),
            provenance=part(Provenance, {**self.origin, **self._machine()}),
            timing=part(Timing, self.meter.read()),
        )

    def _machine(self) -> dict[str, Any]:
        return {
            "backbone": self.parts.pretrained,
            "device": device_name(self.context.device),
            "processes": self.context.group.size,
            "threads": torch.get_num_threads(),
        }


def _noted(unreadable: Mapping[str, str]) -> Unreadable | None:
    """Return what a record says about images that could not be read."""
    first = dict(sorted(unreadable.items())[:NAMED])
    return Unreadable(len(unreadable), first) if unreadable else None


def _loss(terms: dict[str, Tensor]) -> float:
    return float(torch.stack([term.float() for term in terms.values()]).sum())


def _accuracies_only(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    return {n: {k: s[k] for k in ("all", "old", "new")} for n, s in evaluation.scores.sets.items()}
