"""NCDD: new classes under a domain shift by mutual information, a re-creation (HiLo, ICLR 2025).

The only sources are an abstract and two sentences in the HiLo paper, which compares with NCDD on
CUB-C: all target images are clustered, those of unseen classes too; representations are
self-supervised, and the mutual information between labels and inputs is maximised. No code was
found. Everything else was decided here. A cosine classifier and a projector, as in SimGCD, learn
from labels and by contrast; SimGCD's sharpened self-distillation is replaced by the information
I(x; y) = H(mean of p) - mean of H(p) of the unlabelled images. Its numbers therefore show what such
a method does here, not what the authors' own method would do.
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
    full_precision,
    mean_entropy_deficit,
    mean_or_zero,
    parametric_terms,
)


class NCDD(Method):
    paper: ClassVar[str] = "a re-creation; named in https://arxiv.org/abs/2408.04591"
    provides: ClassVar[frozenset[str]] = frozenset({"logits", "projection"})
    tuning: ClassVar[dict[str, Any]] = {  # ranges of `gcdbench tune`, with train.lr and epochs
        "information_weight": ("log", 0.3, 3.0),  # ours
        "marginal_weight": ("uniform", 1.0, 4.0),  # ours
        "sup_weight": ("uniform", 0.2, 0.5),  # as for SimGCD
    }

    @dataclass(frozen=True)
    class Config:
        information_weight: float = 1.0  # ours
        marginal_weight: float = 2.0  # of H(mean of p) against mean of H(p), ours; 1 is I itself
        sup_weight: float = 0.35  # of the terms that need labels, ours, as in SimGCD
        temperature: float = 0.1  # of the posterior, ours, as in SimGCD
        contrast_temp: float = 1.0  # InfoNCE, ours, as in SimGCD
        sup_contrast_temp: float = 0.07  # SupCon, ours, as in SimGCD
        hidden_dim: int = 2048  # of the projector, ours, as in SimGCD
        projection_dim: int = 256  # ours, as in SimGCD

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        generator = task.generator("heads")
        self.projector = ProjectionHead(
            backbone.dim,
            hidden_dim=config.hidden_dim,
            out_dim=config.projection_dim,
            generator=generator,
        )
        self.classifier = CosineClassifier(backbone.dim, task.num_classes, generator=generator)

    def step(self, batch: Batch, clock: Clock) -> Step:
        c = self.config
        features = self.encode(batch).cls
        z, logits = self.project(features), self.classify(features)
        labels = batch.per_view(batch.labels)
        terms = parametric_terms(
            z,
            c.temperature * logits,
            labels,
            labelled=batch.in_views(batch.labelled_rows),
            targets=None if batch.targets is None else batch.per_view(batch.targets),
            sup_weight=c.sup_weight,
            student_temp=c.temperature,
            contrast_temp=c.contrast_temp,
            sup_contrast_temp=c.sup_contrast_temp,
        )
        del terms["entropy"]  # here it is a part of the information, of unlabelled images alone
        unlabelled = logits[batch.in_views(batch.unlabelled_rows)]
        weight = (1 - c.sup_weight) * c.information_weight
        terms["certainty"] = weight * mean_entropy(unlabelled)
        terms["spread"] = (
            weight * c.marginal_weight * mean_entropy_deficit(unlabelled, temperature=1.0)
        )
        return Step(terms, features, logits)

    def classify(self, features: Tensor) -> Tensor:
        return self.classifier(features) / self.config.temperature

    def project(self, features: Tensor) -> Tensor:
        return self.projector(features)


@full_precision
def mean_entropy(logits: Tensor) -> Tensor:
    """Return the mean entropy of the rows' posteriors: low if every row is sure of its class."""
    log_p = logits.log_softmax(1)
    return mean_or_zero(-(log_p.exp() * log_p).sum(1))
