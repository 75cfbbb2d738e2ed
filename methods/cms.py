"""CMS: contrast of embeddings moved towards their neighbours (Choi et al., CVPR 2024).

Every embedding is moved one mean-shift step towards its nearest neighbours among the embeddings of
all training images, and two views are contrasted after that. At the end all images are moved
several times and clustered hierarchically (Ward); how often is decided by the accuracy on labelled
images. "Released" below is the authors' code. It remembers two augmented views of each image; here
one centre crop is remembered, which is what the benchmark computes. The released evaluation moves
images while it still reads them; here a round reads the last one.

Ward's clustering needs memory for all pairs of images. Above ``ward_rows`` images, k-means makes
``ward_groups`` groups first, which are then merged by the same criterion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.plugin import (
    UNLABELLED,
    Backbone,
    Batch,
    Clock,
    EpochPlan,
    FitContext,
    GCDHead,
    Method,
    PoolFeatures,
    Step,
    Task,
    accuracies,
    assign,
    full_precision,
    k_nearest,
    mean_or_zero,
    sup_con,
    ward_clusters,
)


class CMS(Method):
    paper: ClassVar[str] = "https://arxiv.org/abs/2404.09451"
    sweeps: ClassVar[str] = "epoch"
    train_defaults: ClassVar[dict[str, Any]] = {
        "lr": 0.05,  # released scripts of the fine-grained datasets; 0.01 for the others
        "decay": "all",  # released: biases decay, too
        "min_lr_share": 5e-3,  # released scripts of the fine-grained datasets; 1e-3 else
    }
    provides: ClassVar[frozenset[str]] = frozenset({"projection"})
    tuning: ClassVar[dict[str, Any]] = {  # ranges of `gcdbench tune`, with train.lr and epochs
        "shift": ("uniform", 0.25, 0.75),  # 0.5 in the paper
        "neighbours": ("choice", 4, 8, 16),  # 8 in the paper
        "contrast_temp": ("choice", 0.2, 0.25, 0.3, 0.5),  # 0.25 and 0.3 in its scripts
    }

    bank: Tensor

    @dataclass(frozen=True)
    class Config:
        preset: Literal["fine", "generic"] = "fine"  # released scripts; generic: train.lr=0.01, too
        neighbours: int = 8  # released
        shift: float = 0.5  # share of the neighbours' mean, released
        contrast_temp: float = 0.25  # released scripts of the fine-grained datasets
        sup_contrast_temp: float = 0.07  # SupCon, released
        sup_weight: float = 0.35  # released; the rest, 0.65, is on the unsupervised term
        rounds: int = 20  # of mean shift at the end, at most, released
        patience: int = 2  # rounds without a better accuracy on labelled images, released
        ward_rows: int = 20_000  # clustered exactly, 1.6 GB of distances, ours
        ward_groups: int = 5_000  # of more rows than those, ours
        hidden_dim: int = 2048  # released
        bottleneck_dim: int = 256  # released
        out_dim: int = 768  # released

        presets: ClassVar[dict[str, dict[str, Any]]] = {"generic": {"contrast_temp": 0.3}}

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        self.head = GCDHead(
            backbone.dim,
            hidden_dim=config.hidden_dim,
            bottleneck_dim=config.bottleneck_dim,
            out_dim=config.out_dim,
            generator=task.generator("heads"),
        )
        # saved with the run, since a run can be resumed within an epoch
        self.register_buffer("bank", torch.zeros(len(task.labels), config.out_dim))

    def begin_epoch(self, clock: Clock, context: FitContext) -> EpochPlan | None:
        pool = context.compute_features()
        self.bank.copy_(self.embed(pool.features[torch.cat([pool.labelled, pool.unlabelled])]))
        return None

    def step(self, batch: Batch, clock: Clock) -> Step:
        c, labels = self.config, batch.per_view(batch.labels)
        features = self.encode(batch).cls
        z = F.normalize(self.project(features).float(), dim=1)
        means = neighbour_means(z.detach(), self.bank, c.neighbours, wait=False)
        shifted = mean_shift_contrast(z, means, share=c.shift, temperature=c.contrast_temp)
        known = batch.in_views(batch.labelled_rows)
        sup_contrast = sup_con(z[known], labels[known], temperature=c.sup_contrast_temp)
        w = c.sup_weight
        return Step({"meanshift": (1 - w) * shifted, "sup_contrast": w * sup_contrast}, features)

    def project(self, features: Tensor) -> Tensor:
        return self.head(features)

    @torch.no_grad()
    def embed(self, features: Tensor) -> Tensor:
        """Return unit embeddings (n, e)."""
        parts = [self.project(chunk).float() for chunk in features.split(4096)]
        return F.normalize(torch.cat(parts), dim=1)

    def predict(self, pool: PoolFeatures, context: FitContext) -> Tensor:
        """Cluster the training images; other queries move along and take the nearest cluster."""
        c = self.config
        trained = torch.cat([pool.labelled, pool.unlabelled])
        others = ~torch.isin(pool.queries, trained)
        found = mean_shift_clusters(
            self.embed(pool.features[trained]),
            pool.labels[trained],
            self.task.num_classes,
            queries=self.embed(pool.features[pool.queries[others]]),
            neighbours=c.neighbours,
            share=c.shift,
            rounds=c.rounds,
            patience=c.patience,
            ward={"most_rows": c.ward_rows, "groups": c.ward_groups, "seed": self.task.seed},
        )
        predicted = torch.zeros(len(pool.features), dtype=torch.long, device=trained.device)
        predicted[trained] = found.labels
        predicted[pool.queries[others]] = found.query_labels
        return predicted[pool.queries]


class Clusters(NamedTuple):
    """What mean shift and Ward found."""

    labels: Tensor  # (n,) of the rows that were clustered
    query_labels: Tensor  # (m,) of the others
    round: int  # how often the rows were moved; 0: not at all


def neighbour_means(x: Tensor, rows: Tensor, k: int, *, skip: int = 1, wait: bool = True) -> Tensor:
    """Return (n, d): means of the k rows nearest to each of x, without the `skip` nearest ones.

    The nearest row is the image itself where x and rows show the same images. Without ``wait`` a
    GPU searches in float32 alone.
    """
    k = min(k, len(rows) - skip)
    return rows[k_nearest(x, rows, k + skip, wait=wait).indices[:, skip:]].mean(1)


@full_precision
def mean_shift_contrast(z: Tensor, means: Tensor, *, share: float, temperature: float) -> Tensor:
    """Contrast the two views of every image after a step towards their neighbours' means.

    The other view is no part of the sum over all other rows, so the loss can be negative. The
    length by which a moved embedding is divided is a constant for the gradient.

    Args:
        z: (2B, d) unit embeddings, view-major.
        means: (2B, d) of their neighbours.
        share: of the neighbours' mean in the moved embedding.
        temperature: of the contrast.
    """
    number = len(z)
    if number <= 2:  # a single image has nothing to be contrasted with
        return mean_or_zero(z[:0])
    moved = (1 - share) * z + share * means
    moved = moved / moved.detach().norm(dim=1, keepdim=True).clamp(min=1e-12)
    scores = moved @ moved.T / temperature
    itself = torch.eye(number, dtype=torch.bool, device=z.device)
    partner = itself.roll(number // 2, dims=0)
    others = scores.masked_fill(itself | partner, -torch.inf)
    return mean_or_zero(others.logsumexp(1) - scores[partner])


def mean_shift_clusters(
    x: Tensor,
    labels: Tensor,
    k: int,
    *,
    queries: Tensor,
    neighbours: int,
    share: float,
    rounds: int,
    patience: int,
    ward: dict[str, int],
) -> Clusters:
    """Move unit rows towards their neighbours round by round and return the best clustering.

    Best is the round whose clusters fit the visible labels best, of equal ones the last.

    Args:
        x: (n, d) rows that are clustered.
        labels: (n,), -1 where hidden.
        k: number of clusters.
        queries: (m, d) rows that move along, and go to the nearest cluster.
        neighbours: number of neighbours in a step.
        share: of the neighbours' mean in a moved row.
        rounds: at most as many, the one without a step included.
        patience: stop after as many rounds that were not better than the best.
        ward: settings of `ward_clusters`.
    """
    known = labels != UNLABELLED
    best, score, waited = Clusters(labels, labels[:0], -1), -1.0, 0
    for number in range(rounds):
        if number:
            targets = neighbour_means(x, x, neighbours)
            queries = step_towards(queries, neighbour_means(queries, x, neighbours, skip=0), share)
            x = step_towards(x, targets, share)
        found = ward_clusters(x, k, **ward)
        reached = labelled_accuracy(found[known], labels[known])
        waited = 0 if reached > score else waited + 1
        if reached >= score:
            best, score = Clusters(found, nearest_cluster(queries, x, found), number), reached
        if waited >= patience:
            break
    return best


def step_towards(x: Tensor, means: Tensor, share: float) -> Tensor:
    """Return unit rows that have moved a share of the way to other points."""
    return F.normalize((1 - share) * x + share * means, dim=1)


def nearest_cluster(queries: Tensor, x: Tensor, labels: Tensor) -> Tensor:
    """Return the cluster whose mean is nearest to each query."""
    if not len(queries):
        return labels[:0]
    sums = x.new_zeros(int(labels.max()) + 1, x.shape[1]).index_add_(0, labels, x)
    return assign(queries, F.normalize(sums, dim=1))


def labelled_accuracy(clusters: Tensor, labels: Tensor) -> float:
    """Return the share of labelled rows in the cluster of their class, by the best matching."""
    if not len(labels):
        return 0.0
    return accuracies(preds=clusters, labels=labels, num_old=int(labels.max()) + 1).all
