"""muGCD: a mean teacher sees weak views, its student strong ones (Vaze et al., NeurIPS 2023).

A re-creation: no code of the authors was found, and only the paper's summary was read. The backbone
is first trained by GCD's contrast. Then a cosine classifier over old and new classes, whose teacher
is a running mean of backbone and classifier, learns from labels and from the teacher's sharpened
prediction for a weakly augmented view, with SimGCD's mean entropy. Numbers are SimGCD's unless a
comment says otherwise.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from gcdbench.plugin import (
    Backbone,
    Batch,
    Clock,
    CosineClassifier,
    Encoded,
    EpochPlan,
    FitContext,
    Method,
    Phase,
    ProjectionHead,
    Step,
    Task,
    cross_entropy_on,
    info_nce,
    mean_entropy_deficit,
    mean_or_zero,
    soft_cross_entropy,
    sup_con,
    teacher_temperature,
)


class MuGCD(Method):
    paper: ClassVar[str] = "https://arxiv.org/abs/2311.17055"
    provides: ClassVar[frozenset[str]] = frozenset({"logits", "projection"})
    views: ClassVar[tuple[str, ...]] = ("weak", "strong")
    tuning: ClassVar[dict[str, Any]] = {  # ranges of `gcdbench tune`, with train.lr and epochs
        "momentum": ("uniform", 0.5, 0.9),  # ours
        "sup_weight": ("uniform", 0.2, 0.5),  # as for SimGCD
        "entropy_weight": ("choice", 0.5, 1.0, 2.0, 4.0),  # SimGCD's scripts
    }

    @dataclass(frozen=True)
    class Config:
        contrast_share: float = 0.5  # of the run: GCD's training before the teacher's, ours
        schedule: Literal["phase", "run"] = "phase"  # a cosine for each of both, or for all; ours
        momentum: float = 0.7  # of the teacher at first, ours
        last_momentum: float = 0.999  # at the end, ours
        predict_with: Literal["teacher", "student"] = "teacher"  # ours
        sup_weight: float = 0.35  # ours, as in SimGCD
        entropy_weight: float = 2.0  # ours, as in SimGCD
        student_temp: float = 0.1  # ours, as in SimGCD
        teacher_start: float = 0.07  # ours, as in SimGCD
        teacher_end: float = 0.04  # ours, as in SimGCD
        teacher_warmup: int = 30  # epochs, ours, as in SimGCD; cut to the length of a shorter run
        contrast_temp: float = 1.0  # InfoNCE, ours, as in GCD
        sup_contrast_temp: float = 0.07  # SupCon, ours, as in GCD
        hidden_dim: int = 2048  # of the projector, ours, as in SimGCD
        projection_dim: int = 256  # ours, as in SimGCD

    started: Tensor

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
        self.teacher = copy.deepcopy(nn.ModuleDict({"backbone": backbone, "head": self.classifier}))
        self.teacher.requires_grad_(False)
        self.register_buffer("started", torch.tensor(False))  # whether the teacher teaches

    def phase(self, clock: Clock) -> Phase:
        first = round(self.config.contrast_share * clock.epochs)
        if clock.epoch < first:
            return Phase("contrast", ("backbone", "projector"), self.rate(clock, 0, first))
        return Phase("teach", ("backbone", "classifier"), self.rate(clock, first, clock.epochs))

    def rate(self, clock: Clock, first: int, end: int) -> float:
        """Return the rate of a phase by that of the run: both are trainings of their own."""
        if self.config.schedule == "run":
            return 1.0
        of_phase = 1 + math.cos(math.pi * (clock.epoch - first) / (end - first))
        return of_phase / (1 + math.cos(math.pi * clock.epoch / clock.epochs))

    def begin_epoch(self, clock: Clock, context: FitContext) -> EpochPlan | None:
        if self.phase(clock).name == "teach" and not self.started:
            self.follow(0.0)
            self.started.fill_(True)
        return None

    def encode(self, batch: Batch) -> Encoded:
        taught = self.config.predict_with == "teacher" and not self.training
        return (self._teacher_backbone if taught and self.started else self.backbone)(batch.images)

    def step(self, batch: Batch, clock: Clock) -> Step:
        features = self.encode(batch).cls
        logits = self.classifier(features) / self.config.student_temp
        if self.phase(clock).name == "contrast":
            return Step(self.contrast_terms(features, batch), features, logits.detach())
        with torch.no_grad():
            seen = self._teacher_backbone(batch.images).cls[: len(batch)]
            taught = self.teacher["head"](seen)
        terms = self.terms(logits[len(batch) :], taught, batch, clock)
        return Step(terms, features, logits)

    def contrast_terms(self, features: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return GCD's weighted terms."""
        c, z, rows = self.config, self.project(features), batch.in_views(batch.labelled_rows)
        labels = batch.per_view(batch.labels)
        contrast = info_nce(z, temperature=c.contrast_temp)
        sup_contrast = sup_con(z[rows], labels[rows], temperature=c.sup_contrast_temp)
        return {
            "contrast": (1 - c.sup_weight) * contrast,
            "sup_contrast": c.sup_weight * sup_contrast,
        }

    def terms(
        self, logits: Tensor, taught: Tensor, batch: Batch, clock: Clock
    ) -> dict[str, Tensor]:
        """Return the weighted terms of the student's logits (B, K) and the teacher's cosines."""
        c = self.config
        first = round(c.contrast_share * clock.epochs)
        sharp = teacher_temperature(
            clock.epoch - first,
            clock.epochs - first,
            start=c.teacher_start,
            end=c.teacher_end,
            warmup=c.teacher_warmup,
        )
        target = (taught.float() / sharp).softmax(1)
        classify = cross_entropy_on(
            logits, batch.labels, targets=batch.targets, rows=batch.labelled_rows
        )
        spread = mean_entropy_deficit(logits, temperature=1.0)
        return {
            "distil": (1 - c.sup_weight) * mean_or_zero(soft_cross_entropy(logits, target)),
            "entropy": (1 - c.sup_weight) * c.entropy_weight * spread,
            "classify": c.sup_weight * classify,
        }

    def after_step(self, batch: Batch, step: Step, clock: Clock) -> None:
        if self.phase(clock).name == "teach":
            self.follow(self.momentum(clock))

    def momentum(self, clock: Clock) -> float:
        """Return the teacher's momentum: from its first to its last value along half a cosine."""
        c, total = self.config, clock.epochs * clock.steps_per_epoch
        first = round(c.contrast_share * clock.epochs) * clock.steps_per_epoch
        done = (clock.step - first) / max(total - first - 1, 1)
        return c.last_momentum - (c.last_momentum - c.momentum) * (1 + math.cos(math.pi * done)) / 2

    @torch.no_grad()
    def follow(self, momentum: float) -> None:
        """Move the teacher towards the student: 0 makes them equal."""
        student = (*self.backbone.parameters(), *self.classifier.parameters())
        for mine, theirs in zip(self.teacher.parameters(), student, strict=True):
            mine.lerp_(theirs, 1 - momentum)

    def classify(self, features: Tensor) -> Tensor:
        taught = self.config.predict_with == "teacher" and not self.training and self.started
        head = self.teacher["head"] if taught else self.classifier
        return head(features) / self.config.student_temp

    def project(self, features: Tensor) -> Tensor:
        return self.projector(features)

    @property
    def _teacher_backbone(self) -> Backbone:
        return self.teacher["backbone"]  # type: ignore[return-value]
