"""The only training loop."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from tqdm import tqdm

from gcdbench.compose import Composed
from gcdbench.method import Batch, Clock, Services
from gcdbench.settings import TrainConfig

log = logging.getLogger(__name__)


class Batches(Protocol):
    """What the loop needs of a loader."""

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""

    def epoch(self, epoch: int, weights: Tensor) -> Iterator[Batch]:
        """Yield the batches of an epoch."""


class Diverged(RuntimeError):
    """The loss of a step is not finite."""


@dataclass(frozen=True)
class Progress:
    """What is known at the end of an epoch."""

    epoch: int
    lr: float
    terms: dict[str, float]  # mean over the epoch's steps
    state: Callable[[], dict[str, Any]]  # makes the snapshot that ``train`` can go on from


def learning_rate(config: TrainConfig, epoch: int) -> float:
    """Return the learning rate of a 0-based epoch: linear warm-up, then a cosine.

    The cosine starts at the end of the warm-up and would reach its floor one epoch after the last.
    """
    floor = config.lr * config.min_lr_share
    warmup = config.warmup_epochs
    if epoch < warmup:
        return floor + (config.lr - floor) * epoch / max(warmup - 1, 1)
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
    return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)


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
    services: Services,
    *,
    seed: int,
    device: torch.device,
    resume: dict[str, Any] | None = None,
    on_epoch: Callable[[Progress], None] | None = None,
    forget_sweep: Callable[[], None] = lambda: None,
    label: str = "",
) -> None:
    """Train a model; ``on_epoch`` hears of every epoch, ``resume`` is a snapshot it was given."""
    optimizer = make_optimizer(model, config)
    scaler = torch.amp.GradScaler(device.type, enabled=config.amp and device.type == "cuda")
    first = 0
    if resume is None:
        model.begin_fit(services)
    else:
        first = _restore(resume, model, optimizer, scaler)

    steps = loader.steps_per_epoch
    total = (config.epochs - first) * steps
    with tqdm(total=total, desc=label, unit="step", disable=None, leave=False) as bar:
        for epoch in range(first, config.epochs):
            lr = learning_rate(config, epoch)
            for group in optimizer.param_groups:
                group["lr"] = lr * group["scale"]
            clock = Clock(epoch, epoch * steps, config.epochs, steps, seed)
            weights = model.begin_epoch(clock, services)
            model.train()
            model.backbone.eval()
            history: list[dict[str, Tensor]] = []
            for number, batch in enumerate(loader.epoch(epoch, weights)):
                clock = Clock(epoch, epoch * steps + number, config.epochs, steps, seed)
                history.append(_step(model, batch.to(device), clock, optimizer, scaler))
                bar.update()
            model.eval()
            forget_sweep()
            terms = _mean_terms(history, clock.step + 1 - len(history))
            bar.set_postfix(epoch=epoch + 1, loss=f"{sum(terms.values()):.3f}", refresh=False)
            if on_epoch is not None:
                state = _snapshot_maker(epoch, model, optimizer, scaler)
                on_epoch(Progress(epoch, lr, terms, state))


def _step(
    model: Composed,
    batch: Batch,
    clock: Clock,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> dict[str, Tensor]:
    with torch.autocast(batch.labels.device.type, enabled=scaler.is_enabled()):
        step = model.step(batch, clock)
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(step.loss).backward()
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        model.after_step(batch, step, clock)
    return {name: term.detach() for name, term in step.terms.items()}


def _mean_terms(history: list[dict[str, Tensor]], first_step: int) -> dict[str, float]:
    """Average the terms of an epoch; this is its only transfer from the device."""
    names = list(dict.fromkeys(name for terms in history for name in terms))
    table = torch.stack(
        [torch.stack([t[n].float() if n in t else torch.zeros(()) for n in names]) for t in history]
    ).cpu()
    bad = (~table.isfinite()).any(1).nonzero().flatten()
    if len(bad):
        row = int(bad[0])
        values = ", ".join(f"{n} {v:.4g}" for n, v in zip(names, table[row].tolist(), strict=True))
        raise Diverged(
            f"the loss is not finite at step {first_step + row} ({values}); "
            "a lower train.lr is the usual remedy"
        )
    return dict(zip(names, table.mean(0).tolist(), strict=True))


def _snapshot_maker(
    epoch: int,
    model: Composed,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> Callable[[], dict[str, Any]]:
    def snapshot() -> dict[str, Any]:
        return {
            "next_epoch": epoch + 1,
            "model": trained_state(model),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
        }

    return snapshot


def _restore(
    snapshot: dict[str, Any],
    model: Composed,
    optimizer: torch.optim.Optimizer,
    scaler: torch.amp.GradScaler,
) -> int:
    expected = set(trained_state(model))
    if expected != set(snapshot["model"]):
        raise ValueError("the checkpoint holds other parameters than the model")
    model.load_state_dict(snapshot["model"], strict=False)
    optimizer.load_state_dict(snapshot["optimizer"])
    scaler.load_state_dict(snapshot["scaler"])
    return int(snapshot["next_epoch"])
