"""Rows in half precision that are read in parts give what the same rows give in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gcdbench.ops.kmeans import restarts
from gcdbench.ops.kmeans import rows as reading
from gcdbench.ops.kmeans.api import assign, semi_supervised_kmeans
from gcdbench.ops.neighbours import k_nearest


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """Return 300 rows around 6 centres in a mapped file, which are many from here on."""
    random = np.random.RandomState(0)
    values = random.randn(6, 8)[np.arange(300) % 6] * 3 + random.randn(300, 8)
    values.astype(np.float16).tofile(tmp_path / "rows")
    monkeypatch.setattr(reading, "MOST", 1000)
    monkeypatch.setattr(reading, "STEP", 7)
    monkeypatch.setattr(restarts, "MOST_NUMBERS", 0)
    return torch.from_file(str(tmp_path / "rows"), size=2400, dtype=torch.float16).view(300, 8)


@pytest.mark.parametrize("normalise", [False, True])
def test_kmeans_and_assignment_do_not_depend_on_where_the_rows_are(stored, normalise):
    own = torch.arange(300) % 6  # the centre of each row; a class has the rows of one
    known = (own < 3) & (torch.arange(300) < 120)
    seen, hidden, classes = stored[known], stored[~known], own[known]
    settings = {"k": 6, "n_init": 3, "seed": 1, "normalise": normalise}
    parts = semi_supervised_kmeans(hidden, seen, classes, **settings)
    whole = semi_supervised_kmeans(hidden.float(), seen.float(), classes, **settings)
    assert torch.equal(parts.labels, whole.labels)
    assert parts.inertia == pytest.approx(whole.inertia, rel=1e-6)
    torch.testing.assert_close(parts.centers, whole.centers)
    found = assign(stored, whole.centers, normalise=normalise)
    assert torch.equal(found, assign(stored.float(), whole.centers, normalise=normalise))
    assert len(found.unique()) == 6


def test_a_row_that_is_not_finite_is_found_in_any_part(stored):
    broken = stored.clone()
    broken[250, 3] = torch.inf
    with pytest.raises(ValueError, match="NaN or infinite"):
        semi_supervised_kmeans(broken, None, None, 4)


def test_new_centres_are_chosen_from_a_sample_of_rows_that_are_read_in_parts(stored, monkeypatch):
    monkeypatch.setattr("gcdbench.ops.kmeans.api.SEEDING_ROWS", 20)
    found = semi_supervised_kmeans(stored, None, None, 6, init="random", max_iter=1)
    drawn = np.sort(np.random.RandomState(0).permutation(300)[:20])
    sample = stored[torch.from_numpy(drawn)].float()
    assert all((sample == center).all(1).any() for center in found.centers)


@pytest.mark.parametrize("metric", ["product", "euclidean"])
def test_neighbours_do_not_depend_on_where_the_rows_are(stored, metric):
    parts = k_nearest(stored[:40], stored, 5, metric=metric)
    whole = k_nearest(stored[:40].float(), stored.float(), 5, metric=metric)
    assert torch.equal(parts.indices, whole.indices)
    torch.testing.assert_close(parts.scores, whole.scores)


@pytest.mark.parametrize("tol", [0.0, 5.0])
def test_restarts_in_one_loop_are_those_run_one_by_one(monkeypatch, tol):
    generator = torch.Generator().manual_seed(3)
    x, known = torch.randn(90, 5, generator=generator), torch.randn(20, 5, generator=generator)
    settings = {"k": 5, "n_init": 4, "max_iter": 7, "tol": tol, "seed": 2}
    given = (x, known, torch.arange(20) % 2)
    loop = semi_supervised_kmeans(*given, **settings)
    monkeypatch.setattr(restarts, "MOST_NUMBERS", 0)
    single = semi_supervised_kmeans(*given, **settings)
    assert torch.equal(loop.labels, single.labels)
    assert loop.n_iter == single.n_iter
    assert loop.inertia == pytest.approx(single.inertia, rel=1e-6)
    torch.testing.assert_close(loop.centers, single.centers)
