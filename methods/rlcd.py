"""RLCD: a second token learns the old classes and teaches the classifier (Luo et al., ICML 2025).

A trained token enters the last block and feeds a classifier of the old classes alone. It learns
from labels and from all images that the main classifier takes for old, and teaches the main one how
these divide. A term for both classifiers asks that the mean prediction of every class agrees in the
two views. There is neither a projector nor unsupervised contrast, and features do not pass the
backbone's final norm. "Released" below is the authors' code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from gcdbench.plugin import (
    UNLABELLED,
    AddedTokens,
    Backbone,
    Batch,
    Clock,
    CosineClassifier,
    Method,
    Step,
    Task,
    cross_entropy_on,
    full_precision,
    self_distillation,
    sup_con,
    teacher_temperature,
)

EPS = 1e-6  # inside of logarithms, released


class RLCD(Method):
    paper: ClassVar[str] = "https://arxiv.org/abs/2506.02334"
    provides: ClassVar[frozenset[str]] = frozenset({"logits"})
    tuning: ClassVar[dict[str, Any]] = {  # ranges of `gcdbench tune`, with train.lr and epochs
        "agree_weight": ("choice", 0.5, 1.0),  # its README
        "cross_weight": ("choice", 0.2, 0.5),  # its default and README
        "block_lr": ("choice", 0.1, 1.0),  # its README
    }

    @dataclass(frozen=True)
    class Config:
        preset: Literal[
            "ours",
            "cub",
            "cars",
            "cifar100",
            "herbarium",
        ] = "ours"  # one setting for all datasets; the others are the released commands
        sup_weight: float = 0.35  # of the main classifier's labelled terms, released
        old_sup_weight: float = 0.5  # of the old classes' labelled terms, released
        entropy_weight: float = 2.0  # released
        agree_weight: float = 1.0  # released default and Cars; CUB 0.5
        cross_weight: float = 0.5  # released commands; default 0.2
        student_temp: float = 0.1  # released
        agree_temp: float = 0.1  # of the agreement and of the old classes' labels, released
        cross_temp: float = 0.1  # of the old classes' teaching, released
        teacher_start: float = 0.07  # released
        teacher_end: float = 0.04  # released
        teacher_warmup: int = 30  # epochs, released; cut to the length of a shorter run
        sup_contrast_temp: float = 0.1  # SupCon, released
        block_lr: float = 1.0  # times the run's rate, of the backbone; 0.1 released for CUB

        presets: ClassVar[dict[str, dict[str, Any]]] = {
            "cub": {"agree_weight": 0.5, "block_lr": 0.1},
            "cars": {"agree_weight": 1.0},
            "cifar100": {"agree_weight": 0.5, "block_lr": 0.1},
            "herbarium": {"agree_weight": 1.0, "agree_temp": 0.07},
        }

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        generator, dim = task.generator("heads"), backbone.dim
        token = torch.empty(1, dim)
        nn.init.trunc_normal_(token, std=0.01, generator=generator)
        self.token = AddedTokens(token, depth=backbone.num_blocks - 1)
        backbone.adapt(self.token)
        backbone.final_norm = False
        self.classifier = CosineClassifier(dim, task.num_classes, generator=generator)
        self.old_classifier = CosineClassifier(dim, task.num_old, generator=generator)
        with torch.no_grad():
            self.old_classifier.weight.mul_(3**0.5)  # rows of length one, released

    def step(self, batch: Batch, clock: Clock) -> Step:
        encoded = self.encode(batch)
        assert encoded.added is not None
        features, token = encoded.cls, encoded.added[:, 0]
        cosines = self.classifier(features)
        terms = self.terms(features, token, cosines, batch, clock)
        return Step(terms, features, cosines / self.config.student_temp)

    def terms(
        self, features: Tensor, token: Tensor, cosines: Tensor, batch: Batch, clock: Clock
    ) -> dict[str, Tensor]:
        """Return the weighted terms of CLS features, added tokens and cosines, view-major."""
        c, old = self.config, self.task.num_old
        labels, rows = batch.per_view(batch.labels), batch.in_views(batch.labelled_rows)
        soft = None if batch.targets is None else batch.per_view(batch.targets)
        of_old = self.old_classifier(token)
        w, w_old = c.sup_weight, c.old_sup_weight
        known = {"rows": rows, "targets": soft}
        known_old = {"rows": rows, "targets": None if soft is None else soft[:, :old]}

        base = (cosines.detach().argmax(1) < old) | (labels != UNLABELLED)
        both = base.view(2, -1).all(0)
        every = torch.ones_like(both)
        teacher_temp = teacher_temperature(
            clock.epoch,
            clock.epochs,
            start=c.teacher_start,
            end=c.teacher_end,
            warmup=c.teacher_warmup,
        )
        distil = self_distillation(cosines, student_temp=c.student_temp, teacher_temp=teacher_temp)
        spread = entropy_deficit(cosines / c.student_temp)
        agree = view_agreement(cosines / c.agree_temp, labels, every)
        classify = cross_entropy_on(cosines, labels, temperature=c.student_temp, **known)
        z, t, y = features[rows], token[rows], labels[rows]
        contrast = sup_con(z, y, temperature=c.sup_contrast_temp)
        first_views = 2.0 * (torch.arange(len(y), device=y.device) < len(y) // 2)
        old_contrast = sup_con(t, y, temperature=c.sup_contrast_temp, weight=first_views)
        old_classify = cross_entropy_on(of_old, labels, temperature=c.agree_temp, **known_old)
        same = view_divergence(of_old / c.student_temp, both)
        old_agree = view_agreement(of_old / c.student_temp, labels, both)
        cross = cross_teaching(
            of_old.detach() / c.cross_temp, cosines[:, :old] / c.student_temp, base
        )
        return {
            "distil": (1 - w) * distil,
            "entropy": (1 - w) * c.entropy_weight * spread,
            "agree": (1 - w) * c.agree_weight * agree,
            "classify": w * classify,
            "sup_contrast": w * contrast,
            "old_views": (1 - w_old) * same,
            "old_agree": (1 - w_old) * c.agree_weight * old_agree,
            "old_classify": w_old * old_classify,
            "old_sup_contrast": w_old * old_contrast,
            "cross": c.cross_weight * cross,
        }

    def param_groups(self) -> Iterable[tuple[Iterable[nn.Parameter], float]]:
        own = {id(p) for p in self.token.parameters()}
        blocks = [p for p in self.backbone.vit.parameters() if p.requires_grad]
        inside = {id(p) for p in blocks} - own
        others = [p for p in self.parameters() if p.requires_grad and id(p) not in inside]
        yield [p for p in blocks if id(p) in inside], self.config.block_lr
        yield others, 1.0

    def classify(self, features: Tensor) -> Tensor:
        return self.classifier(features) / self.config.student_temp


@full_precision
def entropy_deficit(logits: Tensor) -> Tensor:
    """Return log K minus the entropy of the mean posterior of the rows."""
    p = logits.softmax(1).sum(0) / max(len(logits), 1)
    return (p * (p + EPS).log()).sum() + math.log(logits.shape[1]) * bool(len(logits))


@full_precision
def view_agreement(logits: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """Return one minus the agreement of the two views' mean predictions, a mean over classes.

    The mean prediction of class k weighs every image by its posterior of k. Classes count that an
    image has by its label or, without one, by the prediction for either view.

    Args:
        logits: (2B, K), view-major.
        labels: (2B,), UNLABELLED where hidden.
        rows: (B,) mask of the images that count.
    """
    p = logits.softmax(1)
    chosen = torch.where(labels == UNLABELLED, p.argmax(1), labels)
    (first, second), (of_first, of_second) = p.chunk(2), chosen.chunk(2)
    return agreement(first, second, of_first, of_second, rows)


def agreement(p: Tensor, q: Tensor, of_p: Tensor, of_q: Tensor, rows: Tensor) -> Tensor:
    """Return the same of posteriors (B, K) and the classes (B,) that each image stands for."""
    places = torch.cat([of_p, of_q]).masked_fill(~rows.repeat(2), p.shape[1])  # one class more
    occurs = p.new_zeros(p.shape[1] + 1).index_fill(0, places, 1.0)[:-1]
    means = []
    for one in (p, q):
        weights = one * rows[:, None]
        means.append(weights.T @ one / weights.sum(0)[:, None].clamp(min=1e-12))
    apart = 1 - (means[0] * means[1]).sum(1)
    return (apart * occurs).sum() / occurs.sum().clamp(min=1)


@full_precision
def view_divergence(logits: Tensor, rows: Tensor) -> Tensor:
    """Return the symmetric divergence of two views' posteriors, a mean over images in the mask."""
    first, second = logits.log_softmax(1).chunk(2)
    apart = ((first.exp() - second.exp()) * (first - second)).sum(1) / 2
    return mean_of(apart, rows)


@full_precision
def cross_teaching(teacher: Tensor, student: Tensor, rows: Tensor) -> Tensor:
    """Return the cross-entropy to a teacher, times its confidence, a mean over rows in the mask."""
    target = teacher.softmax(1)
    loss = -(target * (student.softmax(1) + EPS).log()).sum(1)
    return mean_of(target.amax(1) * loss, rows)


def mean_of(per_row: Tensor, rows: Tensor) -> Tensor:
    """Return the mean over the rows in a mask; without any, a zero whose gradients are zeros."""
    return (per_row * rows).sum() / rows.sum().clamp(min=1)
