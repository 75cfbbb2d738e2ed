"""Features of the pool with visible labels only, and predictions that reach their own sets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from gcdbench.core import registry
from gcdbench.core.method_spec import MethodSpec
from gcdbench.data.images import ArrayImages
from gcdbench.data.problem import EvalSet, Problem
from gcdbench.ops.kmeans import rows
from gcdbench.ops.kmeans.api import semi_supervised_kmeans
from gcdbench.training.conformance import SIZE, Bench, tiny_backbone
from gcdbench.training.evaluator import evaluate
from gcdbench.training.features.pool import PoolEncoder, make_fit_context
from gcdbench.training.features.store import FeatureStore
from gcdbench.training.loader import Loader
from gcdbench.training.scoring.evidence import same_class_neighbours, silhouette

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


def test_features_in_half_precision_are_read_from_a_file_in_parts(problem, encoder, monkeypatch):
    monkeypatch.setattr(rows, "MOST", 0)  # even these few
    words = (problem, encoder.loader, encoder.backbone, CPU, FeatureStore(), lambda _: "key")
    mapped = PoolEncoder(*words, features="float16").compute_features()
    plain = encoder.compute_features()
    assert isinstance(mapped.features, rows.Rows)
    assert torch.equal(mapped.features.float(), plain.features.half().float())
    assert torch.equal(mapped.at(plain.unlabelled)[:], mapped.features[plain.unlabelled])

    rounded = plain.features.half().float()
    choice, others = plain.unlabelled, plain.labelled
    given = (plain.labels[others], 4)
    streamed = semi_supervised_kmeans(
        mapped.at(choice), mapped.at(others), *given, n_init=2, normalise=True
    )
    whole = semi_supervised_kmeans(
        rounded[choice], rounded[others], *given, n_init=2, normalise=True
    )
    assert streamed.labels.tolist() == whole.labels.tolist()
    assert streamed.inertia == pytest.approx(whole.inertia, rel=1e-6)
    near = [same_class_neighbours(one, LABELS) for one in (mapped.at(torch.arange(24)), rounded)]
    assert near[0].tolist() == near[1].tolist()
    assert silhouette(mapped.at(choice), whole.labels) == silhouette(rounded[choice], whole.labels)


@pytest.mark.parametrize("name", registry.available("method"))
def test_every_method_predicts_from_features_in_half_precision(name):
    quick = {"pim": {"certainty_weight": 0.5, "fit_steps": 5, "kmeans_init": 2}}
    bench = Bench(MethodSpec.parse(name), quick)
    bench.begin()
    bench.model.eval()
    pool = bench.context.compute_features()
    half = pool.features.half()
    expected = bench.model.predict(replace(pool, features=half.float()), bench.context)
    mapped = replace(pool, features=rows.Rows(half))
    assert torch.equal(bench.model.predict(mapped, bench.context), expected)
