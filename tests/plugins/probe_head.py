"""Probe: a second head whose size is found before training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from gcdbench.plugin import (
    Backbone,
    Batch,
    Clock,
    CosineClassifier,
    FitContext,
    Method,
    Step,
    Task,
    cross_entropy_on,
    mean_entropy_deficit,
)


class ProbeHead(Method):
    provides: ClassVar[frozenset[str]] = frozenset({"logits"})

    @dataclass(frozen=True)
    class Config:
        temperature: float = 0.1  # ours

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        generator = task.generator("heads")
        self.classifier = CosineClassifier(backbone.dim, task.num_classes, generator=generator)

    # --8<-- [start:begin_fit]
    def begin_fit(self, context: FitContext) -> None:
        features = context.compute_features().features
        clusters = int((features.std(0) > 0).sum()) % 5 + 3  # some number that needs the features
        generator = self.task.generator("second head")
        self.second = CosineClassifier(self.backbone.dim, clusters, generator=generator)

    # --8<-- [end:begin_fit]

    def step(self, batch: Batch, clock: Clock) -> Step:
        features = self.encode(batch).cls
        logits, others = self.classify(features), self.second(features) / self.config.temperature
        terms = {
            "classify": cross_entropy_on(logits, batch.per_view(batch.labels)),
            "entropy": mean_entropy_deficit(logits, temperature=1.0),
            "second": mean_entropy_deficit(others, temperature=1.0),
        }
        return Step(terms, features, logits)

    def classify(self, features: Tensor) -> Tensor:
        return self.classifier(features) / self.config.temperature
