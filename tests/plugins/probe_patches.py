"""Probe: patch tokens, pooled, are the feature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from gcdbench.plugin import (
    Backbone,
    Batch,
    Clock,
    CosineClassifier,
    Encoded,
    Method,
    Step,
    Task,
    cross_entropy_on,
    mean_entropy_deficit,
)


class ProbePatches(Method):
    # --8<-- [start:needs]
    requires: ClassVar[frozenset[str]] = frozenset({"patches"})
    # --8<-- [end:needs]
    provides: ClassVar[frozenset[str]] = frozenset({"logits"})

    @dataclass(frozen=True)
    class Config:
        temperature: float = 0.1  # ours

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        generator = task.generator("heads")
        self.classifier = CosineClassifier(backbone.dim, task.num_classes, generator=generator)

    # --8<-- [start:encode]
    def encode(self, batch: Batch) -> Encoded:
        encoded = super().encode(batch)
        assert encoded.patches is not None
        return Encoded((encoded.cls + encoded.patches.mean(1)) / 2)

    # --8<-- [end:encode]

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
