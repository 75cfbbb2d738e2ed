"""Closer: the two views of an image should be similar."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gcdbench.plugin import Batch, Clock, Model, Step, Technique


class Closer(Technique):
    @dataclass(frozen=True)
    class Config:
        weight: float = 0.1  # ours

    def terms(self, model: Model, batch: Batch, step: Step, clock: Clock) -> dict[str, Tensor]:
        first, second = step.features.unflatten(0, (batch.num_views, -1))[:2]
        return {"gap": self.config.weight * (first - second).square().mean()}
