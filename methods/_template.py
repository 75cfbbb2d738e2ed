"""MyIdea: one line that says what the method does (Authors, venue year).

A few more lines: the idea, and what you decided where the paper leaves a choice. This file trains
as it is: a cosine classifier learns from the labels, and two views of an image are pulled
together.
"""

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
    ProjectionHead,
    Step,
    Task,
    cross_entropy_on,
    info_nce,
    mean_entropy_deficit,
)


class MyIdea(Method):
    # These attributes and Config's defaults must be literals: they are read without importing.
    paper: ClassVar[str] = ""
    train_defaults: ClassVar[dict[str, Any]] = {"lr": 0.05}  # see core/settings.py
    provides: ClassVar[frozenset[str]] = frozenset({"logits", "projection"})
    # Further needs, with their defaults; others are shown at the end of the file.
    views: ClassVar[tuple[str, ...]] = ("plain", "plain")  # kinds: plain, weak, strong, small
    train_blocks: ClassVar[int] = 1  # the last blocks of the backbone
    requires: ClassVar[frozenset[str]] = frozenset()  # patches: patch tokens; images: pixels

    @dataclass(frozen=True)
    class Config:
        temperature: float = 0.1  # where the default comes from: paper, released code, your choice
        contrast_weight: float = 1.0  # users change it with --set <name>.contrast_weight=0.5
        entropy_weight: float = 1.0  # ours
        hidden_dim: int = 512  # ours

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        generator = task.generator("heads")  # a cell is a function of its seed
        self.classifier = CosineClassifier(backbone.dim, task.num_classes, generator=generator)
        self.projector = ProjectionHead(
            backbone.dim, hidden_dim=config.hidden_dim, generator=generator
        )

    def step(self, batch: Batch, clock: Clock) -> Step:
        c = self.config
        labels = batch.per_view(batch.labels)  # (2B,), UNLABELLED where hidden; first views first
        features = self.encode(batch).cls  # (2B, d)
        logits = self.classify(features)
        terms = {  # named and weighted; the trainer adds them up and logs them
            "classify": cross_entropy_on(logits, labels),  # exactly 0 if no row is labelled
            "contrast": c.contrast_weight * info_nce(self.project(features)),
            "entropy": c.entropy_weight * mean_entropy_deficit(logits, temperature=1.0),
        }
        return Step(terms, features, logits)

    def classify(self, features: Tensor) -> Tensor:
        """Return logits whose softmax is the posterior; ``predict`` takes their arg max."""
        return self.classifier(features) / self.config.temperature

    def project(self, features: Tensor) -> Tensor:
        return self.projector(features)
