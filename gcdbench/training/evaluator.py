"""Predictions and scores of the evaluation sets."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from gcdbench.data.problem import Problem
from gcdbench.ops.kmeans.api import semi_supervised_kmeans
from gcdbench.training.compose import Composed
from gcdbench.training.features.pool import PoolEncoder
from gcdbench.training.method import FitContext
from gcdbench.training.scores import Scores, score_predictions


@dataclass(frozen=True)
class Evaluation:
    """The scores of every evaluation set, and the predictions that they are computed from."""

    scores: Scores
    predictions: dict[str, np.ndarray]  # set -> predicted cluster of its images, in order


def _own_clusters(problem: Problem, encoder: PoolEncoder) -> dict[str, np.ndarray]:
    """Return clusters of every unseen set, found among its own images alone."""
    found = {}
    for name, one in problem.sets.items():
        if one.role == "unseen":
            features = encoder.compute_features().features[np.searchsorted(encoder.rows, one.rows)]
            number = min(problem.num_classes, len(features))
            clusters = semi_supervised_kmeans(features, None, None, number, normalise=True)
            found[name] = clusters.labels.cpu().numpy().astype(np.int32)
    return found


@torch.no_grad()
def evaluate(
    model: Composed, problem: Problem, encoder: PoolEncoder, context: FitContext
) -> Evaluation:
    """Return predictions and scores; each evaluation set has its own assignment."""
    model.eval()
    sets = tuple(rows.to(encoder.device) for rows in encoder.sets)
    pool = replace(encoder.compute_features(), sets=sets)
    predicted = model.predict(pool, context).cpu().numpy()
    if predicted.shape != encoder.query_rows.shape:
        raise ValueError(
            f"predict returned {predicted.shape} values for {len(encoder.query_rows)} queries"
        )
    predictions = {
        name: predicted[np.searchsorted(encoder.query_rows, one.rows)].astype(np.int32)
        for name, one in problem.sets.items()
    }
    if problem.cluster_unseen:
        predictions |= _own_clusters(problem, encoder)
    return Evaluation(score_predictions(predictions, problem), predictions)
