"""Features of the pool with visible labels only, and predictions that reach their own sets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gcdbench.data.images import ArrayImages
from gcdbench.data.problem import EvalSet, Problem
from gcdbench.training.conformance import SIZE, tiny_backbone
from gcdbench.training.evaluator import evaluate
from gcdbench.training.features.pool import PoolEncoder, make_fit_context
from gcdbench.training.features.store import FeatureStore
from gcdbench.training.loader import Loader

CPU = torch.device("cpu")
LABELS = np.arange(24) % 4


@pytest.fixture
def problem() -> Problem:
    pixels = np.random.RandomState(0).randint(0, 256, (24, 40, 40, 3), dtype=np.uint8)
    rows = np.arange(24)
    labelled = rows[(LABELS < 2) & (rows < 8)]
    return Problem(
        name="noise",
        classes=("a", "b", "c", "d"),
        num_old=2,
        images=ArrayImages(pixels, [str(row) for row in rows]),
        labels=LABELS,
        labelled=labelled,
        unlabelled=np.setdiff1d(rows[:20], labelled),
        sets={
            "unlabelled": EvalSet(np.array([19, 10, 15, 12, 9, 2]), "source"),
            "unseen": EvalSet(np.array([23, 20, 21, 22]), "unseen"),
        },
    )


@pytest.fixture
def encoder(problem) -> PoolEncoder:
    loader = Loader(problem, size=SIZE, batch_size=8)
    return PoolEncoder(problem, loader, tiny_backbone(), CPU, FeatureStore(), lambda _: "key")


class ByRow(torch.nn.Module):
    """A model that predicts what it is given for the rows of the queries."""

    def __init__(self, encoder: PoolEncoder, answer) -> None:
        super().__init__()
        self.encoder, self.answer = encoder, answer

    def predict(self, pool, context):
        assert not self.training
        return torch.from_numpy(self.answer(self.encoder.rows[pool.queries.numpy()]))


def test_the_pool_shows_the_labels_of_labelled_images_alone(problem, encoder):
    pool = encoder.compute_features()
    rows = encoder.rows
    assert rows[pool.labelled].tolist() == problem.labelled.tolist()
    assert rows[pool.unlabelled].tolist() == problem.unlabelled.tolist()
    visible = np.where(np.isin(rows, problem.labelled), LABELS[rows], -1)
    assert pool.labels.tolist() == visible.tolist()
    evaluated = np.concatenate([one.rows for one in problem.sets.values()])
    assert rows[pool.queries].tolist() == sorted(evaluated.tolist())


def test_features_are_computed_anew_once_they_are_forgotten(encoder):
    before = encoder.compute_features()
    with torch.no_grad():
        encoder.backbone.vit.blocks[-1].mlp.fc2.weight.add_(0.1)
    assert encoder.compute_features() is before
    encoder.forget()
    assert not torch.allclose(encoder.compute_features().features, before.features)


def test_predictions_reach_their_sets_in_the_order_of_the_rows(problem, encoder):
    model = ByRow(encoder, lambda rows: rows).train()
    found = evaluate(model, problem, encoder, make_fit_context(encoder, 0))
    for name, one in problem.sets.items():
        assert found.predictions[name].tolist() == one.rows.tolist()


def test_true_classes_score_one_and_exchanged_ones_are_matched(problem, encoder):
    model = ByRow(encoder, lambda rows: (LABELS[rows] + 1) % 4)
    scores = evaluate(model, problem, encoder, make_fit_context(encoder, 0)).scores
    assert {name: one["all"] for name, one in scores.sets.items()} == {"unlabelled": 1, "unseen": 1}


def test_a_prediction_of_another_length_is_refused(problem, encoder):
    model = ByRow(encoder, lambda rows: rows[1:])
    with pytest.raises(ValueError, match="predict returned"):
        evaluate(model, problem, encoder, make_fit_context(encoder, 0))
