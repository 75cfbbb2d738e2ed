"""SFA: Gaussian noise on the features that the heads see (Li et al., ICCV 2021), simple form.

Only the abstract was available; the formula is a re-creation: f' = a f + b with a ~ N(1, s) and b
~ N(0, s) per entry, b in units of the features' running deviation. Evaluation sees clean features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gcdbench.plugin import Batch, Clock, Model, Step, Task, Technique


class SFA(Technique):
    paper: ClassVar[str] = "A Simple Feature Augmentation for Domain Generalization, ICCV 2021"

    @dataclass(frozen=True)
    class Config:
        scale_noise: float = 0.1  # deviation of a, ours
        shift_noise: float = 0.1  # deviation of b against the features', ours
        momentum: float = 0.9  # of the running deviation, ours

    deviation: Tensor

    def __init__(self, config: Any, task: Task, model: Model) -> None:
        super().__init__(config, task, model)
        self.register_buffer("deviation", torch.ones(model.backbone.dim))

    def features(self, features: Tensor, batch: Batch, clock: Clock) -> Tensor:
        c, generator = self.config, clock.generator("sfa")
        shape = (2, batch.num_views, len(batch), features.shape[1])
        noise = torch.randn(shape, generator=generator)[:, :, batch.cpu_order.argsort()]
        scale, shift = batch.here(noise.flatten(1, 2)).to(features.dtype)
        return (1 + c.scale_noise * scale) * features + c.shift_noise * self.deviation * shift

    def after_step(self, model: Model, batch: Batch, step: Step, clock: Clock) -> None:
        if len(step.features) > 1:
            now = step.features.detach().float().std(0)
            self.deviation.lerp_(now, 1 - self.config.momentum)
