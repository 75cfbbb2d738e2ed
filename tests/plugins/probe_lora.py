"""Probe: low-rank updates of the last two blocks, trained with AdamW."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from gcdbench.plugin import (
    Backbone,
    Batch,
    Clock,
    CosineClassifier,
    LoRA,
    Method,
    Step,
    Task,
    cross_entropy_on,
    mean_entropy_deficit,
)


class ProbeLora(Method):
    # --8<-- [start:needs]
    train_blocks: ClassVar[int] = 0
    train_defaults: ClassVar[dict[str, Any]] = {"optimizer": "adamw", "weight_decay": 0.05}
    # --8<-- [end:needs]
    provides: ClassVar[frozenset[str]] = frozenset({"logits"})

    @dataclass(frozen=True)
    class Config:
        temperature: float = 0.1  # ours

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        generator = task.generator("heads")
        self.classifier = CosineClassifier(backbone.dim, task.num_classes, generator=generator)
        # --8<-- [start:adapter]
        depth = backbone.num_blocks - 2
        backbone.adapt(LoRA(rank=2, depth=depth, generator=task.generator("lora")))
        # --8<-- [end:adapter]

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
