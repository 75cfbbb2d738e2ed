"""What is measured next to predictions, because features and probabilities are not stored.

A few bytes for each evaluated image, kept with the predictions, from which scores can be computed
again without torch: see ``from_evidence`` in ``scores``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.ops.kmeans.rows import Rows, as_rows
from gcdbench.ops.neighbours import k_nearest
from gcdbench.training.scoring.scores import NEIGHBOURS

SAMPLE = 4096  # images of a set, at equal distances, of which the silhouette is computed
ROWS = 4096  # images that are classified at a time


@torch.no_grad()
def of_probabilities(
    classify: Callable[[Tensor], Tensor], features: Tensor | Rows, predicted: Tensor, num_old: int
) -> dict[str, Tensor]:
    """Return novelty and confidence (n,) of images; nothing if the classifier does not predict.

    Novelty is the log odds of the new classes together against the old ones together, confidence
    the probability of the predicted class. Both are of half precision. A method whose predictions
    are not the most probable classes, for example clusters of k-means, has neither.
    """
    novelty, confidence = [], []
    for some, chosen in zip(features.split(ROWS), predicted.split(ROWS), strict=True):
        logits = classify(some).float()
        if logits.shape[1] <= num_old or not bool((logits.argmax(1) == chosen).all()):
            return {}
        novelty.append(logits[:, num_old:].logsumexp(1) - logits[:, :num_old].logsumexp(1))
        confidence.append(logits.softmax(1).amax(1))
    return {"novelty": torch.cat(novelty).half(), "confidence": torch.cat(confidence).half()}


@torch.no_grad()
def same_class_neighbours(features: Tensor | Rows, labels: np.ndarray) -> np.ndarray:
    """Return (n,) how many of an image's nearest other images of its set are of its class.

    The ``NEIGHBOURS`` with the highest cosine are taken, or all others in a smaller set.
    """
    unit, k = as_rows(features, normalise=True), min(NEIGHBOURS, len(features) - 1)
    near = k_nearest(unit, unit, k + 1).indices.cpu().numpy()
    others = near != np.arange(len(near))[:, None]
    others[others.all(1), -1] = False  # a copy took the place of the image itself
    found = near[others].reshape(len(near), k)
    return np.asarray((labels[found] == labels[:, None]).sum(1), dtype=np.uint8)


@torch.no_grad()
def silhouette(features: Tensor | Rows, clusters: Tensor) -> float:
    """Return the mean silhouette of clusters of directions, from at most ``SAMPLE`` images.

    Distances are Euclidean; an image that is alone in its cluster counts 0 (Rousseeuw, 1987), and
    so does everything if there is one cluster only.
    """
    step = -(-len(features) // SAMPLE)
    unit = F.normalize(features[::step].double(), dim=1)
    _, ids = clusters[::step].to(unit.device).unique(return_inverse=True)
    members = F.one_hot(ids).to(unit.dtype)
    sizes = members.sum(0)
    if len(sizes) < 2:
        return 0.0
    sums = torch.cat([torch.cdist(some, unit) @ members for some in unit.split(512)])
    own = sums.gather(1, ids[:, None]).squeeze(1) / (sizes[ids] - 1).clamp(min=1)
    means = (sums / sizes).scatter(1, ids[:, None], torch.inf)
    other = means.amin(1)
    values = (other - own) / torch.maximum(other, own).clamp(min=1e-12)
    return float(torch.where(sizes[ids] > 1, values, 0.0).mean())


def by_set(
    values: Mapping[str, np.ndarray], places: Mapping[str, np.ndarray]
) -> dict[str, dict[str, np.ndarray]]:
    """Return values of all evaluated images as kind -> set -> values of its images."""
    return {
        kind: {name: array[where] for name, where in places.items()}
        for kind, array in values.items()
    }
