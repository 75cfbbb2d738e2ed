"""Probe: two trained blocks, Nesterov, own groups, a memory and a diagnostic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gcdbench.plugin import (
    Backbone,
    Batch,
    Clock,
    CosineClassifier,
    Method,
    Step,
    Task,
    cross_entropy_on,
    mean_entropy_deficit,
)


class ProbeBlocks(Method):
    # --8<-- [start:needs]
    train_blocks: ClassVar[int] = 2
    train_defaults: ClassVar[dict[str, Any]] = {"optimizer": "nesterov"}
    # --8<-- [end:needs]
    provides: ClassVar[frozenset[str]] = frozenset({"logits"})

    seen: Tensor

    @dataclass(frozen=True)
    class Config:
        temperature: float = 0.1  # ours

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        generator = task.generator("heads")
        self.classifier = CosineClassifier(backbone.dim, task.num_classes, generator=generator)
        self.register_buffer("seen", torch.zeros(len(task.labels), backbone.dim))

    # --8<-- [start:groups]
    def param_groups(self) -> Iterable[tuple[Iterable[nn.Parameter], float]]:
        yield [p for p in self.backbone.parameters() if p.requires_grad], 0.1
        yield self.classifier.parameters(), 1.0

    # --8<-- [end:groups]

    # --8<-- [start:memory]
    def after_step(self, batch: Batch, step: Step, clock: Clock) -> None:
        self.seen[batch.index] = step.features[: len(batch)].detach().to(self.seen)

    # --8<-- [end:memory]

    def step(self, batch: Batch, clock: Clock) -> Step:
        features = self.encode(batch).cls
        logits = self.classify(features)
        terms = {
            "classify": cross_entropy_on(logits, batch.per_view(batch.labels)),
            "entropy": mean_entropy_deficit(logits, temperature=1.0),
        }
        # --8<-- [start:diagnostics]
        moved = features[: len(batch)].detach() - self.seen[batch.index]
        return Step(terms, features, logits, diagnostics={"moved": moved.norm(dim=1).mean()})
        # --8<-- [end:diagnostics]

    def classify(self, features: Tensor) -> Tensor:
        return self.classifier(features) / self.config.temperature
