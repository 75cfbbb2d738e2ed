"""UniOT: distinguish images of known classes from the others by unbalanced optimal transport.

All features and prototypes are unit vectors. The caller owns memories and generators.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from gcdbench.ops.losses import mean_or_zero, soft_cross_entropy
from gcdbench.ops.precision import full_precision
from gcdbench.ops.random import draw_integers
from gcdbench.ops.transport import sinkhorn, unbalanced_transport

StopRule = Literal["relative", "pot"]


class Detection(NamedTuple):
    """What a transport plan says about its rows."""

    labels: Tensor  # (n,) the class that gets most of the row's mass
    confident: Tensor  # (n,) bool: that mass is above the average row's
    common: Tensor  # (n,) bool: confident, and the class gets at least its share of all mass
    class_mass: Tensor  # (C,) float64, sums to one


def detect_common(plan: Tensor) -> Detection:
    """Return which rows belong to a known class, and to which, from a normalised (n, C) plan."""
    mass, labels = plan.max(1)
    class_mass = plan.sum(0)
    confident = mass > 1 / max(len(plan), 1)
    absent = class_mass < 1 / plan.shape[1]  # known classes with few rows
    return Detection(labels, confident, confident & ~absent[labels], class_mass)


@torch.no_grad()
@full_precision
def adaptive_filling(
    features: Tensor,
    prototypes: Tensor,
    *,
    generator: Generator,
    gamma: float = 0.7,
    class_mass: Tensor | None = None,
    stop: StopRule = "relative",
    tolerance: float = 1e-4,
) -> Tensor:
    """Return the similarities (fake + n, C) of fake rows of the smaller side, then of the rows.

    Transport assumes about as many known as unknown images. If few rows are similar to a prototype
    (above gamma), confident ones are repeated; if many are, images of no class are made, half-way
    to the farthest prototype.

    Args:
        features: (n, d).
        prototypes: (C, d) of the known classes.
        generator: of the drawn rows.
        gamma: cosine above which a row counts as similar.
        class_mass: see `unbalanced_transport`, as `stop` and `tolerance`.
        stop: rule of the transport that finds confident rows.
        tolerance: of that rule.
    """
    similarity = features @ prototypes.T
    similar = int((similarity.amax(1) > gamma).sum())
    missing = len(features) - 2 * similar  # of similar rows; of dissimilar ones if negative
    if missing >= 0:
        plan = unbalanced_transport(
            similarity, class_mass=class_mass, stop=stop, tolerance=tolerance
        )
        fake = _draw(similarity[detect_common(plan).common], missing, generator)
    else:
        far = prototypes[similarity.argmin(1)]
        fake = F.normalize(_draw((features + far) / 2, -missing, generator), dim=1) @ prototypes.T
    return torch.cat([fake, similarity])


def _draw(rows: Tensor, count: int, generator: Generator) -> Tensor:
    """Return rows drawn with replacement; none if there are no rows."""
    if not len(rows):
        return rows
    return rows[draw_integers(len(rows), count, generator=generator, device=rows.device)]


@full_precision
def nearest_neighbours(features: Tensor, ids: Tensor, memory: Tensor, memory_ids: Tensor) -> Tensor:
    """Return (n, d): for every row the most similar row of another image, remembered or new.

    Neighbours from the batch carry gradients, remembered ones do not.

    Args:
        features: (n, d) of the batch.
        ids: (n,) which image each row shows.
        memory: (m, d) remembered features.
        memory_ids: (m,) which image each of them shows.
    """
    candidates = torch.cat([memory.detach(), features])
    same_image = ids[:, None] == torch.cat([memory_ids, ids])
    similarity = features.detach() @ candidates.detach().T
    return candidates[similarity.masked_fill(same_image, -torch.inf).argmax(1)]


@full_precision
def private_class_loss(
    features: Tensor,
    neighbours: Tensor,
    remembered: Tensor,
    prototypes: Tensor,
    *,
    temperature: float = 0.1,
    epsilon: float = 0.05,
    iterations: int = 3,
) -> Tensor:
    """Return the clustering loss: balanced assignments, swapped between rows and neighbours.

    Args:
        features: (n, d) of the batch.
        neighbours: (n, d), see `nearest_neighbours`.
        remembered: (m, d) further features, so that the assignment sees more than a batch.
        prototypes: (k, d) of the clusters.
        temperature: of the prediction.
        epsilon: of the assignment, see `sinkhorn`, as `iterations`.
        iterations: of the assignment.
    """
    n = len(features)
    if not n:
        return mean_or_zero(features @ prototypes.T)
    logits = torch.cat([features, neighbours, remembered]) @ prototypes.T
    q = sinkhorn(logits, epsilon=epsilon, iterations=iterations)

    def loss(predicting: slice, assigned: slice) -> Tensor:
        return soft_cross_entropy(logits[predicting], q[assigned], temperature=temperature).mean()

    own, near = slice(0, n), slice(n, 2 * n)
    return (loss(own, own) + (loss(own, near) + loss(near, own)) / 2) / 2
