"""Probe: the classifier alone at first, then everything at half the rate."""

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
    Phase,
    Step,
    Task,
    cross_entropy_on,
    mean_entropy_deficit,
)


class ProbePhases(Method):
    provides: ClassVar[frozenset[str]] = frozenset({"logits"})

    @dataclass(frozen=True)
    class Config:
        temperature: float = 0.1  # ours

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        generator = task.generator("heads")
        self.classifier = CosineClassifier(backbone.dim, task.num_classes, generator=generator)

    # --8<-- [start:phase]
    def phase(self, clock: Clock) -> Phase:
        if clock.epoch < clock.epochs // 2:
            return Phase("warm-up", train=("classifier",))
        return Phase("discovery", lr=0.5)

    # --8<-- [end:phase]

    def step(self, batch: Batch, clock: Clock) -> Step:
        features = self.encode(batch).cls
        logits = self.classify(features)
        terms = {
            "classify": cross_entropy_on(logits, batch.per_view(batch.labels)),
            "entropy": mean_entropy_deficit(logits, temperature=1.0),
        }
        return Step(terms, features, logits)

    def classify(self, features: Tensor) -> Tensor:
        return self.classifier(features) / self.config.temperature
