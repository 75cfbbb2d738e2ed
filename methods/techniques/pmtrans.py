"""PMTrans: PatchMix as it was first proposed, for domain adaptation (Zhu et al., CVPR 2023).

The patch embeddings of a labelled and an unlabelled image are blended, each patch by its own random
share. The blend is trained to find both of its origins by cosine among the features of the batch,
and to be classified as both, weighted by the attention on each. The unlabelled image's class is
that predicted for its nearest neighbours in a memory of earlier steps.

Official: the blend, its learnt Beta, the scores from attention, the memory and both losses. Ours:
pseudo-labels are of all classes, old and new; the memory starts empty and stores the features of
the step itself, while the official code encodes the images once more; the first views are blended,
because PMTrans has only one; the classification of whole images is left to the method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.plugin import (
    UNLABELLED,
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
    last_of_same,
    mean_or_zero,
    mixed_feature_loss,
    mixed_label_loss,
    patch_mix,
    positive_parameter,
)


class PMTrans(Technique):
    paper: ClassVar[str] = "https://arxiv.org/abs/2303.13434"
    labelled_passes: ClassVar[int] = 1
    requires: ClassVar[frozenset[str]] = frozenset({"logits", "tokens", "attention"})

    @dataclass(frozen=True)
    class Config:
        weight: float = 0.1269280110429726  # of both losses: softplus(-2), where official starts
        learn_weights: bool = False  # ours; official does, by small steps: SGD's end near zero
        concentration: float = 1.3132616875182228  # both of the Beta: ln(1 + e), official start
        learn_concentration: bool = True  # official, at the cost of a trunk with gradients
        neighbours: int = 5  # in the memory, official
        preset: Literal["ours", "released"] = "ours"  # our weights; see presets
        fixed_denominators: bool = False  # ours; official: sums that divide pass no gradient

        presets: ClassVar[dict[str, dict[str, Any]]] = {
            "released": {"fixed_denominators": True, "learn_weights": True},
        }

    features_seen: Tensor
    classes_seen: Tensor
    seen: Tensor
    place: Tensor

    def __init__(self, config: Any, task: Task, model: Model) -> None:
        super().__init__(config, task, model)
        c, hidden = config, task.labels == UNLABELLED
        self.raw_weights = positive_parameter([c.weight, c.weight], learn=c.learn_weights)
        self.raw_shape = positive_parameter([c.concentration] * 2, learn=c.learn_concentration)
        self._blended: tuple[Tensor, Tensor, Tensor] | None = None  # of the step under way
        images = int(hidden.sum())
        self.register_buffer("features_seen", torch.zeros(images, model.backbone.dim))
        self.register_buffer("classes_seen", torch.zeros(images, task.num_classes))
        self.register_buffer("seen", torch.zeros(images, dtype=torch.bool))
        self.register_buffer("place", hidden.cumsum(0) - 1, persistent=False)

    def add(self, patches: Tensor, batch: Batch, clock: Clock) -> Tensor:
        generator = clock.generator("pmtrans")
        order = batch.cpu_order
        pairs = image_pairs(batch.cpu_labelled[order], generator=generator)
        source, target = (batch.here(order[rows]) for rows in pairs)
        a, b = F.softplus(self.raw_shape)
        shape = (len(source), patches.shape[1])
        beta = draw_beta(a, b, *shape, generator=generator, device=source.device)
        self._blended = source, target, beta
        return patch_mix(patches[source], patches[target], beta)

    def terms(self, model: Model, batch: Batch, step: Step, clock: Clock) -> dict[str, Tensor]:
        features = step.added
        if self._blended is None:  # another technique changes tokens
            mixed = self.add(step.recording.patches, batch, clock)
            features = model.backbone(Patches(mixed)).cls
        assert self._blended is not None
        (source, target, beta), self._blended = self._blended, None
        if features is None or not len(source):
            zero = 0 * F.softplus(self.raw_shape).sum()
            return {"features": zero * mean_or_zero(step.features[:0])}

        scores = step.recording.attention.mean((0, 2)).softmax(1)
        share = attention_share(beta, scores[source])

        labels = batch.labels[source]
        pseudo_labels, confidence = self.recall(step.features[target], batch.index[target])
        origins = step.features[source], step.features[target]
        on_features, on_labels = F.softplus(self.raw_weights)
        return {
            "features": on_features * mixed_feature_loss(features, *origins, labels, share),
            "labels": on_labels
            * mixed_label_loss(
                model.classify(features),
                labels,
                pseudo_labels,
                confidence,
                share,
                fixed_denominators=self.config.fixed_denominators,
            ),
        }

    @torch.no_grad()
    def recall(self, features: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return class and confidence (n,) of the nearest stored images, except for the own one.

        While the memory is empty, the confidence is zero and the class has no meaning.
        """
        cosines = F.normalize(features.float(), dim=1) @ self.features_seen.T
        cosines = cosines.masked_fill(~self.seen, -torch.inf)
        cosines.scatter_(1, self.place[index][:, None], -torch.inf)
        count = min(self.config.neighbours, len(self.seen))
        nearest, rows = cosines.topk(count, dim=1)
        votes = self.classes_seen[rows] * nearest.isfinite()[..., None]
        confidence, classes = votes.mean(1).max(1)
        return classes, confidence

    def after_step(self, model: Model, batch: Batch, step: Step, clock: Clock) -> None:
        """Store the features of the step's unlabelled images, first views."""
        assert step.logits is not None
        hidden = batch.unlabelled_rows
        rows = self.place[batch.index[hidden]]
        squared = step.logits[: len(batch)][hidden].float().softmax(1).square()
        share = squared / squared.sum(0).clamp(min=torch.finfo(squared.dtype).tiny)
        features = F.normalize(step.features[: len(batch)][hidden].float(), dim=1)
        last = last_of_same(rows)  # an image may be drawn twice
        self.features_seen[rows] = features[last]
        self.classes_seen[rows] = share[last]
        self.seen[rows] = True
