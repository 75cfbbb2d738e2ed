"""Every further score against a brute-force value, a library or a value that is known."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score, silhouette_score

from gcdbench.data.problem import EvalSet, Problem
from gcdbench.ops.metrics import accuracies
from gcdbench.training.scoring import chance, evidence
from gcdbench.training.scoring.by_class import by_frequency
from gcdbench.training.scoring.probabilities import auroc, calibration_error
from gcdbench.training.scoring.scores import score_predictions

RNG = np.random.RandomState(3)
NUM_OLD, CLASSES = 3, 6


def toy(sizes=(40, 30, 20), *, cluster_unseen=False) -> Problem:
    """Return a problem with a source, a shifted and an unseen set of random labels."""
    total = sum(sizes)
    rows = np.split(np.arange(total), np.cumsum(sizes)[:-1])
    roles = ("source", "shifted", "unseen")
    names = ("ink", "chalk", "neon")
    labels = RNG.randint(CLASSES, size=total)
    labels[: 2 * CLASSES] = np.tile(np.arange(CLASSES), 2)
    return Problem(
        name="toy",
        classes=tuple("abcdef"),
        num_old=NUM_OLD,
        images=SimpleNamespace(ids=[str(i) for i in range(total)]),
        labels=labels,
        labelled=np.flatnonzero(labels[:10] < NUM_OLD),
        unlabelled=np.arange(10, sizes[0] + sizes[1]),
        sets={n: EvalSet(r, role) for n, r, role in zip(names, rows, roles, strict=True)},
        cluster_unseen=cluster_unseen,
    )


def guesses(problem: Problem, clusters: int = CLASSES) -> dict[str, np.ndarray]:
    """Return predictions that are right more often than not."""
    found = {}
    for name, one in problem.sets.items():
        labels = problem.labels[one.rows]
        found[name] = np.where(RNG.rand(len(labels)) < 0.6, labels, RNG.randint(clusters))
    return found


def best_assignment(preds: np.ndarray, labels: np.ndarray) -> tuple[int, ...]:
    """Return the class of each cluster with the most hits, by trying all of them."""
    return max(
        permutations(range(CLASSES)),
        key=lambda order: sum(order[p] == t for p, t in zip(preds, labels, strict=True)),
    )


@pytest.fixture(scope="module")
def scored():
    problem = toy()
    preds = guesses(problem)
    return problem, preds, score_predictions(preds, problem)


@pytest.mark.parametrize("name", ["ink", "chalk", "neon"])
def test_old_classes_without_matching_count_equal_ids(scored, name):
    problem, preds, found = scored
    labels = problem.labels[problem.sets[name].rows]
    hits = [p == t for p, t in zip(preds[name], labels, strict=True) if t < NUM_OLD]
    assert found.sets[name]["old_unmatched"] == pytest.approx(sum(hits) / len(hits))


def test_renamed_clusters_change_nothing_but_what_is_not_matched(scored):
    problem, preds, found = scored
    turned = {name: (one + 1) % CLASSES for name, one in preds.items()}
    other = score_predictions(turned, problem).sets["ink"]
    same = found.sets["ink"]
    assert other["old_unmatched"] != same["old_unmatched"]
    assert {k: v for k, v in other.items() if k != "old_unmatched"} == pytest.approx(
        {k: v for k, v in same.items() if k != "old_unmatched"}, nan_ok=True
    )


@pytest.mark.parametrize(("split", "low", "high"), [("all", 0, 6), ("old", 0, 3), ("new", 3, 6)])
def test_balanced_is_the_official_protocol_v2b(scored, split, low, high):
    problem, preds, found = scored
    labels = problem.labels[problem.sets["ink"].rows]
    official = accuracies(preds=preds["ink"], labels=labels, num_old=NUM_OLD, protocol="v2b")
    assert found.sets["ink"][f"{split}_balanced"] == pytest.approx(getattr(official, split))
    hits = {o: (np.array(o)[preds["ink"]] == labels) for o in permutations(range(CLASSES))}
    most = max(right.sum() for right in hits.values())
    values = [
        np.mean([right[labels == c].mean() for c in range(low, high)])
        for right in hits.values()
        if right.sum() == most
    ]
    assert any(value == pytest.approx(getattr(official, split)) for value in values)


def test_classes_are_grouped_by_their_number_of_training_images():
    recall = np.array([0.1, 0.2, np.nan, 0.4, 0.5])
    frequency = np.array([101, 100, 20, 20, 19])
    found = by_frequency(recall, frequency)
    assert found == pytest.approx({"many": 0.1, "medium": 0.3, "few": 0.5})
    assert math.isnan(by_frequency(recall, np.full(5, 50))["many"])


def test_frequency_counts_the_training_pool_and_not_the_set():
    problem = toy(sizes=(800, 30, 20))
    rare = np.flatnonzero(problem.labels[10:830] == 5)[15:] + 10
    problem = replace(problem, unlabelled=np.setdiff1d(problem.unlabelled, rare))
    found = score_predictions(guesses(problem), problem).sets["ink"]
    labels = problem.labels[problem.pool]
    assert (labels == 5).sum() < 20 < 100 < min((labels == c).sum() for c in range(5))
    assert math.isnan(found["medium"])
    assert found["few"] != found["many"]


def test_one_assignment_over_all_trained_sets_is_applied_to_each(scored):
    problem, preds, found = scored
    trained = ("ink", "chalk")
    labels = {n: problem.labels[one.rows] for n, one in problem.sets.items()}
    joined = [np.concatenate([part[n] for n in trained]) for part in (preds, labels)]
    order = np.array(best_assignment(*joined))
    for name, split in product(problem.sets, ("all", "old", "new")):
        old = labels[name] < NUM_OLD
        side = {"all": old | True, "old": old, "new": ~old}[split]
        share = (order[preds[name]] == labels[name])[side].mean()
        assert found.sets[name][f"{split}_shared"] == pytest.approx(share)


def test_the_shared_assignment_gives_the_pooled_accuracy(scored):
    _, _, found = scored
    hits = sum(found.sets[n]["all_shared"] * found.sets[n]["n"] for n in ("ink", "chalk"))
    assert hits / 70 == pytest.approx(found.summary["pooled"]["all"])
    assert all(one["all_shared"] <= one["all"] + 1e-12 for one in found.sets.values())


def test_clusters_that_mean_other_classes_elsewhere_cost_the_shared_assignment_only():
    problem = toy()
    labels = {n: problem.labels[one.rows] for n, one in problem.sets.items()}
    preds = {n: (y + (n == "chalk")) % CLASSES for n, y in labels.items()}
    found = score_predictions(preds, problem).sets
    assert (found["ink"]["all"], found["chalk"]["all"]) == (1.0, 1.0)
    assert min(found["ink"]["all_shared"], found["chalk"]["all_shared"]) < 0.5


def test_clusters_of_an_unseen_set_of_its_own_have_no_shared_assignment():
    problem = toy(cluster_unseen=True)
    found = score_predictions(guesses(problem), problem)
    assert "all_shared" not in found.sets["neon"]
    assert "all_shared" in found.sets["ink"]


def test_an_unseen_set_may_have_clusters_that_nothing_else_has():
    problem = toy()
    preds = guesses(problem)
    preds["neon"] = np.full_like(preds["neon"], 77)
    assert score_predictions(preds, problem).sets["neon"]["all_shared"] == 0


def test_the_floor_is_what_random_clusters_reach_on_average():
    labels = RNG.randint(4, size=24)
    drawn = [np.random.RandomState(100 + i).randint(4, size=24) for i in range(300)]
    expected = np.mean([accuracies(preds=p, labels=labels, num_old=2).all for p in drawn])
    got = chance.floor(labels, num_old=2, num_clusters=4)
    assert got[0] == pytest.approx(expected, abs=0.06)
    assert got == chance.floor(labels, num_old=2, num_clusters=4)


def test_the_floor_of_two_images_of_two_classes_can_be_counted():
    # two images, two clusters: apart (both right) or together (one right): 3/4 on average
    values = [
        accuracies(preds=list(p), labels=[0, 1], num_old=1).all for p in product((0, 1), repeat=2)
    ]
    assert np.mean(values) == 0.75
    wide = [chance.floor(np.array([0, 1]), num_old=1, num_clusters=2)[0]]
    assert 0.5 <= wide[0] <= 1


def test_small_sets_have_high_floors_and_adjusted_scores_allow_for_them(scored):
    problem, _, found = scored
    sizes = [chance.floor(RNG.randint(6, size=n), num_old=3, num_clusters=6)[0] for n in (12, 600)]
    assert sizes[0] > sizes[1] + 0.1
    one = found.sets["ink"]
    assert one["all_adjusted"] == pytest.approx(
        (one["all"] - one["all_floor"]) / (1 - one["all_floor"])
    )
    perfect = score_predictions(
        {n: problem.labels[s.rows] for n, s in problem.sets.items()}, problem
    )
    assert perfect.sets["ink"]["all_adjusted"] == pytest.approx(1)


def test_auroc_is_that_of_scikit_learn_with_ties():
    scores, positive = RNG.randint(5, size=60).astype(float), RNG.rand(60) < 0.4
    assert auroc(scores, positive) == pytest.approx(roc_auc_score(positive, scores))
    pairs = [(s > t) + 0.5 * (s == t) for s in scores[positive] for t in scores[~positive]]
    assert auroc(scores, positive) == pytest.approx(np.mean(pairs))
    assert math.isnan(auroc(scores, np.ones(60, dtype=bool)))


def test_calibration_error_is_a_sum_over_bins():
    confidence, right = RNG.rand(200), RNG.rand(200) < 0.5
    expected = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if inside.any():
            gap = abs(right[inside].mean() - confidence[inside].mean())
            expected += inside.mean() * gap
    assert calibration_error(confidence, right) == pytest.approx(expected)


def test_calibration_of_a_sure_and_wrong_classifier_is_one():
    assert calibration_error(np.ones(8), np.zeros(8, dtype=bool)) == 1
    assert calibration_error(np.full(8, 0.5), np.arange(8) < 4) == 0


def test_novelty_is_the_log_odds_of_new_classes_and_confidence_the_largest_probability():
    logits = torch.from_numpy(RNG.randn(50, CLASSES)).float()
    found = evidence.of_probabilities(lambda x: x, logits, logits.argmax(1), NUM_OLD)
    p = logits.double().softmax(1)
    mass = p[:, NUM_OLD:].sum(1)
    assert found["novelty"].double() == pytest.approx((mass / (1 - mass)).log(), abs=5e-3)
    assert found["confidence"].double() == pytest.approx(p.amax(1), abs=5e-4)


def test_clusters_that_the_classifier_did_not_choose_have_no_probabilities():
    logits = torch.eye(CLASSES)
    wrong = logits.argmax(1).roll(1)
    assert evidence.of_probabilities(lambda x: x, logits, wrong, NUM_OLD) == {}


def test_purity_counts_the_nearest_others_of_the_same_class():
    features, labels = torch.from_numpy(RNG.randn(60, 5)), RNG.randint(4, size=60)
    unit = (features / features.norm(dim=1, keepdim=True)).numpy()
    products = unit @ unit.T
    expected = []
    for row in range(60):
        near = [j for j in np.argsort(-products[row]) if j != row][:10]
        expected.append((labels[near] == labels[row]).sum())
    assert evidence.same_class_neighbours(features, labels).tolist() == expected


def test_copies_of_an_image_do_not_hide_that_it_is_itself():
    features = torch.ones(30, 3)
    labels = np.arange(30) % 2
    found = evidence.same_class_neighbours(features, labels)
    assert found.max() <= 10
    assert len(found) == 30


@pytest.mark.parametrize("clusters", [2, 5])
def test_silhouette_is_that_of_scikit_learn(clusters):
    features = torch.from_numpy(RNG.randn(80, 4))
    ids = torch.from_numpy(RNG.randint(clusters, size=80))
    unit = torch.nn.functional.normalize(features, dim=1)
    expected = silhouette_score(unit.numpy(), ids.numpy())
    assert evidence.silhouette(features, ids) == pytest.approx(expected)


def test_one_cluster_has_no_silhouette_and_single_images_count_nothing():
    features = torch.from_numpy(RNG.randn(6, 4))
    assert evidence.silhouette(features, torch.zeros(6)) == 0
    assert evidence.silhouette(features, torch.arange(6)) == 0


def test_evidence_becomes_scores_and_its_absence_no_score():
    problem = toy()
    preds = guesses(problem)
    labels = {n: problem.labels[one.rows] for n, one in problem.sets.items()}
    given = {
        "novelty": {n: (y >= NUM_OLD).astype(np.float16) for n, y in labels.items()},
        "confidence": {n: np.full(len(y), 0.5, np.float16) for n, y in labels.items()},
        "neighbours": {n: np.where(y < NUM_OLD, 10, 5).astype(np.uint8) for n, y in labels.items()},
        "silhouette": {n: np.float32(0.25) for n in labels},
    }
    one = score_predictions(preds, problem, given).sets["ink"]
    assert (one["novelty_auroc"], one["silhouette"]) == (1, 0.25)
    assert one["ece"] == pytest.approx(abs(one["all"] - 0.5))
    assert (one["purity_old"], one["purity_new"]) == (1, 0.5)
    without = score_predictions(preds, problem).sets["ink"]
    assert one.keys() - without.keys() == {
        *("novelty_auroc", "ece", "purity", "purity_old", "purity_new", "silhouette")
    }
