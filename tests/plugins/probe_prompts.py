"""Probe: prompts at every block of a frozen backbone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gcdbench.plugin import (
    Backbone,
    Batch,
    Clock,
    CosineClassifier,
    DeepPrompts,
    Method,
    Step,
    Task,
    cross_entropy_on,
    mean_entropy_deficit,
)


class ProbePrompts(Method):
    train_blocks: ClassVar[int] = 0
    provides: ClassVar[frozenset[str]] = frozenset({"logits"})

    @dataclass(frozen=True)
    class Config:
        temperature: float = 0.1  # ours

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        generator = task.generator("heads")
        self.classifier = CosineClassifier(backbone.dim, task.num_classes, generator=generator)
        # --8<-- [start:adapter]
        blocks = backbone.num_blocks
        value = 0.1 * torch.randn(blocks, 2, backbone.dim, generator=task.generator("prompts"))
        backbone.adapt(DeepPrompts(value))
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
