"""RankStats+: pairs by rank statistics (Han et al., ICLR 2020; for GCD by Vaze et al., CVPR 2022).

Two images belong together if the strongest dimensions of their features are the same. These pairs
train a linear classifier over old and new classes by a pairwise cross-entropy, labelled images by
an ordinary one, and a consistency term that grows with time ties the two views. "Released" below is
AutoNovel's code; the form for GCD, with one head for all classes and pairs over all images, was
never released. As the GCD paper describes it, the cross-entropy trains the outputs of the old
classes and the pairs train the whole head. Decided here: the labels settle the pairs of two
labelled images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from gcdbench.plugin import (
    Backbone,
    Batch,
    Clock,
    Method,
    ProjectionHead,
    Step,
    Task,
    cross_entropy_on,
    pairwise_cross_entropy,
    ramp_up,
    same_top_dimensions,
    widen,
    with_label_pairs,
)


class RankStats(Method):
    paper: ClassVar[str] = "https://arxiv.org/abs/2002.05714"
    train_defaults: ClassVar[dict[str, Any]] = {
        "lr": 0.1,  # HiLo paper and released
        "weight_decay": 1e-4,  # released
        "decay": "all",  # released: biases decay, too
    }
    provides: ClassVar[frozenset[str]] = frozenset({"logits"})
    tuning: ClassVar[dict[str, Any]] = {  # ranges of `gcdbench tune`, with train.lr and epochs
        "top_k": ("choice", 3, 5, 10, 15),  # 5 in the paper, which varies it
        "consistency_weight": ("choice", 5.0, 15.0, 50.0, 100.0),  # 5 and 50 in its scripts
        "ramp_share": ("choice", 0.25, 0.5, 0.75),  # 0.25 to 0.75 in its scripts
    }

    @dataclass(frozen=True)
    class Config:
        top_k: int = 5  # dimensions that are compared, paper and released
        label_pairs: Literal["labels", "rank"] = "labels"  # of two labelled images; our decision
        ce_scope: Literal["known", "all"] = "known"  # outputs in the cross-entropy, GCD paper
        consistency_weight: float = 50.0  # after the ramp, released for CIFAR-100 and SVHN
        ramp_share: float = 0.75  # of the epochs, released: 150 of 200

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        self.classifier = ProjectionHead(
            backbone.dim,
            out_dim=task.num_classes,
            layers=1,
            init_std=None,
            generator=task.generator("heads"),
        )

    def step(self, batch: Batch, clock: Clock) -> Step:
        c = self.config
        features = self.encode(batch).cls
        logits = self.classify(features)
        p, q = logits.softmax(1).chunk(2)

        same = same_top_dimensions(features[: len(batch)].detach(), c.top_k)
        if c.label_pairs == "labels":
            same = with_label_pairs(same, batch.labels)
        scope = slice(self.task.num_classes if c.ce_scope == "all" else self.task.num_old)
        targets = None if batch.targets is None else batch.targets[:, scope]
        ramp = ramp_up(clock.epoch, round(c.ramp_share * clock.epochs), c.consistency_weight)

        terms = {
            "classify": cross_entropy_on(
                logits[: len(batch), scope],
                batch.labels,
                targets=targets,
                rows=batch.labelled_rows,
            ),
            "pairs": pairwise_cross_entropy(q, p, same),
            "consistency": ramp * F.mse_loss(p, q),
        }
        return Step(terms, features, logits)

    def classify(self, features: Tensor) -> Tensor:
        return widen(self.classifier(features))
