"""The optimiser and its learning rate."""

from __future__ import annotations

import math

import torch

from gcdbench.core.settings import TrainConfig
from gcdbench.training.compose import Composed


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


def make_optimizer(model: Composed, config: TrainConfig) -> torch.optim.Optimizer:
    """Return the optimiser, one group per learning-rate multiplier and weight-decay rule."""
    groups = []
    for params, scale in model.param_groups():
        flat = [p for p in params if p.ndim < 2 and config.decay == "matrices"]
        decayed = [p for p in params if not any(p is q for q in flat)]
        for members, decay in ((decayed, config.weight_decay), (flat, 0.0)):
            if members:
                groups.append({"params": members, "weight_decay": decay, "scale": scale})
    fused = any(p.is_cuda for p in model.parameters())  # one launch, and no wait for the scaler
    if config.optimizer == "adamw":
        betas = (config.momentum, 0.999)
        return torch.optim.AdamW(groups, lr=config.lr, betas=betas, fused=fused or None)
    made = torch.optim.SGD(
        groups,
        lr=config.lr,
        momentum=config.momentum,
        nesterov=config.optimizer == "nesterov",
        fused=fused or None,
    )
    fill_momentum(made)
    return made


def fill_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Let the momentum of a fused optimiser begin with zeros where it has not begun.

    Torch leaves it uninitialised in a first step that is skipped because a scaled gradient is not
    finite, and the second step would take it for numbers.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group["fused"] and group.get("momentum") else ():
            optimizer.state[parameter].setdefault("momentum_buffer", torch.zeros_like(parameter))


def mixed_precision(config: TrainConfig, device: torch.device) -> torch.dtype | None:
    """Return the type of matrix products under autocast; None without it."""
    if device.type != "cuda" or config.precision == "float32":
        return None
    return torch.bfloat16 if config.precision == "bfloat16" else torch.float16
