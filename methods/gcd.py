"""GCD: contrastive representation and semi-supervised k-means (Vaze et al., CVPR 2022).

The backbone is trained by contrastive losses only: between two views for all images, and between
classes for the labelled ones. The head is then dropped; all images are clustered by features, and
labelled images always stay in the cluster of their class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gcdbench.plugin import (
    UNLABELLED,
    Backbone,
    Batch,
    Clock,
    FitContext,
    GCDHead,
    KMeansResult,
    Method,
    PoolFeatures,
    Rows,
    Step,
    Task,
    assign,
    full_precision,
    info_nce,
    semi_supervised_kmeans,
    sup_con,
)


class GCD(Method):
    paper: ClassVar[str] = "https://arxiv.org/abs/2201.02609"
    train_defaults: ClassVar[dict[str, Any]] = {"decay": "all"}  # released: biases decay, too
    provides: ClassVar[frozenset[str]] = frozenset({"projection"})
    tuning: ClassVar[dict[str, Any]] = {  # ranges of `gcdbench tune`, with train.lr and epochs
        "sup_weight": ("uniform", 0.2, 0.5),  # 0.35 in the released code
        "contrast_temp": ("log", 0.3, 1.5),  # 1 in the released code
        "sup_contrast_temp": ("log", 0.05, 0.2),  # 0.07 in the released code
    }

    @dataclass(frozen=True)
    class Config:
        # released: GCD's scripts, with what a suite says of them; hilo: HiLo's repository
        preset: Literal["ours", "released", "hilo"] = "ours"  # ours: as released, one precision
        sup_weight: float = 0.35  # released; the rest, 0.65, is on the unsupervised term
        contrast_temp: float = 1.0  # InfoNCE, released
        sup_contrast_temp: float = 0.07  # SupCon, released
        hidden_dim: int = 2048  # released
        bottleneck_dim: int = 256  # released
        out_dim: int = 65536  # released
        clustering: Literal["pooled", "per_set", "per_set_plain"] = "pooled"  # released
        kmeans_init: int = 10  # released k-means script; its shell script uses 100
        kmeans_iter: int = 100  # released class default; its scripts use 10 and 200

        presets: ClassVar[dict[str, dict[str, Any]]] = {"hilo": {"clustering": "per_set_plain"}}

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
        terms = {"contrast": (1 - w) * contrast, "sup_contrast": w * sup_contrast}
        return Step(terms, features, diagnostics=self._predicted_new(features, batch, clock))

    @full_precision
    def _predicted_new(self, features: Tensor, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Cluster the last batch of an epoch, to watch the share of images in new clusters.

        It is a rough figure: old classes without a labelled image in the batch count as new.
        """
        last = (clock.step + 1) % clock.steps_per_epoch == 0
        if not last or batch.labelled.all():
            return {}
        first, labelled = features[: len(batch)].detach(), batch.labelled
        targets = batch.labels[labelled]
        clusters = self._cluster(first[~labelled], first[labelled], targets, restarts=1)
        known = len(targets.unique())
        return {"predicted_new": (clusters.labels >= known).float().mean()}

    def project(self, features: Tensor) -> Tensor:
        return self.head(features)

    def predict(self, pool: PoolFeatures, context: FitContext) -> Tensor:
        """Cluster images and return the cluster of every query.

        Pooled: the training images are clustered, and every query goes to its nearest centre.
        Per set: each evaluation set is clustered by itself, with the labelled images or, plain,
        without them. The latter is what HiLo's repository does to evaluate GCD. Clusters of
        different sets then have nothing to do with each other, so scores over several sets mean
        nothing.
        """
        c = self.config
        labelled = pool.labelled[:0] if c.clustering == "per_set_plain" else pool.labelled
        anchors = pool.at(labelled), pool.labels[labelled]
        if c.clustering == "pooled":
            unlabelled = pool.at(pool.unlabelled)
            clusters = self._cluster(unlabelled, *anchors, restarts=c.kmeans_init)
            return assign(pool.at(pool.queries), clusters.centers, normalise=True)
        labels = torch.full_like(pool.labels, UNLABELLED)
        for rows in pool.sets:
            if (labels[rows] != UNLABELLED).any():
                raise ValueError("an image is in two evaluation sets: use gcd.clustering=pooled")
            clusters = self._cluster(pool.at(rows), *anchors, restarts=c.kmeans_init)
            labels[rows] = clusters.labels.to(labels)
        return labels[pool.queries]

    def _cluster(
        self, features: Tensor | Rows, anchors: Tensor | Rows, targets: Tensor, *, restarts: int
    ) -> KMeansResult:
        """Cluster directions of features; the anchors stay in the clusters of their targets."""
        return semi_supervised_kmeans(
            features,
            anchors,
            targets,
            self.task.num_classes,
            seed=self.task.seed,
            n_init=restarts,
            max_iter=self.config.kmeans_iter,
            normalise=True,
        )
