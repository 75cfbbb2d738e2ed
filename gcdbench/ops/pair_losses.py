"""Losses on pairs of images: rank statistics (AutoNovel) and positive partners (ORCA)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from gcdbench.ops.labels import UNLABELLED
from gcdbench.ops.losses import cross_entropy_on, mean_or_zero
from gcdbench.ops.precision import full_precision
from gcdbench.ops.random import draw_uniform


@torch.no_grad()
@full_precision
def same_top_dimensions(features: Tensor, k: int = 5) -> Tensor:
    """Return (n, n) bool: which pairs of rows have the same set of k largest (signed) dimensions.

    The order inside the set does not matter. A row forms a positive pair with itself.
    """
    top = torch.zeros_like(features).scatter_(1, features.topk(k, dim=1).indices, 1.0)
    return (top @ top.T).round() == k


def with_label_pairs(same: Tensor, labels: Tensor) -> Tensor:
    """Return the pairs with those of two labelled rows decided by their labels."""
    labelled = labels != UNLABELLED
    return torch.where(labelled[:, None] & labelled, labels[:, None] == labels, same)


@full_precision
def pairwise_cross_entropy(p: Tensor, q: Tensor, same: Tensor, *, eps: float = 1e-7) -> Tensor:
    """Return the mean binary cross-entropy of "row i of p and row j of q agree" over all pairs.

    Args:
        p: (n, K) posteriors of one view.
        q: (m, K) posteriors of the other view; the probability that two rows agree is p_i . q_j.
        same: (n, m) bool, which pairs should agree.
        eps: keeps the logarithms finite.
    """
    agree = p @ q.T
    return mean_or_zero(-torch.where(same, agree + eps, 1 - agree + eps).log())


@full_precision
def margin_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    uncertainty: float | Tensor,
    targets: Tensor | None = None,
    rows: Tensor | None = None,
    scale: float = 10.0,
    largest: float = 0.5,
) -> Tensor:
    """Return the mean cross-entropy of labelled rows with a margin added for the true class.

    The margin makes the labelled task easier, so that the known classes are learnt more slowly
    while the unlabelled images are still uncertain.

    Args:
        logits: (n, K), `scale` times cosines.
        labels: (n,), UNLABELLED where hidden.
        uncertainty: 1 - mean confidence on the unlabelled images; the margin between cosines.
        targets: (n, K) distributions to learn in place of the labels; they get the same margin.
        rows: those whose label is not hidden, see `cross_entropy_on`.
        scale: of the logits.
        largest: upper limit of the margin.
    """
    margin = scale * torch.as_tensor(uncertainty, device=logits.device).clamp(max=largest)
    start = F.one_hot(labels.clamp(min=0), logits.shape[1]) if targets is None else targets
    return cross_entropy_on(logits + margin * start, labels, targets=targets, rows=rows)


@torch.no_grad()
@full_precision
def positive_partners(features: Tensor, labels: Tensor, *, generator: Generator) -> Tensor:
    """Return a partner row for every row of a batch, as (n,) indices.

    A labelled row gets a random other row of its label (itself if there is none), an unlabelled row
    its nearest neighbour by cosine among all other rows.
    """
    n = len(features)
    itself = torch.eye(n, dtype=torch.bool, device=features.device)
    z = F.normalize(features, dim=1)
    nearest = (z @ z.T).masked_fill(itself, -torch.inf)
    mates = (labels[:, None] == labels) & ~itself
    mates = mates | (itself & ~mates.any(1, keepdim=True))
    lottery = draw_uniform(n, n, generator=generator, device=features.device).masked_fill(
        ~mates, -1.0
    )
    return torch.where((labels != UNLABELLED)[:, None], lottery, nearest).argmax(1) if n else labels


@full_precision
def agreement_loss(logits: Tensor, partners: Tensor) -> Tensor:
    """Return the mean of -log(p_i . q_i) over the rows of two (n, K) logits of partners."""
    agree = (logits.log_softmax(1) + partners.log_softmax(1)).logsumexp(1)
    return mean_or_zero(-agree.clamp(min=-100.0))
