"""Probe: two large and two small crops of every image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from gcdbench.plugin import (
    Backbone,
    Batch,
    Clock,
    CosineClassifier,
    Method,
    Step,
    Task,
    cross_entropy_on,
    soft_cross_entropy,
)


class ProbeCrops(Method):
    # --8<-- [start:views]
    views: ClassVar[tuple[str, ...]] = ("plain", "plain", "small", "small")
    # --8<-- [end:views]
    provides: ClassVar[frozenset[str]] = frozenset({"logits"})

    @dataclass(frozen=True)
    class Config:
        temperature: float = 0.1  # ours

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        generator = task.generator("heads")
        self.classifier = CosineClassifier(backbone.dim, task.num_classes, generator=generator)

    def step(self, batch: Batch, clock: Clock) -> Step:
        # --8<-- [start:step]
        features = self.encode(batch).cls  # (4B, d): both large views, then both small ones
        logits = self.classify(features)
        large, small = logits.tensor_split([2 * len(batch)])
        targets = large.detach().softmax(1)
        # --8<-- [end:step]
        terms = {
            "classify": cross_entropy_on(logits, batch.per_view(batch.labels)),
            "agree": soft_cross_entropy(small, targets).mean(),
        }
        return Step(terms, features, logits)

    def classify(self, features: Tensor) -> Tensor:
        return self.classifier(features) / self.config.temperature
