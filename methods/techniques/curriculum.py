"""Curriculum sampling: first the labelled domain, then more of the others (HiLo, ICLR 2025).

Before training, the unlabelled images are split by a semi-supervised 2-means of the CLS token
behind an early block of the pretrained backbone: D^a is the cluster of the labelled images, D^b the
rest. D^a is always drawn as often as the labelled images D^l; the weight of D^b changes once.
The weight files that the authors released mark images at random for CUB-C and Scars-C, and only
20.6 % of those marked for FGVC-C are of the labelled domain: they are not used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gcdbench.plugin import (
    UNLABELLED,
    Clock,
    FitContext,
    Model,
    Task,
    Technique,
    semi_supervised_kmeans,
)


class Curriculum(Technique):
    paper: ClassVar[str] = "https://arxiv.org/abs/2408.04591"
    sweeps: ClassVar[str] = "fit"

    @dataclass(frozen=True)
    class Config:
        preset: Literal["ssb-c", "domainnet", "released"] = "ssb-c"  # paper; by the suite's domains
        start: float | None = 0.0  # weight of D^b at first, r0 of the paper; None: |D^l| / |D^b|
        late: float | None = 0.05  # weight of D^b after the switch, r' of the paper
        switch: float = 0.4  # share of the run, paper: t' = 80 of 200 epochs
        block: int = 1  # ours: where HiLo reads its domain feature; the paper says DINO features
        kmeans_init: int = 10  # restarts, ours
        kmeans_iter: int = 100  # ours

        presets: ClassVar[dict[str, dict[str, Any]]] = {
            "domainnet": {"start": None, "late": 1.0},  # paper
            "released": {"start": 0.05, "late": 0.0},  # the other way round
        }

    shifted: Tensor

    def __init__(self, config: Any, task: Task, model: Model) -> None:
        super().__init__(config, task, model)
        model.backbone.tap(config.block)
        self.register_buffer("shifted", torch.zeros(len(task.labels), dtype=torch.bool))

    def begin_fit(self, model: Model, context: FitContext) -> None:
        """Find D^b among the unlabelled images of the pool."""
        c, hidden = self.config, self.task.labels == UNLABELLED
        if hidden.all() or not hidden.any():
            return
        pool = context.compute_features()
        features = pool.taps[c.block]
        found = semi_supervised_kmeans(
            features[pool.unlabelled],
            features[pool.labelled],
            torch.zeros(len(pool.labelled)),
            2,
            seed=self.task.seed,
            n_init=c.kmeans_init,
            max_iter=c.kmeans_iter,
            normalise=True,
        )
        self.shifted[hidden.to(self.shifted.device)] = found.labels.to(self.shifted.device) == 1

    def weights(self, weights: Tensor, clock: Clock, context: FitContext) -> Tensor:
        """Weigh labelled images 1, D^a by |D^l| / |D^a|, and D^b by the time."""
        c, labelled = self.config, (self.task.labels != UNLABELLED).to(weights.device)
        if not labelled.any():
            return weights
        shifted = self.shifted.to(weights.device)
        chosen = c.late if clock.epoch > round(c.switch * clock.epochs) else c.start
        near, far = (
            labelled.sum().to(weights) / part.sum().clamp(min=1)
            for part in (~labelled & ~shifted, shifted)
        )
        far = far if chosen is None else torch.full_like(far, chosen)
        return torch.where(labelled, torch.ones_like(near), torch.where(shifted, far, near))
