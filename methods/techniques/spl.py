"""SPL: self-paced learning, images are used once their loss is below a bound (Kumar et al., 2010).

The HiLo paper names it without details; everything here is ours. The loss of an unlabelled image is
the cross-entropy of its two views' predictions in its latest step. The bound starts at the median
of the first epoch and grows by a factor each epoch, until all images are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gcdbench.plugin import (
    UNLABELLED,
    Batch,
    Clock,
    FitContext,
    Model,
    Step,
    Task,
    Technique,
    last_of_same,
    soft_cross_entropy,
)


class SPL(Technique):
    paper: ClassVar[str] = "Self-Paced Learning for Latent Variable Models, NeurIPS 2010"
    requires: ClassVar[frozenset[str]] = frozenset({"logits"})

    @dataclass(frozen=True)
    class Config:
        growth: float = 1.15  # of the bound per epoch, ours; the literature has 1.05 to 1.3

    losses: Tensor
    bound: Tensor

    def __init__(self, config: Any, task: Task, model: Model) -> None:
        super().__init__(config, task, model)
        self.register_buffer("losses", torch.zeros(len(task.labels)))  # 0: not seen yet, so easy
        self.register_buffer("bound", torch.tensor(torch.inf))

    def weights(self, weights: Tensor, clock: Clock, context: FitContext) -> Tensor:
        losses, hidden = self.losses.cpu(), self.task.labels == UNLABELLED
        seen = hidden & (losses > 0)
        if clock.epoch == 1 and seen.any():
            self.bound.fill_(losses[seen].median())
        elif clock.epoch > 1:
            self.bound.mul_(self.config.growth)
        admitted = torch.where(losses <= self.bound.cpu(), weights, 0.0)
        mass = weights[hidden].sum() / admitted[hidden].sum().clamp(min=1e-12)
        return torch.where(hidden, admitted * mass, weights)

    def after_step(self, model: Model, batch: Batch, step: Step, clock: Clock) -> None:
        assert step.logits is not None
        first, second = step.logits.detach()[: 2 * len(batch)].chunk(2)
        losses = soft_cross_entropy(second, first.softmax(1)).to(self.losses)
        self.losses[batch.index] = losses[last_of_same(batch.index)]
