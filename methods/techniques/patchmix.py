"""PatchMix: learn from blends of labelled and unlabelled images in token space (HiLo, ICLR 2025).

The patch embeddings of a labelled and an unlabelled image are blended, each patch by its own random
share. The blend has the labelled image's class to the degree alpha, the share of the attention on
that image, and is trained like any other image: contrastive, classified with a smoothed label, and
distilled between two views. The idea is from PMTrans (Zhu et al., CVPR 2023).

Temperatures here are relative to the posterior of the method that is trained. "Released" below is
the code of HiLo's authors, which the preset of that name repeats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.plugin import (
    Batch,
    Clock,
    Model,
    Patches,
    Step,
    Task,
    Technique,
    attention_share,
    draw_beta,
    image_pairs,
    info_nce,
    mean_entropy_deficit,
    mean_or_zero,
    patch_mix,
    positive_parameter,
    self_distillation,
    smoothed_cross_entropy,
    stacked_pairs,
    sup_con,
    teacher_temperature,
)


class PatchMix(Technique):
    paper: ClassVar[str] = "https://arxiv.org/abs/2408.04591"
    labelled_passes: ClassVar[int] = 2
    requires: ClassVar[frozenset[str]] = frozenset({"logits", "projection", "tokens", "attention"})

    @dataclass(frozen=True)
    class Config:
        preset: Literal["paper", "released"] = "paper"  # ours: repaired where the text is ill-posed
        weight: float = 0.1269280110429726  # of all terms: softplus(-2), where released starts
        learn_weights: bool = False  # ours; released learns them, but a weight of a loss only falls
        concentration: float = 1.3132616875182228  # both of the Beta: ln(1 + e), paper
        learn_concentration: bool = False  # paper; released, at the cost of a trunk with gradients
        pairing: Literal["images", "stacks"] = "images"  # paper; released: rows of unlike views
        attention: Literal["normalised", "softmax"] = "normalised"  # ours; released: nearly uniform
        target_attention: bool = True  # paper; released takes the unlabelled patches as equal
        attention_gradient: bool = False  # ours; released: alpha teaches the attention, slightly
        weigh_contrast: bool = True  # anchors by alpha: paper; in released alpha cancels
        label_temp: float = 1.0  # of label and entropy terms, paper; released leaves out the 1/0.1
        contrast_temp: float = 1.0  # InfoNCE, released
        sup_contrast_temp: float = 0.07  # SupCon, released
        entropy_weight: float = 2.0  # released
        teacher_start: float = 0.7  # 0.07 / 0.1, paper and released
        teacher_end: float = 0.4  # 0.04 / 0.1, released
        teacher_warmup: int = 30  # epochs, released; cut to the length of a shorter run

        presets: ClassVar[dict[str, dict[str, Any]]] = {
            "released": {
                "learn_weights": True,
                "learn_concentration": True,
                "pairing": "stacks",
                "attention": "softmax",
                "target_attention": False,
                "attention_gradient": True,
                "weigh_contrast": False,
                "label_temp": 10.0,
            },
        }

    def __init__(self, config: Any, task: Task, model: Model) -> None:
        super().__init__(config, task, model)
        c, self.attention_gradient = config, config.attention_gradient
        self.raw_weights = positive_parameter([c.weight, c.weight], learn=c.learn_weights)
        self.raw_shape = positive_parameter([c.concentration] * 2, learn=c.learn_concentration)
        self._shape = None if c.learn_concentration else tuple(F.softplus(self.raw_shape).tolist())
        self._blended: tuple[Tensor, Tensor, Tensor] | None = None  # of the step under way

    def add(self, patches: Tensor, batch: Batch, clock: Clock) -> Tensor:
        source, target, beta = self.blend(batch, patches.shape[1], clock)
        self._blended = source, target, beta
        return patch_mix(patches[source], patches[target], beta)

    def terms(self, model: Model, batch: Batch, step: Step, clock: Clock) -> dict[str, Tensor]:
        c, recording, features = self.config, step.recording, step.added
        if self._blended is None:  # another technique changes tokens
            mixed = self.add(recording.patches, batch, clock)
            features = model.backbone(Patches(mixed)).cls
        assert self._blended is not None
        (source, target, beta), self._blended = self._blended, None
        if features is None or not len(source):
            return {"contrast": mean_or_zero(step.features[:0])}
        labels = batch.per_view(batch.labels)[source]
        classes = batch.per_view(labels[: len(labels) // 2])  # rows i, m + i count as one image
        scores = self.scores(recording.attention)
        alpha = attention_share(
            beta, scores[source], scores[target] if c.target_attention else None
        )

        z, logits = model.project(features), model.classify(features)
        teacher_temp = teacher_temperature(
            clock.epoch,
            clock.epochs,
            start=c.teacher_start,
            end=c.teacher_end,
            warmup=c.teacher_warmup,
        )

        contrast = info_nce(z, temperature=c.contrast_temp)
        anchors = alpha if c.weigh_contrast else None
        sup_contrast = sup_con(z, classes, temperature=c.sup_contrast_temp, weight=anchors)
        classify = smoothed_cross_entropy(logits, labels, alpha, temperature=c.label_temp)
        distil = self_distillation(logits, student_temp=1.0, teacher_temp=teacher_temp)
        spread = mean_entropy_deficit(logits, temperature=c.label_temp)

        on_features, on_labels = F.softplus(self.raw_weights)
        return {
            "contrast": on_features * contrast,
            "sup_contrast": on_features * sup_contrast,
            "classify": on_labels * classify,
            "distil": on_labels * distil,
            "entropy": on_labels * c.entropy_weight * spread,
        }

    def blend(self, batch: Batch, patches: int, clock: Clock) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows of the view-major stack to mix and the shares (2m, p) of the former."""
        generator = clock.generator("patchmix")
        if self.config.pairing == "images":
            order = batch.cpu_order
            pairs = image_pairs(batch.cpu_labelled[order], generator=generator)
            images = [batch.here(order[rows]) for rows in pairs]
            source, target = (torch.cat([rows, rows + len(batch)]) for rows in images)
        else:
            source, target = map(batch.here, stacked_pairs(batch.cpu_labelled))
        a, b = F.softplus(self.raw_shape) if self._shape is None else self._shape
        shape = (len(source) // 2, patches)
        beta = draw_beta(a, b, *shape, generator=generator, device=source.device)
        return source, target, beta.repeat(2, 1)

    def scores(self, attention: Tensor) -> Tensor:
        """Return the importance (n, p) of patches: CLS attention, mean over blocks and heads."""
        mean = attention.mean((0, 2))
        if self.config.attention == "softmax":
            return mean.softmax(1)
        return mean / mean.sum(1, keepdim=True)
