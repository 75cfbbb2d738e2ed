"""The training loop of all methods."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from tqdm import tqdm

from gcdbench.core.settings import TrainConfig
from gcdbench.nn.parallel import ProcessGroup, SingleProcess
from gcdbench.training.compose import Composed
from gcdbench.training.features.trunk import autocast
from gcdbench.training.method import Batch, Clock, FitContext

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


def learning_rate(config: TrainConfig, epoch: int) -> float:
    """Return the learning rate of a 0-based epoch: linear warm-up, then a cosine or one step.

    The cosine starts at the end of the warm-up and would reach its floor one epoch after the last.
    The step is at 170 of 200 epochs, and there in proportion for other lengths.
    """
    floor = config.lr * config.min_lr_share
    warmup = config.warmup_epochs
    if epoch < warmup:
        return floor + (config.lr - floor) * epoch / max(warmup - 1, 1)
    if config.schedule == "step":
        return config.lr * (0.1 if epoch >= round(0.85 * config.epochs) else 1.0)
    progress = (epoch - warmup) / max(config.epochs - warmup, 1)
    return floor + (config.lr - floor) * (1 + math.cos(math.pi * progress)) / 2


def make_optimizer(model: Composed, config: TrainConfig) -> torch.optim.SGD:
    """Return SGD with one group per learning-rate multiplier and weight-decay rule."""
    groups = []
    for params, scale in model.param_groups():
        flat = [p for p in params if p.ndim < 2 and config.decay == "matrices"]
        decayed = [p for p in params if not any(p is q for q in flat)]
        for members, decay in ((decayed, config.weight_decay), (flat, 0.0)):
            if members:
                groups.append({"params": members, "weight_decay": decay, "scale": scale})
    fused = any(p.is_cuda for p in model.parameters())  # one launch, and no wait for the scaler
    made = torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, fused=fused or None)
    fill_momentum(made)
    return made


def fill_momentum(optimizer: torch.optim.SGD) -> None:
    """Let the momentum of a fused optimiser begin with zeros where it has not begun.

    Torch leaves it uninitialised in a first step that is skipped because a scaled gradient is not
    finite, and the second step would take it for numbers.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["fused"] and group["momentum"] else ():
            optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))


def mixed_precision(config: TrainConfig, device: torch.device) -> torch.dtype | None:
    """Return the type of matrix products under autocast; None without it."""
    if device.type != "cuda" or config.precision == "float32":
        return None
    return torch.bfloat16 if config.precision == "bfloat16" else torch.float16


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """Return what training changes: trainable parameters and the buffers outside the backbone."""
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    state = model.state_dict()
    inside = ".backbone.vit."
    buffers = {name for name, _ in model.named_buffers() if inside in f".{name}"}
    return {name: value for name, value in state.items() if name not in frozen | buffers}


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
    loop = _Loop(model, config, steps, device, group)
    if resume is None:
        model.begin_fit(context)
    else:
        loop.restore(resume)
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
            lr = loop.set_learning_rate(epoch)
            model.train()
            model.backbone.eval()
            first = len(loop.history)
            batches = itertools.islice(loader.epoch(epoch, loop.weights), first, None)
            for number, batch in enumerate(batches, start=first):
                clock = Clock(epoch, epoch * steps + number, config.epochs, steps, seed)
                loop.step(batch.to(device), clock)
                bar.update()
                on_step(StepEvent(clock, loop.history[-1], loop.snapshot))
            model.eval()
            forget_features()
            terms, diagnostics = loop.end_epoch()
            bar.set_postfix(epoch=epoch + 1, loss=f"{sum(terms.values()):.3f}", refresh=False)
            on_epoch(EpochEvent(epoch, lr, terms, diagnostics, loop.snapshot))
    check_finite_weights(model)


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

    def __post_init__(self) -> None:
        self.optimizer = make_optimizer(self.model, self.config)
        self.mixed = mixed_precision(self.config, self.device)
        # bfloat16 has the range of float32 and needs no scaling
        scaled = self.mixed is torch.float16
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=scaled)

    def set_learning_rate(self, epoch: int) -> float:
        """Set the rate of an epoch in all groups and return it."""
        lr = learning_rate(self.config, epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["scale"]
        return lr

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
            "model": trained_state(self.model),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot."""
        if set(trained_state(self.model)) != set(snapshot["model"]):
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
