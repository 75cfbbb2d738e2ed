"""Predictions and scores of the evaluation sets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch

from gcdbench.data.problem import Problem
from gcdbench.ops.kmeans.api import semi_supervised_kmeans
from gcdbench.training.compose import Composed
from gcdbench.training.features.pool import PoolEncoder
from gcdbench.training.method import FitContext
from gcdbench.training.scoring import evidence
from gcdbench.training.scoring.scores import NO_EVIDENCE, Evidence, Scores, score_predictions


@dataclass(frozen=True)
class Evaluation:
    """The scores of every evaluation set, and the predictions that they are computed from."""

    scores: Scores
    predictions: dict[str, np.ndarray]  # set -> predicted cluster of its images, in order
    evidence: Evidence = field(default_factory=dict)  # what further scores need, see ``evidence``


def _own_clusters(problem: Problem, encoder: PoolEncoder) -> dict[str, np.ndarray]:
    """Return clusters of every unseen set, found among its own images alone."""
    found = {}
    for name, one in problem.sets.items():
        if one.role == "unseen":
            features = encoder.compute_features().at(encoder.find(one.rows))
            number = min(problem.num_classes, len(features))
            clusters = semi_supervised_kmeans(features, None, None, number, normalise=True)
            found[name] = clusters.labels.cpu().numpy().astype(np.int32)
    return found


@torch.no_grad()
def evaluate(
    model: Composed,
    problem: Problem,
    encoder: PoolEncoder,
    context: FitContext,
    *,
    measure: bool = False,
) -> Evaluation:
    """Return predictions and scores; each evaluation set has its own assignment.

    With ``measure``, what scores of features and probabilities need is measured as well.
    """
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
    found = _measured(model, problem, encoder, predictions, predicted) if measure else NO_EVIDENCE
    return Evaluation(score_predictions(predictions, problem, found), predictions, found)


def _measured(
    model: Composed,
    problem: Problem,
    encoder: PoolEncoder,
    predictions: dict[str, np.ndarray],
    predicted: np.ndarray,
) -> Evidence:
    """Return what is kept of features and probabilities."""
    pool = encoder.compute_features()
    chosen = torch.from_numpy(predicted).to(encoder.device)
    found: dict[str, dict[str, np.ndarray]] = {"neighbours": {}, "silhouette": {}}
    if "logits" in model.method.provides:
        queries, old = pool.at(pool.queries), problem.num_old
        values = evidence.of_probabilities(model.method.classify, queries, chosen, old)
        places = {n: np.searchsorted(encoder.query_rows, s.rows) for n, s in problem.sets.items()}
        found |= evidence.by_set({k: v.cpu().numpy() for k, v in values.items()}, places)
    for name, one in problem.sets.items():
        features = pool.at(encoder.find(one.rows))
        clusters = torch.from_numpy(predictions[name])
        found["neighbours"][name] = evidence.same_class_neighbours(
            features, problem.labels[one.rows]
        )
        found["silhouette"][name] = np.array(
            evidence.silhouette(features, clusters), dtype=np.float32
        )
    return found
