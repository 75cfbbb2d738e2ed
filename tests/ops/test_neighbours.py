from __future__ import annotations

import pytest
import torch

from gcdbench.ops import neighbours
from gcdbench.ops.neighbours import k_nearest

BACKENDS = ["faiss", "torch"]
METRICS = ["product", "euclidean"]


def rows_of(number, width=12, seed=0):
    return torch.randn(number, width, generator=torch.Generator().manual_seed(seed))


def brute_force(queries, rows, k, metric):
    """Sort all rows by exact score, the lower index first among equals."""
    q, r = queries.double(), rows.double()
    if metric == "product":
        scores = torch.stack([(r * one).sum(1) for one in q])
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, :k]
    else:
        scores = torch.stack([(r - one).square().sum(1).sqrt() for one in q])
        order = scores.sort(dim=1, stable=True).indices[:, :k]
    return order, scores.gather(1, order).float()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("number", "k"), [(1, 1), (7, 7), (200, 1), (500, 9), (500, 500)])
def test_the_neighbours_are_those_of_a_full_sort(backend, metric, number, k):
    queries, rows = rows_of(30), rows_of(number, seed=1)
    index, score = k_nearest(queries, rows, k, metric=metric, backend=backend)
    expected, scores = brute_force(queries, rows, k, metric)
    assert torch.equal(index, expected)
    torch.testing.assert_close(score, scores)


@pytest.mark.parametrize("metric", METRICS)
def test_faiss_and_torch_return_the_same(metric):
    queries, rows = rows_of(300, 64), rows_of(4000, 64, seed=1)
    by_faiss, by_torch = (
        k_nearest(queries, rows, 9, metric=metric, backend=backend) for backend in BACKENDS
    )
    assert torch.equal(by_faiss.indices, by_torch.indices)
    assert torch.equal(by_faiss.scores, by_torch.scores)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_of_equal_rows_the_first_ones_are_returned(backend, metric):
    rows = rows_of(6).repeat(40, 1)  # more copies of a row than are searched beyond k
    index, _ = k_nearest(rows[:6], rows, 5, metric=metric, backend=backend)
    assert index[0].tolist() == brute_force(rows[:1], rows, 5, metric)[0][0].tolist()
    if metric == "euclidean":
        assert index.tolist() == [[6 * copy + row for copy in range(5)] for row in range(6)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_that_float32_cannot_tell_apart_are_ranked_exactly(backend):
    rows = torch.ones(64, 12)
    rows[:, 0] += torch.arange(64).flip(0) * 2.0**-23
    index, _ = k_nearest(torch.ones(1, 12), rows, 4, backend=backend)
    assert index.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("metric", METRICS)
def test_blocks_do_not_change_the_neighbours(metric, monkeypatch):
    queries, rows = rows_of(50), rows_of(300, seed=1)
    whole = k_nearest(queries, rows, 5, metric=metric, backend="torch")
    monkeypatch.setattr(neighbours, "BLOCK", 4 * 256 * 70)
    parts = k_nearest(queries, rows, 5, metric=metric, backend="torch")
    assert torch.equal(whole.indices, parts.indices)


def test_torch_searches_where_faiss_is_missing(monkeypatch):
    monkeypatch.setattr(neighbours, "_faiss", lambda: None)
    queries, rows = rows_of(5), rows_of(40, seed=1)
    assert torch.equal(
        k_nearest(queries, rows, 3).indices, brute_force(queries, rows, 3, "product")[0]
    )
    with pytest.raises(ValueError, match="faiss is not installed"):
        k_nearest(queries, rows, 3, backend="faiss")


def test_no_queries_have_no_neighbours():
    index, score = k_nearest(rows_of(0), rows_of(4), 2)
    assert index.shape == score.shape == (0, 2)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"k": 5}, "k is 5, but there are 4 rows"),
        ({"metric": "cosine"}, "metric 'cosine' is unknown"),
        ({"backend": "annoy"}, "backend 'annoy' is unknown"),
        ({"queries": torch.ones(2, 3)}, "tables of equal width"),
    ],
)
def test_a_wrong_request_is_refused(change, sentence):
    request = {"queries": rows_of(2), "rows": rows_of(4), "k": 1} | change
    with pytest.raises(ValueError, match=sentence):
        k_nearest(**request)


@pytest.mark.gpu
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gpu_returns_the_same(backend, metric):
    queries, rows = rows_of(300, 64), rows_of(4000, 64, seed=1)
    here = k_nearest(queries, rows, 9, metric=metric)
    there = k_nearest(queries.to("cuda"), rows.to("cuda"), 9, metric=metric, backend=backend)
    assert torch.equal(here.indices, there.indices.cpu())
