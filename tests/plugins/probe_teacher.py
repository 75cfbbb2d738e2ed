"""Probe: an EMA teacher by deep copy sees weak views, its student strong ones."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
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
    soft_cross_entropy,
)


class ProbeTeacher(Method):
    views: ClassVar[tuple[str, ...]] = ("weak", "strong")
    provides: ClassVar[frozenset[str]] = frozenset({"logits"})

    @dataclass(frozen=True)
    class Config:
        temperature: float = 0.1  # ours

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        generator = task.generator("heads")
        self.classifier = CosineClassifier(backbone.dim, task.num_classes, generator=generator)
        self.student_head = self.classifier
        # --8<-- [start:copies]
        self.teacher = copy.deepcopy(backbone).requires_grad_(False)
        self.teacher_head = copy.deepcopy(self.classifier).requires_grad_(False)
        # --8<-- [end:copies]

    def step(self, batch: Batch, clock: Clock) -> Step:
        # --8<-- [start:views]
        weak, strong = batch.only(0), batch.only(1)
        with torch.no_grad():
            targets = (self.classify(self.encode(weak).cls) / 0.5).softmax(1)
        # --8<-- [end:views]
        features = self.backbone(strong.images).cls
        logits = self.student_head(features) / self.config.temperature
        terms = {
            "distil": soft_cross_entropy(logits, targets).mean(),
            "classify": cross_entropy_on(logits, batch.labels),
        }
        return Step(terms, features, logits)

    # --8<-- [start:encode]
    def encode(self, batch: Batch) -> Encoded:
        return self.teacher(batch.images)

    # --8<-- [end:encode]

    def classify(self, features: Tensor) -> Tensor:
        return self.teacher_head(features) / self.config.temperature

    # --8<-- [start:follow]
    def after_step(self, batch: Batch, step: Step, clock: Clock) -> None:
        pairs = ((self.teacher, self.backbone), (self.teacher_head, self.student_head))
        for old, new in pairs:
            for kept, now in zip(old.parameters(), new.parameters(), strict=True):
                if kept is not now:  # the trunk is shared
                    kept.lerp_(now, 0.1)

    # --8<-- [end:follow]
