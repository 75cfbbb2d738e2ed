from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage

from gcdbench.ops.linkage import cut, ward_clusters, weighted_ward
from gcdbench.ops.metrics import accuracies


def blobs(number=120, classes=6, width=8, noise=0.15, seed=0):
    random = np.random.RandomState(seed)
    labels = np.arange(number) % classes
    return random.randn(classes, width)[labels] + noise * random.randn(number, width), labels


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_weight_one_are_merged_as_by_scipy(seed):
    x, _ = blobs(noise=0.8, seed=seed)
    ours, theirs = weighted_ward(x, np.ones(len(x))), linkage(x, "ward")
    np.testing.assert_allclose(ours[:, 2], theirs[:, 2], rtol=1e-9)
    for k in (2, 5, 20):
        pairs = [cut(merges, k)[:, None] == cut(merges, k) for merges in (ours, theirs)]
        assert np.array_equal(*pairs)


def test_a_weight_stands_for_as_many_equal_rows():
    x, _ = blobs(20, noise=0.8)
    weights = np.random.RandomState(0).randint(1, 5, len(x))
    repeated = linkage(np.repeat(x, weights, axis=0), "ward")[:, 2]
    found = weighted_ward(x, weights.astype(float))[:, 2]
    np.testing.assert_allclose(found, repeated[-len(found) :], rtol=1e-9)


def test_the_merges_are_valid_for_scipy():
    merges = weighted_ward(blobs(30)[0], np.ones(30))
    assert fcluster(merges, 4, criterion="maxclust").max() == 4
    assert merges[-1, 3] == 30


def test_a_small_pool_is_clustered_exactly():
    x, labels = blobs()
    found = ward_clusters(torch.from_numpy(x).float(), 6)
    assert len(found.unique()) == 6
    assert accuracies(preds=found, labels=list(labels), num_old=3).all == 1.0


def test_a_large_pool_is_grouped_first():
    x, labels = blobs(600)
    found = ward_clusters(torch.from_numpy(x).float(), 6, most_rows=500, groups=60)
    assert found.shape == (600,)
    assert len(found.unique()) == 6
    assert accuracies(preds=found, labels=list(labels), num_old=3).all > 0.95


def test_as_many_clusters_as_rows_are_the_rows():
    assert ward_clusters(torch.eye(3), 5).tolist() == [0, 1, 2]
