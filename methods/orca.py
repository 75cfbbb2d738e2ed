"""ORCA: open-world learning with an adaptive margin (Cao et al., ICLR 2022).

A cosine classifier over old and new classes learns from labels with a head start for the true
class, which is large while unlabelled images are uncertain: known classes must not run ahead.
Every image shall agree with a partner, one of its label or its nearest neighbour, and all classes
shall be used. Batches are drawn as in the authors' code, in the proportion of the two sets. Decided
here: the common schedule and scores; the authors match new classes separately.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gcdbench.plugin import (
    Backbone,
    Batch,
    Clock,
    CosineClassifier,
    FitContext,
    Method,
    Step,
    Task,
    agreement_loss,
    margin_cross_entropy,
    mean_entropy_deficit,
    positive_partners,
    unit_rows_,
)


class ORCA(Method):
    paper: ClassVar[str] = "https://arxiv.org/abs/2102.03526"
    sweeps: ClassVar[str] = "epoch"
    train_defaults: ClassVar[dict[str, Any]] = {
        "lr": 0.05,  # HiLo paper; 0.1 in the released code
        "weight_decay": 5e-4,  # released, CIFAR; 1e-4 for ImageNet
        "decay": "all",  # released: biases decay, too
        "sampling": "natural",  # released: labelled images in the proportion of the sets
    }
    provides: ClassVar[frozenset[str]] = frozenset({"logits"})
    tuning: ClassVar[dict[str, Any]] = {  # ranges of `gcdbench tune`, with train.lr and epochs
        "largest_margin": ("uniform", 0.0, 1.0),  # 0.5 in the released code
        "pair_weight": ("log", 0.3, 3.0),  # 1 in the paper
        "entropy_weight": ("log", 0.3, 3.0),  # 1 in the paper
    }

    uncertainty: Tensor
    confidence: Tensor

    @dataclass(frozen=True)
    class Config:
        scale: float = 10.0  # of the cosines, paper and released
        largest_margin: float = 0.5  # between cosines, released
        pair_weight: float = 1.0  # paper and released
        entropy_weight: float = 1.0  # paper and released
        measure: Literal["sweep", "training"] = "sweep"  # of uncertainty; released: before an epoch

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        self.classifier = CosineClassifier(
            backbone.dim,
            task.num_classes,
            scale=config.scale,
            generator=task.generator("heads"),
        )
        unit_rows_(self.classifier.weight)  # as released: the length determines how fast it rotates
        self.register_buffer("uncertainty", torch.zeros(()))
        self.register_buffer("confidence", torch.zeros(2))  # this epoch: sum, number of rows

    @torch.no_grad()
    def begin_epoch(self, clock: Clock, context: FitContext) -> None:
        """Compute the uncertainty of the unlabelled images, which is the epoch's margin.

        With "training" it is computed from the last epoch's batches, and only the first epoch needs
        a pass over all images.
        """
        total, rows = self.confidence.unbind()
        if self.config.measure == "sweep" or not rows:
            features = context.compute_unlabelled().split(4096)
            highest = torch.cat([confidence(self.classify(f)) for f in features])
            total, rows = highest.sum(), highest.new_tensor(max(len(highest), 1))
        self.uncertainty.copy_(1 - total / rows)
        self.confidence.zero_()

    def step(self, batch: Batch, clock: Clock) -> Step:
        c = self.config
        features = self.encode(batch).cls
        logits = self.classify(features)
        first, second = logits.chunk(2)
        partners = self._partners(features[: len(batch)].detach(), batch, clock)
        sure = confidence(first.detach()[batch.unlabelled_rows])
        self.confidence += torch.stack([sure.sum(), sure.new_full((), len(sure))])

        margin = margin_cross_entropy(
            first,
            batch.labels,
            uncertainty=self.uncertainty,
            targets=batch.targets,
            rows=batch.labelled_rows,
            scale=c.scale,
            largest=c.largest_margin,
        )
        # KL from the uniform distribution, as in the paper: the released -H and a constant.
        spread = mean_entropy_deficit(first, temperature=1.0)
        terms = {
            "margin": margin,
            "pairs": c.pair_weight * agreement_loss(first, second[partners]),
            "entropy": c.entropy_weight * spread,
        }
        return Step(terms, features, logits)

    def _partners(self, features: Tensor, batch: Batch, clock: Clock) -> Tensor:
        """Draw a partner for each row, in the order of the images and not of the batch."""
        order, generator = batch.order, clock.generator("partners")
        drawn = positive_partners(features[order], batch.labels[order], generator=generator)
        return torch.empty_like(order).index_copy_(0, order, order[drawn])

    def classify(self, features: Tensor) -> Tensor:
        return self.classifier(features)


def confidence(logits: Tensor) -> Tensor:
    """Return the highest posterior of every row."""
    return logits.softmax(1).amax(1)
