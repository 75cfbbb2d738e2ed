"""The training loop of all methods."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from tqdm import tqdm

from gcdbench.core.settings import TrainConfig
from gcdbench.errors import UserError
from gcdbench.nn.parallel import ProcessGroup, SingleProcess
from gcdbench.training.compose import Composed
from gcdbench.training.features.trunk import autocast
from gcdbench.training.method import Batch, Clock, FitContext
from gcdbench.training.optimizer import (
    fill_momentum,
    learning_rate,
    make_optimizer,
    mixed_precision,
)
from gcdbench.training.weights import trained_state

Snapshot = dict[str, Any]  # tensors and plain values: what ``train`` can resume from


class Batches(Protocol):
    """The interface of a loader, as the loop uses it."""

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""

    def epoch(self, epoch: int, weights: Tensor) -> Iterator[Batch]:
        """Yield the batches of an epoch."""


class Diverged(RuntimeError):
    """Raised if the loss or a weight is not finite."""


@dataclass(frozen=True)
class StepEvent:
    """The state of training after a step."""

    clock: Clock
    terms: dict[str, Tensor]  # of this step, on the device
    state: Callable[[], Snapshot]  # the tensors in it are the live ones: save it, or copy it


@dataclass(frozen=True)
class EpochEvent:
    """The state of training at the end of an epoch."""

    epoch: int
    lr: float
    terms: dict[str, float]  # mean over the epoch's steps
    diagnostics: dict[str, float]  # mean over the steps that have them
    state: Callable[[], Snapshot]


def train(
    model: Composed,
    loader: Batches,
    config: TrainConfig,
    context: FitContext,
    *,
    seed: int,
    device: torch.device,
    resume: Snapshot | None = None,
    on_step: Callable[[StepEvent], None] = lambda event: None,
    on_epoch: Callable[[EpochEvent], None] = lambda event: None,
    forget_features: Callable[[], None] = lambda: None,
    group: ProcessGroup | None = None,
    label: str = "",
) -> None:
    """Train a model; the callbacks are called after every step and epoch, and may raise to stop.

    ``resume`` is a snapshot of a callback. All random numbers are functions of the seed
    and the step, so a resumed run equals one that was never interrupted.
    """
    group = SingleProcess() if group is None else group
    steps = loader.steps_per_epoch
    if resume is None or not _fits(model, resume):
        model.begin_fit(context)  # it may build modules
        model.to(device)
    loop = _Loop(model, config, steps, device, group)
    if resume is not None:
        loop.restore(resume)
        forget_features()
    done = loop.epoch * steps + len(loop.history)
    bar = tqdm(
        total=config.epochs * steps,
        initial=done,
        desc=label,
        unit="step",
        disable=None if group.is_main else True,
        leave=False,
    )
    with bar:
        for epoch in range(loop.epoch, config.epochs):
            clock = Clock(epoch, epoch * steps, config.epochs, steps, seed)
            if loop.weights is None:
                loop.weights = model.begin_epoch(clock, context)
                group.broadcast([loop.weights, *trained_state(model).values()])
            lr = loop.set_learning_rate(epoch, clock)
            model.train()
            model.backbone.eval()
            first = len(loop.history)
            batches = itertools.islice(loader.epoch(epoch, loop.weights), first, None)
            for number, batch in enumerate(batches, start=first):
                clock = Clock(epoch, epoch * steps + number, config.epochs, steps, seed)
                if model.has_phases:
                    lr = loop.set_learning_rate(epoch, clock)
                loop.step(batch.to(device), clock)
                bar.update()
                on_step(StepEvent(clock, loop.history[-1], loop.snapshot))
            model.eval()
            forget_features()
            terms, diagnostics = loop.end_epoch()
            bar.set_postfix(epoch=epoch + 1, loss=f"{sum(terms.values()):.3f}", refresh=False)
            on_epoch(EpochEvent(epoch, lr, terms, diagnostics, loop.snapshot))
    loop.train_only(None)
    check_finite_weights(model)


def _fits(model: Composed, snapshot: Snapshot) -> bool:
    """Return whether the model has the parameters and buffers of a snapshot."""
    now, then = trained_state(model), snapshot["model"]
    return now.keys() == then.keys() and all(now[n].shape == then[n].shape for n in now)


@dataclass
class _Loop:
    """A model in training, and its progress."""

    model: Composed
    config: TrainConfig
    steps: int  # in an epoch
    device: torch.device
    group: ProcessGroup
    epoch: int = 0
    weights: Tensor | None = None  # sampling weights of the current epoch; None before its start
    history: list[dict[str, Tensor]] = field(default_factory=list)  # terms of the epoch's steps
    watched: list[dict[str, Tensor]] = field(default_factory=list)  # their diagnostics
    trained: tuple[str, ...] | None = None  # the parts that the current phase trains; None: all

    def __post_init__(self) -> None:
        self.names = list(trained_state(self.model))
        self.trainable = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.optimizer = make_optimizer(self.model, self.config)
        self.mixed = mixed_precision(self.config, self.device)
        # bfloat16 has the range of float32 and needs no scaling
        scaled = self.mixed is torch.float16
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=scaled)

    def set_learning_rate(self, epoch: int, clock: Clock) -> float:
        """Set the rate of an epoch and phase in all groups and return it."""
        lr = learning_rate(self.config, epoch)
        if self.model.has_phases:
            phase = self.model.phase(clock)
            self.train_only(phase.train, phase.name)
            lr *= phase.lr
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["scale"]
        return lr

    def train_only(self, parts: tuple[str, ...] | None, phase: str = "") -> None:
        """Freeze all but some parts of the method; None lets everything be trained again.

        What is frozen has no gradient, so that neither momentum nor weight decay moves it.
        """
        if parts == self.trained:
            return
        chosen = trained_parts(self.model, self.trainable, parts, phase)
        for name, parameter in self.trainable.items():
            parameter.requires_grad_(name in chosen)
            parameter.grad = None
        self.trained = parts

    def step(self, batch: Batch, clock: Clock) -> None:
        """Make one step."""
        with autocast(self.device, self.mixed):
            step = self.model.step(batch, clock)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(step.loss).backward()
        self.group.all_reduce_mean(self.model.parameters())
        self.scaler.step(self.optimizer)
        self.scaler.update()
        with torch.no_grad():
            self.model.after_step(batch, step, clock)
        self.history.append({name: term.detach() for name, term in step.terms.items()})
        self.watched.append({name: value.detach() for name, value in step.diagnostics.items()})

    def end_epoch(self) -> tuple[dict[str, float], dict[str, float]]:
        """Close the epoch and return the means of its terms and diagnostics."""
        names, table, others, seen = self.checked_history()
        self.epoch, self.weights, self.history, self.watched = self.epoch + 1, None, [], []
        means = dict(zip(others, seen.nanmean(0).tolist(), strict=True))
        known = {name: mean for name, mean in means.items() if not math.isnan(mean)}
        return dict(zip(names, table.mean(0).tolist(), strict=True)), known

    def checked_history(self) -> tuple[list[str], Tensor, list[str], Tensor]:
        """Return terms and diagnostics of the epoch's steps; raise if a term is not finite."""
        names, table, others, seen = tabulate_both(self.history, self.watched)
        check_finite(names, table, first_step=self.epoch * self.steps)
        return names, table, others, seen

    def snapshot(self) -> Snapshot:
        """Return all that the rest of the run depends on."""
        names, table, others, seen = self.checked_history()
        return {
            "epoch": self.epoch,
            "weights": self.weights,
            "terms": names,
            "history": table,
            "diagnostics": others,
            "watched": seen,
            "model": self.state(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def state(self) -> dict[str, Tensor]:
        """Return what the model owns, also what the current phase does not train."""
        state = self.model.state_dict()
        return {name: state[name] for name in self.names}

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot."""
        if set(self.names) != set(snapshot["model"]):
            raise ValueError("the checkpoint holds other parameters than the model")
        self.model.load_state_dict(snapshot["model"], strict=False)
        fused = [group["fused"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(snapshot["optimizer"])
        for group, own in zip(self.optimizer.param_groups, fused, strict=True):
            group["fused"] = own  # the checkpoint may come from another device
        fill_momentum(self.optimizer)
        if snapshot["scaler"]:  # empty if the run began without scaling, as on a CPU
            self.scaler.load_state_dict(snapshot["scaler"])
        self.epoch, self.weights = int(snapshot["epoch"]), snapshot["weights"]
        rows = snapshot["history"].to(self.device)
        self.history = [dict(zip(snapshot["terms"], row, strict=True)) for row in rows]
        seen = snapshot["watched"].to(self.device)
        self.watched = [dict(zip(snapshot["diagnostics"], row, strict=True)) for row in seen]


def trained_parts(
    model: Composed,
    trainable: Mapping[str, nn.Parameter],
    parts: tuple[str, ...] | None,
    phase: str,
) -> frozenset[str]:
    """Return the names of the parameters that a phase trains: some parts, and all of techniques."""
    if parts is None:
        return frozenset(trainable)
    chosen = {name for name in trainable if not name.startswith("method.")}
    for part in parts:
        try:
            found = attrgetter(part)(model.method)
        except AttributeError:
            found = None
        if not isinstance(found, nn.Module | nn.Parameter):
            raise UserError(f"phase {phase!r} trains {part!r}, but the method has no such part")
        members = found.parameters() if isinstance(found, nn.Module) else [found]
        same = {id(member) for member in members}
        chosen |= {name for name, parameter in trainable.items() if id(parameter) in same}
    return frozenset(chosen)


def tabulate(history: list[dict[str, Tensor]]) -> tuple[list[str], Tensor]:
    """Return the terms of some steps as names and a table (steps, terms), in one transfer."""
    names, table, _, _ = tabulate_both(history, [])
    return names, table


def tabulate_both(
    history: list[dict[str, Tensor]], watched: list[dict[str, Tensor]]
) -> tuple[list[str], Tensor, list[str], Tensor]:
    """Return terms and diagnostics of some steps as names and tables, all in one transfer.

    A term that a step does not have counts as zero; a diagnostic is not a number there.
    """
    names, others = (
        list(dict.fromkeys(name for values in rows for name in values))
        for rows in (history, watched)
    )
    if not names:
        return [], torch.zeros(len(history), 0), [], torch.zeros(len(history), 0)
    zero = next(iter(history[0].values())).new_zeros((), dtype=torch.float32)
    nan = torch.full_like(zero, math.nan)
    watched = watched or [{} for _ in history]
    rows = [
        torch.stack([_at(t, n, zero) for n in names] + [_at(d, n, nan) for n in others])
        for t, d in zip(history, watched, strict=True)
    ]
    table = torch.stack(rows).cpu()
    return names, table[:, : len(names)].contiguous(), others, table[:, len(names) :]


def _at(values: dict[str, Tensor], name: str, missing: Tensor) -> Tensor:
    return values[name].float() if name in values else missing


def check_finite_weights(model: nn.Module) -> None:
    """Raise if weights are not finite after the last update, which no loss has checked."""
    for name, value in trained_state(model).items():
        if value.is_floating_point() and not value.isfinite().all():
            raise Diverged(
                f"{name} is not finite after the last step; a lower train.lr is the usual remedy"
            )


def check_finite(names: list[str], table: Tensor, *, first_step: int) -> None:
    """Raise if a term is not finite, naming the step and its terms."""
    bad = (~table.isfinite()).any(1).nonzero().flatten()
    if len(bad):
        row = int(bad[0])
        values = ", ".join(f"{n} {v:.4g}" for n, v in zip(names, table[row].tolist(), strict=True))
        raise Diverged(
            f"the loss is not finite at step {first_step + row} ({values}); "
            "a lower train.lr is the usual remedy"
        )
