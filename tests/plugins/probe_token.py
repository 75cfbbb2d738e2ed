"""Probe: a token that enters the last block, and weights of its own for sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gcdbench.plugin import (
    AddedTokens,
    Backbone,
    Batch,
    Clock,
    CosineClassifier,
    EpochPlan,
    FitContext,
    Method,
    Step,
    Task,
    cross_entropy_on,
    mean_entropy_deficit,
)


class ProbeToken(Method):
    provides: ClassVar[frozenset[str]] = frozenset({"logits"})

    @dataclass(frozen=True)
    class Config:
        temperature: float = 0.1  # ours

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        generator = task.generator("heads")
        self.classifier = CosineClassifier(backbone.dim, task.num_classes, generator=generator)
        # --8<-- [start:adapter]
        value = 0.1 * torch.randn(1, backbone.dim, generator=task.generator("token"))
        backbone.adapt(AddedTokens(value, depth=backbone.num_blocks - 1))
        backbone.final_norm = False
        # --8<-- [end:adapter]

    # --8<-- [start:sampling]
    def begin_epoch(self, clock: Clock, context: FitContext) -> EpochPlan:
        views = context.compute_views("plain", 2, clock.epoch)
        apart = (views[0] - views[1]).norm(dim=1).double()
        return EpochPlan(weights=(apart + apart.mean()).cpu())

    # --8<-- [end:sampling]

    def step(self, batch: Batch, clock: Clock) -> Step:
        encoded = self.encode(batch)
        assert encoded.added is not None
        features, logits = encoded.cls, self.classify(encoded.cls)
        labels = batch.per_view(batch.labels)
        terms = {
            "classify": cross_entropy_on(logits, labels),
            "token": cross_entropy_on(self.classify(encoded.added[:, 0]), labels),
            "entropy": mean_entropy_deficit(logits, temperature=1.0),
        }
        return Step(terms, features, logits)

    def classify(self, features: Tensor) -> Tensor:
        return self.classifier(features) / self.config.temperature
