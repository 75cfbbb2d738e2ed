"""PIM: a linear classifier of frozen features by mutual information (Chiaroni et al., ICCV 2023).

The backbone is trained as by GCD. Then, on unit features of all training images, a linear
classifier is fitted that is certain of unlabelled images, uses all classes, and fits the labels.
The weight of certainty is the one with which a fit without labels groups the labelled images best.
"Released" below is the authors' code. In it, the fits of that search start from each other by
accident (``search_start: chained``); 0.05, the first weight of the grid, is tried there but cannot
be chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.plugin import (
    UNLABELLED,
    Backbone,
    Batch,
    Clock,
    FitContext,
    GCDHead,
    Method,
    PoolFeatures,
    Step,
    Task,
    accuracies,
    assign,
    info_nce,
    mean_or_zero,
    semi_supervised_kmeans,
    sup_con,
)

GRID = [round(0.05 * number, 2) for number in range(1, 21)]  # released


class PIM(Method):
    paper: ClassVar[str] = "https://arxiv.org/abs/2212.00334"
    train_defaults: ClassVar[dict[str, Any]] = {"decay": "all"}  # released GCD: biases decay, too
    provides: ClassVar[frozenset[str]] = frozenset({"projection"})
    tuning: ClassVar[dict[str, Any]] = {  # ranges of `gcdbench tune`, with train.lr and epochs
        "sup_weight": ("uniform", 0.2, 0.5),  # 0.35 in the released GCD
        "contrast_temp": ("log", 0.3, 1.5),  # 1 in the released GCD
        "scale": ("choice", 10.0, 25.0, 50.0),  # 25 in the released code
    }

    @dataclass(frozen=True)
    class Config:
        certainty_weight: float | None = None  # lambda, searched if None, paper and released
        search_start: Literal["independent", "chained"] = "independent"  # paper; released: chained
        search_steps: int = 1000  # of each fit of the search, released
        fit_steps: int = 1000  # released
        fit_lr: float = 1e-3  # of Adam, released
        fit_decay: float = 0.01  # released
        scale: float = 25.0  # of the logits, released
        kmeans_init: int = 100  # restarts, released
        kmeans_iter: int = 100  # released
        sup_weight: float = 0.35  # released GCD; the rest, 0.65, is on the unsupervised term
        contrast_temp: float = 1.0  # InfoNCE, released GCD
        sup_contrast_temp: float = 0.07  # SupCon, released GCD
        hidden_dim: int = 2048  # released GCD
        bottleneck_dim: int = 256  # released GCD
        out_dim: int = 65536  # released GCD

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
        known = batch.in_views(batch.labelled_rows)
        contrast = info_nce(z, temperature=c.contrast_temp)
        sup_contrast = sup_con(z[known], labels[known], temperature=c.sup_contrast_temp)
        w = c.sup_weight
        return Step({"contrast": (1 - w) * contrast, "sup_contrast": w * sup_contrast}, features)

    def project(self, features: Tensor) -> Tensor:
        return self.head(features)

    def predict(self, pool: PoolFeatures, context: FitContext) -> Tensor:
        """Fit the classifier on all training images and classify the queries."""
        c, k = self.config, self.task.num_classes
        rows = torch.cat([pool.labelled, pool.unlabelled])
        x, labels = F.normalize(pool.features[rows].float(), dim=1), pool.labels[rows]
        fit = {"lr": c.fit_lr, "decay": c.fit_decay, "scale": c.scale}
        weight = c.certainty_weight
        if weight is None:
            start = semi_supervised_kmeans(
                x, None, None, k, init="greedy", max_iter=300, seed=self.task.seed
            )
            chained = c.search_start == "chained"
            weights = GRID if chained else GRID[1:]
            scores = search(
                x, labels, start.centers, weights, chained=chained, steps=c.search_steps, **fit
            )
            weight = choose(weights, scores, skip=int(chained))
        random = np.random.RandomState(self.task.seed)
        centers = cluster_means(x, labels, k, random, n_init=c.kmeans_init, max_iter=c.kmeans_iter)
        classifier = fit_classifier(x, labels, centers, weight, steps=c.fit_steps, **fit)
        queries = F.normalize(pool.features[pool.queries].float(), dim=1)
        return (queries @ classifier.T).argmax(1)


def information_loss(logits: Tensor, labels: Tensor, weight: float, *, labelled: bool) -> Tensor:
    """Return the loss of a classifier of all training images.

    It is minus the entropy of the mean prediction, plus `weight` times the mean entropy of the
    predictions for unlabelled images, plus the cross-entropy of labelled images if `labelled`.
    """
    hidden = labels == UNLABELLED
    p = logits.softmax(1)
    uncertain = mean_or_zero(_entropy(p[hidden] + 2.22e-16))
    mean = p.mean(0)
    loss = weight * uncertain + (mean * (mean + 1e-12).log()).sum()
    if labelled:
        known = F.cross_entropy(logits[~hidden], labels[~hidden], reduction="sum")
        loss = loss + known / (~hidden).sum().clamp(min=1)
    return loss


def _entropy(p: Tensor) -> Tensor:
    return -(p * p.log()).sum(1)


@torch.enable_grad()
def fit_classifier(
    x: Tensor,
    labels: Tensor,
    start: Tensor,
    weight: float,
    *,
    steps: int,
    lr: float,
    decay: float,
    scale: float,
    labelled: bool = True,
) -> Tensor:
    """Return the weights (K, d) of the classifier after full-batch steps of Adam."""
    classifier = start.clone().requires_grad_()
    # the decay is a part of the gradient, not decoupled from it
    optimizer = torch.optim.Adam([classifier], lr=lr, weight_decay=decay)
    for _ in range(steps):
        optimizer.zero_grad()
        logits = scale * x @ classifier.T
        information_loss(logits, labels, weight, labelled=labelled).backward()
        optimizer.step()
    return classifier.detach()


def search(
    x: Tensor,
    labels: Tensor,
    start: Tensor,
    weights: Sequence[float],
    *,
    chained: bool,
    **fit: Any,
) -> list[float]:
    """Return for each weight how well a fit without labels groups the labelled images, percent."""
    known = labels != UNLABELLED
    if not bool(known.any()):
        return [0.0 for _ in weights]
    scores, begin = [], start
    for weight in weights:
        classifier = fit_classifier(x, labels, begin, weight, labelled=False, **fit)
        begin = classifier if chained else start
        found = (x[known] @ classifier.T).argmax(1)
        score = accuracies(preds=found, labels=labels[known], num_old=int(labels.max()) + 1).all
        scores.append(round(100 * score, 2))
    return scores


def choose(weights: Sequence[float], scores: Sequence[float], *, skip: int = 0) -> float:
    """Return the first weight of the best score, without the first `skip` ones."""
    best = max(range(skip, len(weights)), key=lambda number: scores[number])
    return weights[best]


@torch.no_grad()
def cluster_means(
    x: Tensor,
    labels: Tensor,
    k: int,
    random: np.random.RandomState,
    *,
    n_init: int,
    max_iter: int,
) -> Tensor:
    """Return the centres (K, d) of the best restart of semi-supervised k-means."""
    starts = [first_centers(x, labels, k, random) for _ in range(n_init)]
    runs = [lloyd(x, labels, start, max_iter=max_iter) for start in starts]
    return min(runs, key=lambda run: run[1])[0]


def first_centers(x: Tensor, labels: Tensor, k: int, random: np.random.RandomState) -> Tensor:
    """Return the means of the labelled classes, then unlabelled rows by k-means++."""
    known, rest = labels != UNLABELLED, x[labels == UNLABELLED]
    classes = labels[known].unique()
    centers = [x[labels == number].mean(0) for number in classes]
    gap = torch.full((len(rest),), torch.inf, device=x.device)
    for center in centers:
        gap = torch.minimum(gap, (rest - center).square().sum(1))
    for _ in range(k - len(classes)):
        if not len(rest):
            centers.append(x[len(centers) % len(x)])
            continue
        reached = np.cumsum((gap / (gap.sum() + 2.2e-16)).double().cpu().numpy())
        draw = random.random_sample()
        pick = np.searchsorted(reached / reached[-1], draw, side="right") if reached[-1] > 0 else 0
        centers.append(rest[min(int(pick), len(rest) - 1)])
        gap = torch.minimum(gap, (rest - centers[-1]).square().sum(1))
    return torch.stack(centers)


def lloyd(x: Tensor, labels: Tensor, start: Tensor, *, max_iter: int) -> tuple[Tensor, float]:
    """Return the last centres and the lowest sum of distances of any round.

    In the means labelled rows belong to their class; for the sum they go to the nearest centre.
    """
    known = labels != UNLABELLED
    centers, before, lowest = start, None, float("inf")
    for _ in range(max_iter):
        if before is not None:
            centers = means_of(x, torch.where(known, labels, before), centers)
        found = assign(x, centers)
        lowest = min(lowest, float((x - centers[found]).norm(dim=1).sum()))
        if before is not None and torch.equal(found, before):
            break
        before = found
    return centers, lowest


def means_of(x: Tensor, labels: Tensor, centers: Tensor) -> Tensor:
    """Return the mean of each cluster's rows; a cluster without rows keeps its centre."""
    sums = torch.zeros_like(centers, dtype=torch.float64).index_add_(0, labels, x.double())
    sizes = labels.bincount(minlength=len(centers))[:, None]
    return torch.where(sizes > 0, sums / sizes, centers.double()).float()
