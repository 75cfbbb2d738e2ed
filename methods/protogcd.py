"""ProtoGCD: prototypes taught by targets that turn from soft to hard (Ma et al., TPAMI 2025).

SimGCD with three changes: the teacher's temperature is constant; the targets of the most certain
images of a batch become hard, and their share grows to all of them by the middle of the run; a
term pushes the prototypes apart. "Released" below is the authors' code; where its README's
commands differ from its defaults, they are followed, because the published runs were made by them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
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
    mean_or_zero,
    parametric_terms,
    soft_cross_entropy,
)


class ProtoGCD(Method):
    paper: ClassVar[str] = "https://arxiv.org/abs/2504.03755"
    provides: ClassVar[frozenset[str]] = frozenset({"logits", "projection"})
    tuning: ClassVar[dict[str, Any]] = {  # ranges of `gcdbench tune`, with train.lr and epochs
        "separation_weight": ("choice", 0.0, 0.05, 0.1),  # its README
        "teacher_temp": ("choice", 0.04, 0.05, 0.07),  # 0.05 in the released code
        "entropy_weight": ("choice", 1.0, 2.0, 4.0),  # 2 in the released code
    }

    @dataclass(frozen=True)
    class Config:
        preset: Literal["fine", "generic"] = "fine"  # released for CUB and for CIFAR-100
        separation_weight: float = 0.05  # released README for CUB; 0.1 for CIFAR-100
        entropy_weight: float = 2.0  # released
        sup_weight: float = 0.35  # released; the rest, 0.65, is on the unsupervised terms
        student_temp: float = 0.1  # released
        teacher_temp: float = 0.05  # released
        wait_share: float = 0.0  # of the run before the first hard target, released: 0 epochs
        ramp_share: float = 0.5  # of the run, ours; released: 100 of 200 epochs
        first_hard: float = 0.0  # share of hard targets at first, released README; its default 0.2
        last_hard: float = 1.0  # released
        contrast_temp: float = 1.0  # InfoNCE, released
        sup_contrast_temp: float = 0.07  # SupCon, released
        hidden_dim: int = 2048  # of the projector, released
        projection_dim: int = 256  # released

        presets: ClassVar[dict[str, dict[str, Any]]] = {"generic": {"separation_weight": 0.1}}

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
        features = self.encode(batch).cls
        z, cosines = self.project(features), self.classifier(features)
        terms = self.terms(z, cosines, self.classifier.weight, batch, clock)
        return Step(terms, features, cosines / self.config.student_temp)

    def terms(
        self, z: Tensor, cosines: Tensor, prototypes: Tensor, batch: Batch, clock: Clock
    ) -> dict[str, Tensor]:
        """Return the weighted terms of projections and cosines (2B, .), view-major."""
        c = self.config
        share = hard_share(
            clock.epoch,
            wait=round(c.wait_share * clock.epochs),
            ramp=round(c.ramp_share * clock.epochs),
            first=c.first_hard,
            last=c.last_hard,
        )
        targets = adaptive_targets(cosines.detach(), share, temperature=c.teacher_temp)
        swapped = targets.roll(len(batch), dims=0)  # each view is taught by the other one
        distil = mean_or_zero(soft_cross_entropy(cosines, swapped, temperature=c.student_temp))
        separation = prototype_separation(prototypes, temperature=c.student_temp)
        others = parametric_terms(
            z,
            cosines,
            batch.per_view(batch.labels),
            labelled=batch.in_views(batch.labelled_rows),
            targets=None if batch.targets is None else batch.per_view(batch.targets),
            sup_weight=c.sup_weight,
            entropy_weight=c.entropy_weight,
            student_temp=c.student_temp,
            contrast_temp=c.contrast_temp,
            sup_contrast_temp=c.sup_contrast_temp,
        )
        return {
            "distil": (1 - c.sup_weight) * distil,
            "separation": (1 - c.sup_weight) * c.separation_weight * separation,
            **others,
        }

    def classify(self, features: Tensor) -> Tensor:
        return self.classifier(features) / self.config.student_temp

    def project(self, features: Tensor) -> Tensor:
        return self.projector(features)


def hard_share(epoch: int, *, wait: int, ramp: int, first: float, last: float) -> float:
    """Return the share of hard targets in a 0-based epoch: none, then a line, then constant.

    >>> [hard_share(t, wait=1, ramp=3, first=0.0, last=1.0) for t in range(5)]
    [0.0, 0.0, 0.5, 1.0, 1.0]
    """
    if epoch < wait:
        return 0.0
    if epoch >= wait + ramp:
        return last
    return first + (last - first) * ((epoch - wait) / max(ramp - 1, 1))


@full_precision
def adaptive_targets(cosines: Tensor, share: float, *, temperature: float) -> Tensor:
    """Return targets (2B, K): hard for the share of each view's rows that is most certain.

    Certain is a row whose largest probability is many times its second largest.
    """
    soft = (cosines / temperature).softmax(1)
    number = math.floor(len(soft) // 2 * share)
    if not number or soft.shape[1] < 2:
        return soft
    top = soft.topk(2, dim=1)
    certainty = top.values[:, 0] / (top.values[:, 1] + 1e-6)
    rows = certainty.unflatten(0, (2, -1)).topk(number, dim=1).indices  # in each view
    rows = torch.cat([rows[0], rows[1] + len(soft) // 2])
    hard = F.one_hot(top.indices[rows, 0], soft.shape[1]).to(soft.dtype)
    return soft.index_copy(0, rows, hard)


@full_precision
def prototype_separation(prototypes: Tensor, *, temperature: float) -> Tensor:
    """Return the mean over prototypes of log mean exp of their cosines with all others."""
    number = len(prototypes)
    if number < 2:
        return mean_or_zero(prototypes[:0])
    unit = F.normalize(prototypes, dim=1)
    scores = (unit @ unit.T / temperature).fill_diagonal_(-torch.inf)
    per_row = scores.logsumexp(1) - math.log(number - 1)
    return temperature / 0.1 * per_row.mean()
