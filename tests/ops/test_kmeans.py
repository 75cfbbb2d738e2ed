from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
import torch
from helpers.paths import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st

from gcdbench.ops.kmeans.api import KMeansResult, assign, semi_supervised_kmeans

CASES = json.loads((GOLDEN / "gcd_ssk.json").read_text())
EDGE = json.loads((GOLDEN / "gcd_ssk_edge.json").read_text())
INITS = ["k-means++", "greedy", "means", "random"]


def golden(case: str, field: str, file: str = "gcd_ssk") -> np.ndarray:
    with np.load(GOLDEN / f"{file}.npz") as archive:
        return archive[f"{case}__{field}"]


@cache
def cluster(case: str, **changes: object) -> KMeansResult:
    settings = CASES[case]
    options = {
        "seed": settings["seed"],
        "n_init": settings["n_init"],
        "max_iter": settings["max_iterations"],
    }
    rows = (golden(case, field) for field in ("u_feats", "l_feats", "l_targets"))
    return semi_supervised_kmeans(*rows, settings["k"], **{**options, **changes})


def problem(
    n: int = 300, d: int = 16, k: int = 8, seed: int = 0, shift: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unlabelled rows of ``k`` classes, and labelled rows and targets of half of them."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, k, (n,), generator=g)
    x = torch.randn(k, d, generator=g)[y] + torch.randn(n, d, generator=g) + shift
    known = (y < k // 2) & (torch.rand(n, generator=g) < 0.5)
    return x[~known], x[known], y[known]


def by_the_book(
    x: np.ndarray, labelled: np.ndarray, own: np.ndarray, k: int, *, seed: int, n_init: int
) -> tuple[np.ndarray, float]:
    """Follow the definition in double precision, with nothing done for speed."""

    def distances(centers: np.ndarray) -> np.ndarray:
        return ((x[:, None] - centers) ** 2).sum(2)

    random = np.random.RandomState(seed)
    best_labels, best = np.empty(0), np.inf
    for _ in range(n_init):
        centers = [labelled[own == c].mean(0) for c in np.unique(own)]
        if not centers:
            centers = [x[random.randint(0, len(x))]]
        while len(centers) < k:
            nearest = distances(np.array(centers)).min(1)
            pick = np.searchsorted(np.cumsum(nearest / nearest.sum()), random.rand())
            centers.append(x[pick])
        places = np.array(centers)
        for _ in range(100):
            labels = distances(places).argmin(1)
            inertia = distances(places).min(1).sum() + ((labelled - places[own]) ** 2).sum()
            members = [np.concatenate([labelled[own == c], x[labels == c]]) for c in range(k)]
            means = np.array([m.mean(0) if len(m) else places[c] for c, m in enumerate(members)])
            shift = np.linalg.norm(means - places, axis=1).sum()
            if shift**2 < 1e-4:
                break
            places = means
        if inertia < best * (1 - 1e-9):
            best_labels, best = labels, inertia
    return best_labels, best


@pytest.mark.parametrize("case", CASES)
def test_labels_and_inertia_are_those_of_the_original(case: str) -> None:
    result = cluster(case)
    labels = torch.cat([result.labelled_labels, result.labels])
    np.testing.assert_array_equal(labels, golden(case, "labels"))
    assert result.inertia == pytest.approx(CASES[case]["inertia"], rel=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_the_first_centres_are_those_of_the_original(case: str) -> None:
    result = cluster(case, n_init=1, max_iter=1)
    np.testing.assert_allclose(result.centers, golden(case, "init_centers_first"), rtol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_labels_are_the_nearest_of_the_returned_centres(case: str) -> None:
    result = cluster(case)
    assert torch.equal(result.labels, assign(golden(case, "u_feats"), result.centers))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(4, 12), st.booleans())
def test_every_problem_is_solved_by_the_book(seed: int, k: int, plain: bool) -> None:
    x, labelled, targets = problem(seed=seed, n=150)
    if plain:
        labelled, targets = labelled[:0], targets[:0]
    got = semi_supervised_kmeans(x, labelled, targets, k, seed=seed, n_init=2)
    rows = (part.double().numpy() for part in (x, labelled))
    labels, inertia = by_the_book(*rows, got.labelled_labels.numpy(), k, seed=seed, n_init=2)
    np.testing.assert_array_equal(got.labels, labels)
    assert got.inertia == pytest.approx(inertia, rel=1e-5)


def test_an_emptied_cluster_keeps_its_centre_and_the_run_goes_on() -> None:
    case = "empty_cluster"
    fields = ("u_feats", "l_feats", "l_targets")
    rows = [golden(case, field, "gcd_ssk_edge") for field in fields]
    options = {"seed": EDGE[case]["seed"], "n_init": 1}
    frozen = semi_supervised_kmeans(*rows, EDGE[case]["k"], max_iter=2, **options)
    labels = torch.cat([frozen.labelled_labels, frozen.labels])
    np.testing.assert_array_equal(labels, golden(case, "labels", "gcd_ssk_edge"))
    assert frozen.inertia == pytest.approx(EDGE[case]["inertia"], rel=1e-6)
    free = semi_supervised_kmeans(*rows, EDGE[case]["k"], **options)
    assert free.inertia <= frozen.inertia
    assert bool(free.centers.isfinite().all())


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("k", [4, 5, 6])
def test_more_clusters_than_distinct_points_leave_some_empty(k: int, init: str) -> None:
    points = torch.eye(4)
    labelled, x = points[:1].repeat(2, 1), points[1:].repeat_interleave(4, 0)
    got = semi_supervised_kmeans(x, labelled, torch.tensor([5, 5]), k, init=init)
    labels = torch.cat([got.labelled_labels, got.labels])
    counts = torch.bincount(labels, minlength=k).tolist()
    expected = EDGE[f"duplicates_k{k}"]["counts"]
    if init == "k-means++":
        assert (counts, got.inertia) == (expected, 0)
    assert bool(got.centers.isfinite().all())


@pytest.mark.parametrize("init", INITS)
def test_memory_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch, init: str) -> None:
    rows = problem(n=1000, d=8, k=30)
    free = semi_supervised_kmeans(*rows, 30, n_init=2, init=init)
    monkeypatch.setattr("gcdbench.ops.kmeans.assign.BLOCK", 10_000)
    for memory in (0, 50_000):  # nothing kept, the scores of some rows kept
        tight = semi_supervised_kmeans(*rows, 30, n_init=2, init=init, memory=memory)
        assert torch.equal(tight.labels, free.labels)
        assert torch.equal(tight.centers, free.centers)


def test_restarts_walk_in_step_or_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = problem()
    together = semi_supervised_kmeans(*rows, 12, n_init=5, max_iter=1)
    monkeypatch.setattr("gcdbench.ops.kmeans.seeding.MEMORY", 0)
    alone = semi_supervised_kmeans(*rows, 12, n_init=5, max_iter=1)
    assert torch.equal(alone.centers, together.centers)


def test_near_ties_are_settled_in_double_precision() -> None:
    # Far from the origin float32 scores cannot tell these centres apart; distances can.
    x, *_ = problem(n=200, shift=1000.0)
    centers = x[:20]
    exact = torch.cdist(x.double(), centers.double(), compute_mode="donot_use_mm_for_euclid_dist")
    assert torch.equal(assign(x, centers), exact.argmin(1))


def test_the_lowest_of_equally_near_centres_wins() -> None:
    centers = torch.tensor([[5.0, 5.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    assert assign(torch.tensor([[0.0, 0.0], [1.0, 1.0], [1.0, 0.0]]), centers).tolist() == [1, 1, 1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_changes_nothing() -> None:
    rows = problem(n=2000, d=64, k=30)
    here = semi_supervised_kmeans(*rows, 30, n_init=3)
    there = semi_supervised_kmeans(*rows, 30, n_init=3, device="cuda")
    assert torch.equal(there.labels.cpu(), here.labels)


@pytest.mark.parametrize("init", INITS)
def test_inertia_falls_with_every_step(init: str) -> None:
    rows = problem(n=600, k=20)
    options = {"n_init": 1, "tol": 0.0, "init": init}
    costs = [
        semi_supervised_kmeans(*rows, 20, max_iter=steps, **options).inertia
        for steps in (1, 2, 3, 5, 50)
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] < costs[0]


@pytest.mark.parametrize("init", ["greedy", "means"])
def test_the_other_starts_cost_less_than_single_points(init: str) -> None:
    rows = problem(n=2000, d=32, k=50)
    costs = {
        kind: semi_supervised_kmeans(*rows, 50, n_init=1, init=kind).inertia
        for kind in ("k-means++", init)
    }
    assert costs[init] < costs["k-means++"]


def test_normalising_here_or_before_is_the_same() -> None:
    x, labelled, targets = problem(shift=0.5)
    inside = semi_supervised_kmeans(x, labelled, targets, 8, normalise=True)
    unit = (torch.nn.functional.normalize(part, dim=1) for part in (x, labelled))
    before = semi_supervised_kmeans(*unit, targets, 8)
    assert torch.equal(inside.labels, before.labels)
    assert torch.equal(inside.labels, assign(x, inside.centers, normalise=True))


def test_spherical_centres_have_unit_length() -> None:
    x, labelled, targets = problem()
    got = semi_supervised_kmeans(x, labelled, targets, 8, normalise=True, spherical=True)
    torch.testing.assert_close(got.centers.norm(dim=1), torch.ones(8))
    assert torch.equal(got.labels, assign(x, got.centers, normalise=True))


def test_labelled_rows_keep_their_class_in_sorted_order_of_ids() -> None:
    x, labelled, targets = problem()
    names = torch.tensor([70, -3, 12, 5])
    got = semi_supervised_kmeans(x, labelled, names[targets], 8)
    rank = torch.tensor([3, 0, 2, 1])
    assert torch.equal(got.labelled_labels, rank[targets])


def test_one_cluster_takes_all() -> None:
    x, *_ = problem()
    got = semi_supervised_kmeans(x, None, None, 1)
    assert got.labels.unique().tolist() == [0]
    assert got.inertia == pytest.approx(float((x - x.mean(0)).square().sum()), rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"unlabelled": torch.zeros(0, 4)}, "unlabelled needs rows"),
        ({"unlabelled": torch.zeros(9)}, "unlabelled needs rows"),
        ({"unlabelled": torch.full((9, 4), torch.nan)}, "unlabelled has NaN"),
        ({"labelled": torch.full((3, 4), torch.inf)}, "labelled has NaN or infinite"),
        ({"labelled": torch.zeros(3, 5)}, "labelled rows have 5 features, unlabelled 4"),
        ({"targets": torch.zeros(2)}, "3 labelled rows do not go with targets"),
        ({"targets": None}, "3 labelled rows do not go with targets"),
        ({"labelled": None}, "0 labelled rows do not go with targets"),
        ({"k": 1}, "k is 1, below the 2 labelled classes"),
        ({"n_init": 0}, "n_init"),
        ({"max_iter": 0}, "max_iter"),
        ({"init": "best"}, "init 'best' is unknown"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(change: dict, message: str) -> None:
    good = {
        "unlabelled": torch.zeros(9, 4),
        "labelled": torch.zeros(3, 4),
        "targets": torch.tensor([0, 1, 1]),
        "k": 3,
    }
    with pytest.raises(ValueError, match=message):
        semi_supervised_kmeans(**{**good, **change})


def test_rows_and_centres_of_different_width_are_refused() -> None:
    with pytest.raises(ValueError, match="x has 3 features but the centers have 4"):
        assign(torch.zeros(2, 3), torch.zeros(5, 4))


def test_spherical_centres_are_the_directions_of_their_members() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(300, 8, generator=generator), dim=1)
    result = semi_supervised_kmeans(x, None, None, 6, n_init=3, tol=0.0, spherical=True)
    sums = torch.zeros(6, 8).index_add_(0, result.labels, x)
    torch.testing.assert_close(result.centers, torch.nn.functional.normalize(sums, dim=1))
    assert torch.equal(result.labels, (x @ result.centers.T).argmax(1))
