"""GCD: contrastive representation and semi-supervised k-means (Vaze et al., CVPR 2022).

The backbone is trained by contrast alone, of two views for all images and of classes for the
labelled ones. The head is dropped afterwards; all images are clustered by their features, and
labelled images always stay in the cluster of their class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from gcdbench.plugin import (
    Backbone,
    Batch,
    Clock,
    FitContext,
    GCDHead,
    Method,
    PoolFeatures,
    Step,
    Task,
    assign,
    info_nce,
    semi_supervised_kmeans,
    sup_con,
)


class GCD(Method):
    paper: ClassVar[str] = "https://arxiv.org/abs/2201.02609"
    train_defaults: ClassVar[dict[str, Any]] = {"decay": "all"}  # released: biases decay, too
    provides: ClassVar[frozenset[str]] = frozenset({"projection"})

    @dataclass(frozen=True)
    class Config:
        sup_weight: float = 0.35  # released; the rest, 0.65, is on the unsupervised term
        contrast_temp: float = 1.0  # InfoNCE, released
        sup_contrast_temp: float = 0.07  # SupCon, released
        hidden_dim: int = 2048  # released
        bottleneck_dim: int = 256  # released
        out_dim: int = 65536  # released
        kmeans_init: int = 10  # released k-means script; its shell script uses 100
        kmeans_iter: int = 100  # released class default; its scripts use 10 and 200

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        self.head = GCDHead(
            backbone.dim,
            hidden_dim=config.hidden_dim,
            bottleneck_dim=config.bottleneck_dim,
            out_dim=config.out_dim,
            generator=task.generator("heads"),
        )

    def step(self, batch: Batch, clock: Clock) -> Step:
        c, labels = self.config, batch.per_view(batch.labels)
        features = self.encode(batch).cls
        z = self.project(features)
        rows = batch.in_views(batch.labelled_rows)

        contrast = info_nce(z, temperature=c.contrast_temp)
        sup_contrast = sup_con(z[rows], labels[rows], temperature=c.sup_contrast_temp)

        w = c.sup_weight
        return Step({"contrast": (1 - w) * contrast, "sup_contrast": w * sup_contrast}, features)

    def project(self, features: Tensor) -> Tensor:
        return self.head(features)

    def predict(self, pool: PoolFeatures, context: FitContext) -> Tensor:
        """Cluster the training images, then give every query to its nearest centre."""
        clusters = semi_supervised_kmeans(
            pool.features[pool.unlabelled],
            pool.features[pool.labelled],
            pool.labels[pool.labelled],
            self.task.num_classes,
            seed=self.task.seed,
            n_init=self.config.kmeans_init,
            max_iter=self.config.kmeans_iter,
            normalise=True,
        )
        return assign(pool.features[pool.queries], clusters.centers, normalise=True)
