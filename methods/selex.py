"""SelEx: contrast on a ladder of ever coarser clusterings (Rastegar et al., ECCV 2024).

Before every epoch all images are clustered into K, K/2, K/4, ... clusters. The supervised contrast
is repeated for the clusters of each rung, on fewer and fewer leading dimensions of the embedding;
the targets of the unsupervised contrast give weight to pairs that are far apart for the size of
their cluster. At the end the features are clustered. "Released" below is the authors' code.

In it, clusters of the coarser rungs are given to the wrong unlabelled images (``alignment``), and
distances of raw features are compared with radii of unit ones, so that every pair is far apart
(``pair_features``). Here clusters are made from centre crops, in place of one augmented view, and
with the benchmark's sampler, of which half is labelled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
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
    assign,
    balanced_kmeans,
    contrast_by_score,
    draw_integers,
    euclidean_distances,
    full_precision,
    log_prob_of_others,
    mean_or_zero,
    other_view,
    semi_supervised_kmeans,
)


class SelEx(Method):
    paper: ClassVar[str] = "https://arxiv.org/abs/2408.14371"
    sweeps: ClassVar[str] = "epoch"
    train_defaults: ClassVar[dict[str, Any]] = {
        "weight_decay": 1e-4,  # released default; its shell scripts have 5e-5
        "decay": "all",  # released: biases decay, too
    }
    train_blocks: ClassVar[int] = 2  # released; 3 for Cars
    provides: ClassVar[frozenset[str]] = frozenset({"projection"})
    tuning: ClassVar[dict[str, Any]] = {  # ranges of `gcdbench tune`, with train.lr and epochs
        "smoothing": ("choice", 0.1, 0.5, 1.0),  # its README
        "sup_weight": ("uniform", 0.2, 0.5),  # 0.35 in the released code
        "contrast_temp": ("log", 0.3, 1.5),  # 1 in the released code
    }

    clusters: Tensor
    radii: Tensor

    @dataclass(frozen=True)
    class Config:
        preset: Literal["fine", "aircraft", "generic", "herbarium"] = "fine"  # released README
        smoothing: float = 1.0  # of the contrast's targets, released default, CUB and Cars
        pair_features: Literal["raw", "unit"] = "raw"  # released; unit: as large as the radii are
        alignment: Literal["aligned", "released"] = "aligned"  # ours; released: misread order
        limited: bool = True  # clusters have a capacity, released; off for Herbarium
        interval: int = 1  # epochs between two clusterings, released
        kmeans_iter: int = 10  # in each of two phases, released
        kmeans_init: int = 10  # restarts of the last clustering, released; its script has 100
        sup_weight: float = 0.35  # released; the rest, 0.65, is on the unsupervised term
        contrast_temp: float = 1.0  # released
        sup_contrast_temp: float = 0.07  # released
        hidden_dim: int = 2048  # released
        bottleneck_dim: int = 256  # released
        out_dim: int = 65536  # released

        presets: ClassVar[dict[str, dict[str, Any]]] = {
            "aircraft": {"smoothing": 0.5},
            "generic": {"smoothing": 0.1},
            "herbarium": {"smoothing": 0.1, "limited": False},
        }

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        self.head = GCDHead(
            backbone.dim,
            hidden_dim=config.hidden_dim,
            bottleneck_dim=config.bottleneck_dim,
            out_dim=config.out_dim,
            generator=task.generator("heads"),
        )
        # of every image at every rung: its cluster, and half the distance to the nearest other one
        shape = len(rung_sizes(task.num_old, task.num_new)), len(task.labels)
        self.register_buffer("clusters", torch.zeros(shape, dtype=torch.long))
        self.register_buffer("radii", torch.zeros(shape))

    def begin_epoch(self, clock: Clock, context: FitContext) -> EpochPlan | None:
        c = self.config
        if clock.epoch % c.interval:
            return None
        pool = context.compute_features()
        rows = torch.cat([pool.labelled, pool.unlabelled])
        seed = draw_integers(2**31 - 1, 1, generator=context.generator("rungs", clock.epoch))
        rungs = climb(
            F.normalize(pool.features[rows].float(), dim=1),
            pool.labels[rows],
            self.task.num_old,
            self.task.num_new,
            limited=c.limited,
            aligned=c.alignment == "aligned",
            max_iter=c.kmeans_iter,
            random=np.random.RandomState(int(seed)),
        )
        hidden = self.task.labels == UNLABELLED
        order = torch.cat([(~hidden).nonzero(), hidden.nonzero()]).squeeze(1).to(rows.device)
        for number, rung in enumerate(rungs):
            self.clusters[number, order] = rung.labels
            self.radii[number, order] = half_gaps(rung.centers)[rung.labels]
        return None

    def step(self, batch: Batch, clock: Clock) -> Step:
        c = self.config
        features = self.encode(batch).cls
        z = F.normalize(self.project(features).float(), dim=1)
        clusters, radii = (
            torch.stack([batch.per_view(rung) for rung in table[:, batch.index]])
            for table in (self.clusters, self.radii)
        )
        v = features.detach().float()
        v = F.normalize(v, dim=1) if c.pair_features == "unit" else v
        far = far_pairs(v, radii)

        leading = [z.shape[1] >> (rung + 1) for rung in range(len(clusters))]
        whole, *parts = euclidean_distances(z, leading)
        contrast = smoothed_contrast(-whole / c.contrast_temp, far, share=c.smoothing)
        labels = batch.per_view(batch.labels)
        known = batch.in_views(batch.labelled_rows)
        sup_contrast = contrast_by_score(
            -whole[known][:, known] / c.sup_contrast_temp, labels[known][:, None] == labels[known]
        )
        rungs = [
            2.0 ** -(rung + 1) * contrast_by_score(-part / c.sup_contrast_temp, y[:, None] == y)
            for rung, (part, y) in enumerate(zip(parts, clusters, strict=True))
            if leading[rung]
        ]
        w = c.sup_weight
        terms = {
            "contrast": (1 - w) * contrast,
            "sup_contrast": w / 2 * sup_contrast,
            "rung_contrast": w / 2 * torch.stack(rungs).sum(),
        }
        return Step(terms, features)

    def project(self, features: Tensor) -> Tensor:
        return self.head(features)

    def predict(self, pool: PoolFeatures, context: FitContext) -> Tensor:
        """Cluster the training images; other queries go to the nearest centre."""
        x = F.normalize(pool.features.float(), dim=1)
        number = len(pool.labelled) + len(pool.unlabelled)
        found = balanced_kmeans(
            x[pool.unlabelled],
            x[pool.labelled],
            pool.labels[pool.labelled],
            self.task.num_classes,
            capacity=math.ceil(number / self.task.num_classes) if self.config.limited else None,
            random=np.random.RandomState(self.task.seed),
            n_init=self.config.kmeans_init,
            max_iter=self.config.kmeans_iter,
        )
        predicted = assign(x, found.centers)
        predicted[pool.unlabelled] = found.labels
        return predicted[pool.queries]


class Rung(NamedTuple):
    """One clustering of the pool."""

    labels: Tensor  # (n,)
    centers: Tensor  # (k, d)


def rung_sizes(num_old: int, num_new: int) -> list[tuple[int, int]]:
    """Return the numbers of old and new clusters of every rung, each half of the one before.

    >>> rung_sizes(5, 3)
    [(5, 3), (2, 1), (1, 1)]
    """
    sizes = [(num_old, num_new)]
    while sizes[-1][0] > 1:
        old, new = sizes[-1]
        sizes.append((max(old // 2, 1), max(new // 2, 1)))
    return sizes


def group_centers(centers: Tensor, number: int) -> Tensor:
    """Return the group (n,) of each centre, by plain k-means."""
    return semi_supervised_kmeans(centers, None, None, number, init="greedy", max_iter=300).labels


@torch.no_grad()
def climb(
    x: Tensor,
    labels: Tensor,
    num_old: int,
    num_new: int,
    *,
    limited: bool,
    aligned: bool,
    max_iter: int,
    random: np.random.RandomState,
    group: Callable[[Tensor, int], Tensor] = group_centers,
) -> list[Rung]:
    """Cluster the pool for every rung.

    The first rung is clustered by the labels. For each other one, the centres of the old classes
    are grouped, and all images in an old cluster count as labelled with its group.

    Args:
        x: (n, d) unit features, labelled rows first.
        labels: (n,), -1 where hidden.
        num_old: number of old classes.
        num_new: number of new classes.
        limited: whether clusters have a capacity, n/k.
        aligned: False repeats the released code, which reads the clusters of a coarser rung in
            the order of the pool though they come in that of old and other images.
        max_iter: of the k-means.
        random: of the k-means.
        group: how centres are grouped.
    """

    def cluster(known: Tensor, targets: Tensor, old: int, new: int) -> tuple[Rung, Tensor]:
        other = (~known).nonzero().squeeze(1)
        k = old + min(new, len(other))
        found = balanced_kmeans(
            x[other],
            x[known],
            targets,
            k,
            capacity=math.ceil(len(x) / k) if limited else None,
            random=random,
            max_iter=max_iter,
        )
        order = torch.cat([known.nonzero().squeeze(1), other])
        return Rung(torch.cat([found.labelled_labels, found.labels]), found.centers), order

    sizes = rung_sizes(num_old, num_new)
    known = labels != UNLABELLED
    finest, order = cluster(known, labels[known], *sizes[0])
    finest = finest._replace(labels=torch.empty_like(order).index_copy_(0, order, finest.labels))
    rungs, old = [finest], finest.labels < num_old
    for size in sizes[1:]:
        groups = group(finest.centers[:num_old], size[0])
        rung, order = cluster(old, groups[finest.labels[old]], *size)
        if aligned:
            placed = torch.empty_like(order).index_copy_(0, order, rung.labels)
            rung = rung._replace(labels=placed)
        rungs.append(rung)
    return rungs


def half_gaps(centers: Tensor) -> Tensor:
    """Return half the distance of each centre from the nearest other one; inf if it is alone."""
    gaps = torch.cdist(centers, centers, compute_mode="donot_use_mm_for_euclid_dist")
    return gaps.fill_diagonal_(torch.inf).amin(1) / 2


@torch.no_grad()
@full_precision
def far_pairs(v: Tensor, radii: Tensor) -> Tensor:
    """Return the weight (n, n) that each row's targets give to the others.

    It is the share of rungs at which a pair is farther apart than the diameter of the second
    row's cluster, the finest rung counting most. Released: each column is divided by the sum of
    the row of the same number, so that the weights of a row sum to about one.

    Args:
        v: (n, d) features.
        radii: (rungs, n) of each row's cluster.
    """
    (gaps,) = euclidean_distances(v)
    far = sum(2.0**-rung * (gaps > 2 * radius).float() for rung, radius in enumerate(radii))
    assert isinstance(far, Tensor)
    far = (far - far.min()) / (far.max() - far.min() + 1e-7)
    return far / far.sum(1).clamp(min=1e-12)


@full_precision
def smoothed_contrast(scores: Tensor, far: Tensor, *, share: float) -> Tensor:
    """Contrast two views with all other rows, with a share of the target on pairs far apart."""
    target = (1 - share) * other_view(len(scores), scores.device) + share * far
    log_prob = log_prob_of_others(scores).fill_diagonal_(0.0)
    return mean_or_zero(-(target * log_prob).sum(1))
