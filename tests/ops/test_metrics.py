from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from helpers.paths import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from gcdbench.ops.metrics import accuracies
from gcdbench.training.scoring import scores
from gcdbench.training.scoring.scores import SetScore, aggregate, score

CASES = json.loads((GOLDEN / "gcd_acc.json").read_text())
NUM_OLD = 3


@st.composite
def partitions(draw: st.DrawFn, ids: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and labels of a few samples, with fewer or more clusters than classes."""
    n = draw(st.integers(1, 30))
    clusters, classes = draw(st.integers(1, ids)), draw(st.integers(1, ids))
    preds = draw(st.lists(st.integers(0, clusters - 1), min_size=n, max_size=n))
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=n, max_size=n))
    return np.array(preds), np.array(labels)


def golden(case: str, field: str) -> np.ndarray:
    with np.load(GOLDEN / "gcd_acc.npz") as archive:
        return archive[f"{case}__{field}"]


def table(preds: np.ndarray, labels: np.ndarray, side: int = 6) -> np.ndarray:
    w = np.zeros((side, side), dtype=int)
    np.add.at(w, (preds, labels), 1)
    return w


def optimal_splits(w: np.ndarray) -> set[tuple[int, int]]:
    """Return the (old, new) hits of every best assignment, by trying them all."""
    found = {}
    for order in permutations(range(len(w))):
        hits = w[list(order), range(len(w))]
        found[order] = int(hits[:NUM_OLD].sum()), int(hits[NUM_OLD:].sum())
    most = max(map(sum, found.values()))
    return {split for split in found.values() if sum(split) == most}


@pytest.mark.parametrize("protocol", ["v1", "v2", "v2b"])
@pytest.mark.parametrize("case", CASES)
def test_accuracies_are_those_of_the_official_code(case: str, protocol: str) -> None:
    preds, labels, is_old = (golden(case, f) for f in ("y_pred", "y_true", "mask_old"))
    got = accuracies(preds=preds, labels=labels, num_old=0, is_old=is_old, protocol=protocol)
    expected = CASES[case][protocol]
    if isinstance(expected, dict):  # the official code raises on an empty side
        assert got.all == CASES[case]["cluster_acc"]
        assert math.isnan(got.new if case == "only_old" else got.old)
        return
    expected = [math.nan if value is None else value for value in expected]
    np.testing.assert_allclose(list(got), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize("case", CASES)
def test_ties_are_settled_as_in_the_official_code(case: str) -> None:
    got = accuracies(preds=golden(case, "y_pred"), labels=golden(case, "y_true"), num_old=0)
    np.testing.assert_array_equal(np.argsort(got.assignment), golden(case, "cluster_for_class"))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(partitions())
def test_the_assignment_is_the_best_of_all_permutations(sample: tuple) -> None:
    preds, labels = sample
    got = accuracies(preds=preds, labels=labels, num_old=NUM_OLD)
    n_old = int((labels < NUM_OLD).sum())
    sizes = (n_old, len(labels) - n_old)
    hits = tuple(
        round(value * size) if size else 0
        for value, size in zip((got.old, got.new), sizes, strict=True)
    )
    assert hits in optimal_splits(table(preds, labels))
    assert got.all == pytest.approx(sum(hits) / len(labels))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(partitions(), st.permutations(range(6)))
def test_renaming_clusters_changes_nothing(sample: tuple, names: list[int]) -> None:
    preds, labels = sample
    before = score(preds=preds, labels=labels, num_old=NUM_OLD)
    after = score(preds=np.array(names)[preds], labels=labels, num_old=NUM_OLD)
    assert after.all == before.all
    assert (after.nmi, after.ari) == pytest.approx((before.nmi, before.ari))
    if len(optimal_splits(table(preds, labels))) == 1:
        assert (after.old, after.new) == pytest.approx((before.old, before.new), nan_ok=True)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(partitions())
def test_all_lies_between_old_and_new(sample: tuple) -> None:
    preds, labels = sample
    for protocol in ("v1", "v2", "v2b"):
        got = accuracies(preds=preds, labels=labels, num_old=NUM_OLD, protocol=protocol)
        sides = [side for side in (got.old, got.new) if not math.isnan(side)]
        assert min(sides) - 1e-12 <= got.all <= max(sides) + 1e-12


@settings(max_examples=60, deadline=None, derandomize=True)
@given(partitions())
def test_separate_assignments_never_score_below_the_common_one(sample: tuple) -> None:
    preds, labels = sample
    separate, common = (
        accuracies(preds=preds, labels=labels, num_old=NUM_OLD, protocol=protocol).all
        for protocol in ("v1", "v2")
    )
    assert separate >= common


@settings(max_examples=60, deadline=None, derandomize=True)
@given(partitions())
def test_the_sparse_matching_finds_the_same_total(sample: tuple) -> None:
    preds, labels = sample
    dense = accuracies(preds=preds, labels=labels, num_old=NUM_OLD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gcdbench.ops.contingency.DENSE_CELLS", 0)
        sparse = accuracies(preds=preds, labels=labels, num_old=NUM_OLD)
    assert sparse.all == dense.all


@settings(max_examples=60, deadline=None, derandomize=True)
@given(partitions())
def test_hits_and_the_four_kinds_of_error_make_up_all_samples(sample: tuple) -> None:
    preds, labels = sample
    got = score(preds=preds, labels=labels, num_old=NUM_OLD)
    errors = got.old_to_new, got.new_to_old, got.old_to_wrong_old, got.new_to_wrong_new
    assert got.all + sum(errors) == pytest.approx(1)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(partitions())
def test_nmi_and_ari_are_those_of_scikit_learn(sample: tuple) -> None:
    preds, labels = sample
    got = score(preds=preds, labels=labels, num_old=NUM_OLD)
    assert got.nmi == pytest.approx(normalized_mutual_info_score(labels, preds), abs=1e-12)
    assert got.ari == pytest.approx(adjusted_rand_score(labels, preds), abs=1e-12)


def test_the_kinds_of_error_are_counted_by_what_a_cluster_stands_for() -> None:
    # Cluster 7 is class 0 (old), 4 is class 1 (old), 9 is class 2 (new); 5 stands for nothing.
    preds = [7, 7, 7, 4, 4, 4, 9, 9, 9, 9, 4, 9, 5, 7, 5]
    labels = [0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 0, 1, 0, 2, 2]
    got = score(preds=preds, labels=labels, num_old=2, num_classes=3)
    assert got == SetScore(
        all=10 / 15,
        old=6 / 9,
        new=4 / 6,
        n=15,
        n_old=9,
        nmi=got.nmi,
        ari=got.ari,
        old_to_new=2 / 15,
        new_to_old=1 / 15,
        old_to_wrong_old=1 / 15,
        new_to_wrong_new=1 / 15,
        false_negative_rate=1 / 6,
        false_positive_rate=2 / 9,
    )


def test_flags_replace_the_order_of_class_ids() -> None:
    random = np.random.RandomState(0)
    labels = random.randint(0, 8, 500)
    preds = np.where(random.rand(500) < 0.6, 8 - labels, random.randint(0, 9, 500))
    names = random.permutation(100)[:8]  # old classes no longer come first, and ids have gaps
    for protocol in ("v1", "v2", "v2b"):
        ordered = accuracies(preds=preds, labels=labels, num_old=4, protocol=protocol)
        shuffled = accuracies(
            preds=preds, labels=names[labels], num_old=0, is_old=labels < 4, protocol=protocol
        )
        assert list(shuffled) == pytest.approx(list(ordered))


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.uint8])
def test_the_type_of_the_ids_does_not_matter(dtype: torch.dtype) -> None:
    preds, labels = torch.randint(0, 100, (2, 1000), generator=torch.Generator().manual_seed(0))
    expected = accuracies(preds=preds.tolist(), labels=labels.numpy(), num_old=50)
    assert accuracies(preds=preds.to(dtype), labels=labels.to(dtype), num_old=50) == expected


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_of_the_ids_does_not_matter() -> None:
    preds, labels = torch.randint(0, 100, (2, 1000), generator=torch.Generator().manual_seed(0))
    expected = accuracies(preds=preds, labels=labels, num_old=50)
    assert accuracies(preds=preds.to("cuda"), labels=labels.to("cuda"), num_old=50) == expected


def test_a_thousand_classes_and_half_a_million_samples_are_scored() -> None:
    labels = torch.randint(0, 1000, (500_000,), generator=torch.Generator().manual_seed(0))
    preds = (labels + 1) % 1000
    preds[::4] = 0  # a quarter of the samples is lumped together
    got = score(preds=preds, labels=labels, num_old=500, num_classes=1000)
    assert got.all == pytest.approx(0.75, abs=0.001)


def test_ten_thousand_classes_need_no_square_table() -> None:
    labels = torch.arange(20_000) % 10_000
    preds = 9_999 - labels
    preds[10_000:10_100] = 5
    got = accuracies(preds=preds, labels=labels, num_old=100)
    assert (got.all, got.old) == pytest.approx((1 - 100 / 20_000, 0.5))


def test_recall_is_given_per_class() -> None:
    got = accuracies(preds=[3, 3, 3, 1], labels=[0, 0, 2, 2], num_old=1)
    np.testing.assert_array_equal(got.recall, [1.0, np.nan, 0.5])
    assert got.assignment[3] == 0
    assert got.assignment[1] == 2


def test_a_score_that_contradicts_itself_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = scores.by_protocol
    monkeypatch.setattr(scores, "by_protocol", lambda *args: replace(honest(*args), all=0.9))
    with pytest.raises(AssertionError, match=r"All is 0\.9"):
        score(preds=[0, 0, 1, 1], labels=[0, 1, 2, 2], num_old=1)


def test_corruptions_severities_and_unseen_domains_are_averaged_as_in_the_papers() -> None:
    one = score(preds=[0, 1], labels=[0, 1], num_old=1)
    sets = {
        "real": replace(one, all=0.5),
        "fog/1": replace(one, all=0.1),
        "fog/2": replace(one, all=0.3),
        "snow/1": replace(one, all=0.8),
        "sketch": replace(one, all=0.6),
        "clipart": replace(one, all=0.2),
    }
    got = {
        name: mean["all"] for name, mean in aggregate(sets, unseen=["clipart", "sketch"]).items()
    }
    assert got == pytest.approx({"fog": 0.2, "snow": 0.8, "corrupted": 0.4, "others": 0.4})


def test_sizes_are_added_up_where_rates_are_averaged() -> None:
    one = score(preds=[0, 1], labels=[0, 1], num_old=1)
    got = aggregate({"fog/1": one, "fog/2": one})["fog"]
    assert (got["n"], got["n_old"], got["nmi"]) == (4, 2, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"preds": [0, 1]}, "2 preds do not go with 3 labels"),
        ({"preds": [], "labels": []}, "empty"),
        ({"labels": [0, 1, 3]}, r"labels run from 0 to 3; ids must lie in 0\.\.2"),
        ({"labels": [0, -1, 1]}, "labels run from -1"),
        ({"preds": [0, -1, 1]}, "preds run from -1"),
        ({"preds": [0, 2**40, 1]}, "preds run from 0 to 1099511627776"),
        ({"preds": [0.0, 1.0, 2.0]}, "preds must be one row of integer ids"),
        ({"preds": [[0], [1], [2]]}, "preds must be one row of integer ids"),
        ({"num_old": 4}, "num_old is 4"),
        ({"is_old": np.array([True])}, "1 is_old flags do not go with 3 labels"),
        ({"protocol": "v3"}, "protocol 'v3' is unknown"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(change: dict, message: str) -> None:
    good = {"preds": [0, 1, 2], "labels": [0, 1, 2], "num_old": 1, "num_classes": 3}
    with pytest.raises(ValueError, match=message):
        accuracies(**{**good, **change})
