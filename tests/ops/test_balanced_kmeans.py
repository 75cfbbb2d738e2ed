from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.golden import assert_near, load_golden, part

from gcdbench.ops.kmeans.balanced import balance, balanced_kmeans, first_centers

ARRAYS, SCALARS = load_golden("next_selex")
CASES = (
    *("balanced", "unbalanced", "ninit3", "iter3", "tight_size"),
    *("longtail", "odd", "k_eq_old"),
)


def clustered(case):
    given, settings = part(ARRAYS, f"km_{case}__"), SCALARS[f"km_{case}"]
    found = balanced_kmeans(
        given["u_feats"],
        given["l_feats"],
        given["l_targets"],
        settings["k"],
        capacity=settings["cluster_size"],
        random=np.random.RandomState(settings["seed"]),
        n_init=settings["n_init"],
        max_iter=settings["max_iterations"],
        tol=settings["tolerance"],
    )
    return given, settings, found


@pytest.mark.parametrize("case", CASES)
def test_the_clusters_match_the_original(case):
    given, settings, found = clustered(case)
    labels = torch.cat([found.labelled_labels, found.labels])
    assert torch.equal(labels, given["labels"].long())
    assert_near(found.centers, given["centers"], rtol=1e-5)
    assert found.inertia == pytest.approx(settings["inertia"], rel=1e-5)


@pytest.mark.parametrize("case", [c for c in CASES if c != "ninit3"])
def test_the_start_matches_the_original(case):
    given, settings = part(ARRAYS, f"km_{case}__"), SCALARS[f"km_{case}"]
    expected = given["init_centers_first"]
    classes = given["l_targets"].unique()
    means = torch.stack([given["l_feats"][given["l_targets"] == c].mean(0) for c in classes])
    random = np.random.RandomState(settings["seed"])
    found = first_centers(given["u_feats"], means, settings["k"], random)
    assert_near(found, expected, rtol=1e-5)


def test_a_cluster_without_rows_keeps_its_centre():
    _, settings, found = clustered("emptied_balanced")  # the original's centre becomes NaN
    assert found.centers.isfinite().all()
    assert len(found.centers) == settings["k"]


def test_equal_rows_do_not_stop_the_search():
    given, settings, found = clustered("duplicates")  # the original raises
    assert found.centers.shape == (settings["k"], given["u_feats"].shape[1])
    assert found.centers.isfinite().all()


def test_without_unlabelled_rows_the_centres_are_the_class_means():
    rows, targets = torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([3, 3, 7])
    random = np.random.RandomState(0)
    found = balanced_kmeans(rows[:0], rows, targets, 2, capacity=2, random=random)
    assert found.centers.flatten().tolist() == [1.0, 5.0]
    assert found.labelled_labels.tolist() == [0, 0, 1]


@pytest.mark.parametrize("k", [1, 6])
def test_an_impossible_number_of_clusters_is_refused(k):
    rows = torch.randn(3, 2, generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match=f"k is {k}; it must be"):
        balanced_kmeans(
            rows, rows, torch.tensor([0, 1, 1]), k, capacity=2, random=np.random.RandomState(0)
        )


def test_the_farthest_rows_leave_a_cluster_that_is_too_full():
    x, centers = torch.tensor([[0.0], [0.1], [0.4], [0.3], [9.0]]), torch.tensor([[0.0], [9.0]])
    labels = torch.tensor([0, 0, 0, 0, 1])
    moved = balance(x, centers, labels, torch.tensor([2, 3]))
    assert moved.tolist() == [0, 0, 1, 1, 1]
    assert balance(x, centers, labels, torch.tensor([9, 9])).tolist() == labels.tolist()
