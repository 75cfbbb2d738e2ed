"""Probe: an image added to all images, trained in turns with block and head."""

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
    Method,
    Phase,
    PixelPrompt,
    Step,
    Task,
    cross_entropy_on,
    mean_entropy_deficit,
)


class ProbePixels(Method):
    provides: ClassVar[frozenset[str]] = frozenset({"logits"})

    @dataclass(frozen=True)
    class Config:
        temperature: float = 0.1  # ours

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        generator = task.generator("heads")
        self.classifier = CosineClassifier(backbone.dim, task.num_classes, generator=generator)
        # --8<-- [start:adapter]
        side = backbone.image_size
        value = torch.randn(3, side, side, generator=task.generator("prompt"))
        self.prompt = PixelPrompt(value)
        backbone.adapt(self.prompt)
        # --8<-- [end:adapter]

    def phase(self, clock: Clock) -> Phase:
        if clock.step % 2 == 0:
            return Phase("prompt", train=("prompt",), lr=10.0)
        return Phase("classifier", train=("backbone.vit", "classifier"))

    def step(self, batch: Batch, clock: Clock) -> Step:
        # --8<-- [start:without]
        prompted = self.encode(batch.only(0)).cls
        with self.backbone.without(self.prompt):
            plain = self.encode(batch.only(1)).cls
        # --8<-- [end:without]
        features = torch.cat([prompted, plain])
        logits = self.classify(features)
        terms = {
            "classify": cross_entropy_on(logits, batch.per_view(batch.labels)),
            "entropy": mean_entropy_deficit(logits, temperature=1.0),
        }
        return Step(terms, features, logits)

    def classify(self, features: Tensor) -> Tensor:
        return self.classifier(features) / self.config.temperature
