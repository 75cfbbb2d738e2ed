"""NWD: nuclear-norm discrepancy of labelled and unlabelled images (Chen et al., CVPR 2022).

The classifier maximises the discrepancy; the features minimise it through a gradient reversal whose
strength grows slowly. Official: formula, weight and warm-up. Ours: both sides have the same number
of rows, drawn at random, because nuclear norms do not grow in proportion to the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gcdbench.plugin import (
    Batch,
    Clock,
    Model,
    Step,
    Technique,
    image_pairs,
    nuclear_discrepancy,
    reverse_gradient,
    warm_start,
)


class NWD(Technique):
    paper: ClassVar[str] = "https://arxiv.org/abs/2203.14643"
    requires: ClassVar[frozenset[str]] = frozenset({"logits"})

    @dataclass(frozen=True)
    class Config:
        weight: float = 1.0  # official
        warmup: int = 1000  # steps, official

    def terms(self, model: Model, batch: Batch, step: Step, clock: Clock) -> dict[str, Tensor]:
        c, generator = self.config, clock.generator("nwd")
        order = batch.cpu_order
        pairs = image_pairs(batch.cpu_labelled[order], generator=generator)
        source, target = (batch.here(batch.in_views(order[rows])) for rows in pairs)
        strength = warm_start(clock.step, length=c.warmup)
        posteriors = model.classify(reverse_gradient(step.features, strength)).softmax(1)
        discrepancy = nuclear_discrepancy(posteriors[source], posteriors[target])
        return {"discrepancy": -c.weight * discrepancy}
