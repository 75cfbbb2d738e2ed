"""Trains and scores one cell and writes its record."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from gcdbench import records, trainer
from gcdbench.compose import Composed, compose
from gcdbench.data.loader import Loader
from gcdbench.estimate import assumed_classes
from gcdbench.evaluator import Evaluation, Sweeper, evaluate, services_for
from gcdbench.method import Task
from gcdbench.nn.backbone import Backbone
from gcdbench.nn.load import load_backbone
from gcdbench.plan import Cell
from gcdbench.runner import checkpoint, journal, weights
from gcdbench.runner.circle import Seat
from gcdbench.runner.meter import Meter, device_name
from gcdbench.runner.provenance import provenance
from gcdbench.runner.stop import Interrupted, Stop
from gcdbench.runner.tokencache import TokenCache, trunk_key, weights_digest
from gcdbench.runner.tracker import Tracker
from gcdbench.tokens import BankedLoader, TokenStore

CHECKPOINT_SECONDS = 60.0  # least time between two checkpoints
NAMED = 20  # unreadable images that a record names
LINE_SECONDS = 60.0  # between lines about a cell where no progress bar is seen
log = logging.getLogger(__name__)


class Team(trainer.Team, Protocol):
    """The processes that run one cell together."""

    size: int

    def share(self, loader: Loader, device: torch.device) -> trainer.Batches:
        """Let each process load a part of every batch."""

    def split(self, backbone: Backbone) -> None:
        """Let each process encode a part of the rows that the backbone is given."""

    def follow(self, decision: bool, step: int) -> bool:
        """Return the leading process's decision."""

    def check_same(self, value: Any, what: str) -> None:
        """Refuse to go on if the processes do not see the same."""


class Alone(trainer.Alone):
    """A team of one."""

    size = 1

    def share(self, loader: Loader, device: torch.device) -> trainer.Batches:
        """Load everything."""
        return loader

    def split(self, backbone: Backbone) -> None:
        """Encode everything."""

    def follow(self, decision: bool, step: int) -> bool:
        """Follow oneself."""
        return decision

    def check_same(self, value: Any, what: str) -> None:
        """See the same as oneself."""


@dataclass
class Setting:
    """Where and how cells are run; nothing in it can change their numbers."""

    results: Path
    device: torch.device
    workers: int = 0  # processes that load images
    tensorboard: bool = False
    keep_weights: bool = False  # what training changed, beside the record
    strict: bool = False  # an image that cannot be read fails its cell
    since: float = 0.0  # older records do not count as done
    stop: Stop = field(default_factory=Stop)
    team: Team = field(default_factory=Alone)
    seat: Seat | None = None  # beside other cells that draw the same batches
    cache: Path | None = None  # folder of frozen features, for all processes
    cache_bytes: int = 0  # that may be in it
    store: TokenStore = field(default_factory=TokenStore)
    # by problem: what could not be read, also for cells that take the features of one before them
    unreadable: dict[str, dict[str, str]] = field(default_factory=dict)

    def fresh_store(self) -> TokenStore:
        """Return an empty store of frozen features: in memory, and on disk if that is wanted."""
        if self.cache is None or self.team.size > 1:
            return TokenStore()
        return TokenStore(disk=TokenCache(self.cache, self.cache_bytes))


def make_loader(cell: Cell, size: int, *, workers: int = 0, strict: bool = False) -> Loader:
    """Return what serves a cell's images, in squares of ``size`` pixels."""
    return Loader(
        cell.problem(),
        size=size,
        batch_size=cell.train.batch_size,
        seed=cell.seed,
        workers=workers,
        draws_per_epoch=cell.train.draws_per_epoch,
        strict=strict,
    )


def make_model(cell: Cell, loader: Loader, backbone: Backbone, *, num_classes: int) -> Composed:
    """Return a cell's model before training; ``num_classes`` is what the method is told."""
    task = Task(
        num_classes=num_classes,
        num_old=cell.problem().num_old,
        labels=loader.labels,
        epochs=cell.train.epochs,
        steps_per_epoch=loader.steps_per_epoch,
        seed=cell.seed,
    )
    return compose(cell.spelling, cell.settings()["config"], task, backbone)


class CellRun:
    """One cell on its way from settings to record."""

    def __init__(self, cell: Cell, setting: Setting, heart: journal.Heart) -> None:
        self.cell, self.setting, self.heart = cell, setting, heart
        self.origin = provenance()  # now: the checkout may change while the cell is trained
        self.folder = records.cell_folder(setting.results, cell)
        self.meter = Meter(setting.device, setting.team.size)
        self.curve: list[dict[str, Any]] = []
        self.problem = cell.problem()
        config, device = cell.train, setting.device
        backbone = load_backbone(cell.backbone).to(device)
        self.loader = make_loader(
            cell, backbone.image_size, workers=setting.workers, strict=setting.strict
        )
        self.origin["backbone"] = weights_digest(backbone)
        trunk = trunk_key(backbone, device)
        self.sweeper = Sweeper(
            *(self.problem, self.loader, backbone, device, setting.store),
            trunk_key=trunk,
            precision=config.eval_tokens,
        )
        number = assumed_classes(cell.task, self.problem, sweep=self.sweeper.sweep, seed=cell.seed)
        self.sweeper.forget()  # the model may ask for more than an estimate needed
        self.model = make_model(cell, self.loader, backbone, num_classes=number).to(device)
        cell.check_code()  # by now all of it is imported
        self.batches: trainer.Batches
        if config.view_bank and self.model.level != "images":
            bank = (self.model.level, config.view_bank, setting.store, trunk, device)
            self.batches = BankedLoader(self.loader, backbone, *bank)
        elif setting.seat is not None:
            amp = config.amp and device.type == "cuda"
            self.batches = setting.seat.share(self.loader, self.model, device, amp=amp)
        else:
            self.batches = setting.team.share(self.loader, device)
        setting.team.split(backbone)
        self.services = services_for(self.sweeper, cell.seed)
        self._saved = self._said = time.monotonic()
        self._fresh_steps = 0

    def execute(self) -> dict[str, Any]:
        """Train, evaluate and write the record; an interrupted run goes on where it was."""
        resume = checkpoint.load_latest(self.folder, self.cell.key)
        if resume is not None:
            self.curve = resume.pop("curve")
            self.meter.carry(resume.pop("spent"))
        done = self._steps_before(resume)
        if done:
            log.info("%s: goes on after step %d", self.cell.label, done)
        team = self.setting.team
        team.check_same(done, "checkpoint")
        tensorboard = self.setting.tensorboard and team.leads
        with Tracker(self.folder, tensorboard=tensorboard) as self.tracker:
            self._track("start", restarts=self.meter.restarts, step=done)
            self._train(resume)
            self.heart.tell(phase="scoring", eta=None)
            final = self._evaluate()
            record = self._record(final)
            if team.leads:
                self._tell_unreadable()
                records.write_record(self.folder, record, final.predictions)
                if self.setting.keep_weights:
                    weights.keep(self.folder, self.cell.key, self.model)
                checkpoint.discard(self.folder)
            self._track("end", **{name: s["all"] for name, s in record["sets"].items()})
        return record

    def _steps_before(self, resume: trainer.Snapshot | None) -> int:
        """Return the number of steps that need not be taken again."""
        if resume is None:
            return 0
        return resume["epoch"] * self.loader.steps_per_epoch + len(resume["history"])

    def _train(self, resume: trainer.Snapshot | None) -> None:
        self._began = time.monotonic()
        trainer.train(
            self.model,
            self.batches,
            self.cell.train,
            self.services,
            seed=self.cell.seed,
            device=self.setting.device,
            resume=resume,
            on_step=self._on_step,
            on_epoch=self._on_epoch,
            forget_sweep=self.sweeper.forget,
            team=self.setting.team,
            label=self.cell.label,
        )

    def _on_step(self, moment: trainer.Moment) -> None:
        clock, setting = moment.clock, self.setting
        done, total = clock.step + 1, clock.epochs * clock.steps_per_epoch
        self._fresh_steps += 1
        left = (time.monotonic() - self._began) / self._fresh_steps * (total - done)
        where = {"epoch": clock.epoch + 1, "epochs": clock.epochs, "step": done, "steps": total}
        self.heart.tell(phase="training", eta=left, **where)
        stop = setting.team.follow(setting.stop.asked, clock.step)
        if setting.team.leads and (stop or self._checkpoint_is_due()):
            self.heart.tell(loss=_loss(moment.terms))
            # of several processes only this one would know now; the epoch's end tells them all
            unknown_to_others = [trainer.Diverged] if setting.team.size > 1 else []
            with contextlib.suppress(*unknown_to_others):
                self._save(done, moment.state())
        if stop:
            raise Interrupted

    def _on_epoch(self, progress: trainer.Progress) -> None:
        row: dict[str, Any] = {"epoch": progress.epoch, "lr": progress.lr, "terms": progress.terms}
        every, number = self.cell.train.eval_every, progress.epoch + 1
        if every and number % every == 0 and number < self.cell.train.epochs:
            row["sets"] = _accuracies_only(self._evaluate())
        self.curve.append(row)
        self._track("epoch", **row)
        loss = sum(progress.terms.values())
        self.heart.tell(loss=loss)
        self._say(number, loss)
        if number < self.cell.train.epochs and self._checkpoint_is_due():
            self._save(number * self.loader.steps_per_epoch, progress.state())

    def _checkpoint_is_due(self) -> bool:
        return time.monotonic() - self._saved >= CHECKPOINT_SECONDS

    def _save(self, step: int, snapshot: trainer.Snapshot) -> None:
        if self.setting.team.leads:
            about = {"key": self.cell.key, "curve": self.curve, "spent": self.meter.read()}
            checkpoint.save(self.folder, step, {**snapshot, **about})
            self._saved = time.monotonic()

    def _track(self, event: str, **row: Any) -> None:
        if self.setting.team.leads:
            self.tracker.write(event, **row)

    def _say(self, number: int, loss: float) -> None:
        """Say how far the cell is, now and then, where no progress bar does."""
        if time.monotonic() - self._said >= LINE_SECONDS and not sys.stderr.isatty():
            epochs = self.cell.train.epochs
            log.info("%s: epoch %d of %d, loss %.3f", self.cell.label, number, epochs, loss)
            self._said = time.monotonic()

    def _evaluate(self) -> Evaluation:
        return evaluate(self.model, self.problem, self.sweeper, self.services)

    @property
    def _unreadable(self) -> dict[str, str]:
        """Reasons by image, of all that cells of this problem could not read in this process."""
        known = self.setting.unreadable.setdefault(self.problem.fingerprint, {})
        known.update(self.loader.unreadable)
        return known

    def _tell_unreadable(self) -> None:
        if found := self._unreadable:
            text = "%s: %d of the images cannot be read, the first one is %s; --strict refuses them"
            log.warning(text, self.cell.label, len(found), min(found))

    def _record(self, final: Evaluation) -> dict[str, Any]:
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
                    "assumed_classes": self.model.method.task.num_classes,
                    "labelled": len(problem.labelled),
                    "unlabelled": len(problem.unlabelled),
                    "notes": problem.notes,
                    **_without(self._unreadable),
                },
                "sets": final.sets,
                "summary": final.summary,
                "curve": self.curve,
                "provenance": {
                    **self.origin,
                    "device": device_name(self.setting.device),
                    "processes": self.setting.team.size,
                    "side_by_side": self.setting.seat is not None,
                    "threads": torch.get_num_threads(),
                },
                "timing": self.meter.read(),
            }
        )


def _without(unreadable: Mapping[str, str]) -> dict[str, Any]:
    """Return what a record says about images that it does without; nothing if there are none."""
    first = dict(sorted(unreadable.items())[:NAMED])
    return {"unreadable": {"count": len(unreadable), "first": first}} if unreadable else {}


def _loss(terms: dict[str, Tensor]) -> float:
    return float(torch.stack([term.float() for term in terms.values()]).sum())


def _accuracies_only(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    return {n: {k: s[k] for k in ("all", "old", "new")} for n, s in evaluation.sets.items()}


def _without_nan(value: Any) -> Any:
    """Replace NaN by None: JSON has no NaN."""
    if isinstance(value, dict):
        return {key: _without_nan(v) for key, v in value.items()}
    if isinstance(value, list):
        return [_without_nan(v) for v in value]
    return None if isinstance(value, float) and math.isnan(value) else value
