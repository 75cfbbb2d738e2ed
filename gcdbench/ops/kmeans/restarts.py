"""Run all restarts of a small k-means in one loop.

With a few hundred rows, as in a batch, a step of k-means takes as long as the calls that it is made
of. All restarts share them here, in double precision, so that products need no second look.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

MOST_NUMBERS = 2**20  # rows x restarts x features that are clustered here


@dataclass(frozen=True)
class Restarts:
    """The state of every restart at its end."""

    labels: Tensor  # (r, n)
    centers: Tensor  # (r, k, d)
    inertia: Tensor  # (r,), of the unlabelled rows
    n_iter: Tensor  # (r,)


def fits(x: Tensor, restarts: int) -> bool:
    """Return whether a problem is small enough."""
    return x.numel() * restarts <= MOST_NUMBERS


def lloyd_restarts(
    x: Tensor, sums: Tensor, sizes: Tensor, centers: Tensor, *, max_iter: int, tol: float
) -> Restarts:
    """Alternate assignment and means in all restarts until each of them stops.

    A restart stops as it would alone: when no label changes, when its centres have moved by less
    than the tolerance, or at the last step. Its centres are those that its labels belong to.

    Args:
        x: (n, d) unlabelled rows.
        sums: (k, d) of the labelled rows of each cluster.
        sizes: (k,) their number.
        centers: (r, k, d) to start from.
        max_iter: assignments per restart.
        tol: of the squared sum of the centres' shifts.
    """
    restarts = len(centers)
    rows = x.double()
    labels = torch.full((restarts, len(x)), -1, device=x.device)
    moving = torch.ones(restarts, dtype=torch.bool, device=x.device)
    n_iter = torch.zeros(restarts, dtype=torch.long, device=x.device)
    for step in range(1, max_iter + 1):
        n_iter += moving
        places = centers.double()
        scores = (rows @ places.mT).sub_(0.5 * places.square().sum(2)[:, None])
        before, labels = labels, torch.where(moving[:, None], scores.argmax(2), labels)
        moving = moving & (before != labels).any(1)
        if step == max_iter or not bool(moving.any()):
            break
        member = torch.zeros_like(scores).scatter_(2, labels[..., None], 1.0)
        counts = (member.sum(1) + sizes)[..., None]
        means = torch.where(counts > 0, (member.mT @ rows + sums) / counts, places).float()
        shift = torch.linalg.vector_norm(means - centers, dim=2).sum(1)
        moving = moving & (shift.square() >= tol)
        centers = torch.where(moving[:, None, None], means, centers)
    own = centers.double().gather(1, labels[..., None].expand(-1, -1, rows.shape[1]))
    return Restarts(labels, centers, (rows - own).square().sum((1, 2)), n_iter)
