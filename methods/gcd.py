"""GCD: contrastive representation and semi-supervised k-means (Vaze et al., CVPR 2022).

The backbone is trained by contrast alone, of two views for all images and of classes for the
labelled ones. The head is dropped afterwards; all images are clustered by their features, and
labelled images always stay in the cluster of their class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from gcdbench.clustering import assign, semi_supervised_kmeans
from gcdbench.losses import info_nce, sup_con
from gcdbench.method import Batch, Clock, Method, Services, Step, Store, Task
from gcdbench.nn.backbone import Backbone
from gcdbench.nn.heads import GCDHead


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
        labelled = labels >= 0

        contrast = info_nce(z, temperature=c.contrast_temp)
        sup_contrast = sup_con(z[labelled], labels[labelled], temperature=c.sup_contrast_temp)

        w = c.sup_weight
        return Step({"contrast": (1 - w) * contrast, "sup_contrast": w * sup_contrast}, features)

    def project(self, features: Tensor) -> Tensor:
        return self.head(features)

    def predict(self, store: Store, services: Services) -> Tensor:
        """Cluster the training images, then give every query to its nearest centre."""
        clusters = semi_supervised_kmeans(
            store.features[store.unlabelled],
            store.features[store.labelled],
            store.labels[store.labelled],
            self.task.num_classes,
            seed=self.task.seed,
            n_init=self.config.kmeans_init,
            max_iter=self.config.kmeans_iter,
            normalise=True,
        )
        return assign(store.features[store.queries], clusters.centers, normalise=True)
