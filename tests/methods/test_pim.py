from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.golden import assert_near, load_golden, make_method, module_of, part, visible

from gcdbench.ops.metrics import accuracies
from gcdbench.training.method import FitContext, PoolFeatures, seeded

ARRAYS, SCALARS = load_golden("next_pim")
ours = module_of("pim")
FIT = {"lr": 1e-3, "decay": 0.01, "scale": 25.0}
PIPELINES = ("balanced", "longtail", "hard")


def given_of(case):
    given = part(ARRAYS, f"{case}__")
    return given, given["features"], visible(given["labels"], given["mask_lab"])


@pytest.mark.parametrize("weight", [0.0, 0.1, 0.5, 1.0])
def test_the_objective_and_its_fit_match_the_original(weight):
    given, x, labels = given_of("objective")
    classifier = given["W"].clone().requires_grad_()
    loss = ours.information_loss(25 * x @ classifier.T, labels, weight, labelled=True)
    loss.backward()
    assert_near(loss, SCALARS["objective"]["with_ce"][str(weight)]["loss_first3"][0])
    assert_near(classifier.grad, given[f"grad_lam{weight}"])
    for steps in (1, 2, 3):
        found = ours.fit_classifier(x, labels, given["W"], weight, steps=steps, **FIT)
        assert_near(found, given[f"W_after{steps}_lam{weight}"])


def test_the_objective_without_labels_matches_the_original():
    given, x, labels = given_of("objective")
    for weight, value in SCALARS["objective"]["without_ce_by_lambda"].items():
        logits = 25 * x @ given["W"].T
        assert_near(ours.information_loss(logits, labels, float(weight), labelled=False), value)


@pytest.mark.parametrize("hide", [True, False])
def test_the_objective_is_finite_without_labelled_or_unlabelled_rows(hide):
    given, x, _ = given_of("objective")
    labels = torch.full((len(x),), -1) if hide else given["labels"] % 4
    loss = ours.information_loss(25 * x @ given["W"].T, labels, 0.1, labelled=True)
    assert loss.isfinite()


@pytest.mark.parametrize("case", PIPELINES)
def test_the_starts_and_clusters_match_the_original(case):
    given, x, labels = given_of(f"pipeline_{case}")
    settings = SCALARS[f"pipeline_{case}"]
    random = np.random.RandomState(settings["seed"])
    for number, expected in enumerate(given["sskm_init"]):
        start = ours.first_centers(x, labels, settings["K"], random)
        assert_near(start, expected)
        centers, inertia = ours.lloyd(x, labels, start, max_iter=100)
        assert inertia == pytest.approx(settings["sskm_inertia"][number], rel=2e-5)
        assert_near(centers, given["sskm_final_centroids"][number])
    random = np.random.RandomState(settings["seed"])
    found = ours.cluster_means(x, labels, settings["K"], random, n_init=5, max_iter=100)
    assert_near(found, given["protos"])


@pytest.mark.parametrize("case", PIPELINES)
def test_the_search_matches_the_original(case):
    given, x, labels = given_of(f"pipeline_{case}")
    settings, grid = SCALARS[f"pipeline_{case}"], ours.GRID
    np.testing.assert_allclose(grid, given["lambda_values"])
    few = [1, 19]  # 2nd and 4th of those that are stored
    for number, expected in zip(few, given["search_W_independent"][1::2], strict=True):
        found = ours.fit_classifier(
            x, labels, given["kmeans_centroids"], grid[number], steps=300, labelled=False, **FIT
        )
        assert_near(found, expected, atol=5e-6)
    weights = [grid[number] for number in few]
    scores = ours.search(
        x, labels, given["kmeans_centroids"], weights, chained=False, steps=300, **FIT
    )
    assert scores == [settings["lab_acc_independent"][number] for number in few]


def test_the_chained_search_matches_the_original():
    given, x, labels = given_of("pipeline_longtail")
    settings, few = SCALARS["pipeline_longtail"], ours.GRID[:3]
    scores = ours.search(x, labels, given["kmeans_centroids"], few, chained=True, steps=300, **FIT)
    assert scores == settings["lab_acc"][:3]


@pytest.mark.parametrize("case", PIPELINES)
def test_the_weight_is_chosen_as_in_the_original(case):
    settings = SCALARS[f"pipeline_{case}"]
    for scores, chosen in (
        (settings["lab_acc"], settings["lambda_chosen"]),
        (settings["lab_acc_independent"], settings["lambda_chosen_independent"]),
    ):
        assert ours.choose(ours.GRID, scores, skip=1) == pytest.approx(chosen)


@pytest.mark.parametrize("case", PIPELINES)
def test_the_final_fit_matches_the_original(case):
    given, x, labels = given_of(f"pipeline_{case}")
    settings = SCALARS[f"pipeline_{case}"]
    found = ours.fit_classifier(
        x, labels, given["protos"], settings["lambda_chosen"], steps=300, **FIT
    )
    assert_near(found, given["final_W"], atol=1e-5)
    predicted = (x @ found.T).argmax(1)[labels == -1]
    assert torch.equal(predicted, given["pred_unlabelled"])
    scores = accuracies(
        preds=predicted, labels=given["labels"][labels == -1], num_old=settings["n_old"]
    )
    np.testing.assert_allclose(list(scores), settings["accs_v2"])


def test_a_cluster_without_rows_keeps_its_centre():
    given, x, labels = given_of("sskm_empty")  # NaN in the original
    centers, inertia = ours.lloyd(x, labels, given["init"], max_iter=100)
    assert centers.isfinite().all()
    assert np.isfinite(inertia)


def test_predictions_are_those_of_the_whole_program():
    given, x, labels = given_of("pipeline_balanced")
    settings, rows = SCALARS["pipeline_balanced"], torch.arange(len(x))
    method = make_method(
        "pim",
        dim=x.shape[1],
        classes=settings["K"],
        old=settings["n_old"],
        labels=labels,
        certainty_weight=settings["lambda_chosen"],
        fit_steps=300,
        kmeans_init=5,
        hidden_dim=4,
        bottleneck_dim=4,
        out_dim=4,
    )
    pool = PoolFeatures(3 * x, {}, labels, rows[labels >= 0], rows[labels < 0], rows[labels < 0])
    found = method.predict(pool, FitContext(lambda: pool, seeded))
    scores = accuracies(preds=found, labels=given["labels"][labels < 0], num_old=4)
    assert scores.all == pytest.approx(settings["accs_v2"][0], abs=0.05)  # other starts
