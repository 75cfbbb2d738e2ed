"""CL: curriculum learning, the easiest unlabelled images first (Bengio et al., ICML 2009).

The HiLo paper names it without details; everything here is ours. The farther an image's pretrained
feature is from the nearest mean of a labelled class, the harder the image. The admitted share of
easiest images grows linearly; labelled images always have half of the sampling weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.plugin import UNLABELLED, Clock, FitContext, Model, Task, Technique


class CL(Technique):
    paper: ClassVar[str] = "Curriculum Learning, ICML 2009"
    sweeps: ClassVar[str] = "fit"

    @dataclass(frozen=True)
    class Config:
        start: float = 0.3  # share of unlabelled images at first, ours
        until: float = 0.5  # share of the run after which all are admitted, ours

    rank: Tensor

    def __init__(self, config: Any, task: Task, model: Model) -> None:
        super().__init__(config, task, model)
        self.register_buffer("rank", torch.zeros(len(task.labels)))  # 0 easiest, below 1

    def begin_fit(self, model: Model, context: FitContext) -> None:
        pool = context.compute_features()
        features = F.normalize(pool.features.float(), dim=1)
        labels = pool.labels[pool.labelled]
        means = [features[pool.labelled][labels == c].mean(0) for c in labels.unique()]
        if not means or not len(pool.unlabelled):
            return
        nearest = torch.cdist(features[pool.unlabelled], torch.stack(means)).amin(1)
        rank = nearest.argsort(stable=True).argsort().float() / len(nearest)
        hidden = (self.task.labels == UNLABELLED).to(self.rank.device)
        self.rank[hidden] = rank.to(self.rank)

    def weights(self, weights: Tensor, clock: Clock, context: FitContext) -> Tensor:
        c, hidden = self.config, self.task.labels == UNLABELLED
        progress = clock.epoch / max(c.until * clock.epochs, 1)
        share = min(1.0, c.start + (1 - c.start) * progress)
        admitted = torch.where(self.rank.cpu() < share, weights, 0.0)
        mass = weights[hidden].sum() / admitted[hidden].sum().clamp(min=1e-12)
        return torch.where(hidden, admitted * mass, weights)
