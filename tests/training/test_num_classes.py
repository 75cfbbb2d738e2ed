from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.paths import GOLDEN

from gcdbench.training.estimate_file import run_estimate
from gcdbench.training.num_classes import Curve, estimate_k, explore

CASES = json.loads((GOLDEN / "gcd_misc.json").read_text())["k_search"]
CURVES: dict[str, Callable[[int], float]] = {
    "cub_like": lambda k: math.exp(-(((k - 231) / 150) ** 2)),
    "small": lambda k: math.exp(-(((k - 98) / 60) ** 2)),
    "edge_low": lambda k: math.exp(-(((k - 100) / 200) ** 2)),
    "flat_step": lambda k: 0.8 if 300 <= k <= 500 else 0.4,
}


def searched(case: str, search: str) -> Curve:
    curve = Curve(CURVES[case])
    explore(curve, low=CASES[case]["low"], high=CASES[case]["high"], search=search)
    return curve


def features(k: int = 12, n: int = 480, d: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Well separated classes; half the rows of the first half of them are labelled."""
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % k
    x = torch.randn(k, d, generator=g)[y] + 0.1 * torch.randn(n, d, generator=g)
    return x, torch.where((y < k // 2) & (torch.rand(n, generator=g) < 0.5), y, -1)


@pytest.mark.parametrize("case", CASES)
def test_brent_visits_k_in_the_order_of_the_original(case: str) -> None:
    curve = searched(case, "brent")
    assert curve.asked == [k for _, k in CASES[case]["brent_K_order"]]
    assert curve.best == int(CASES[case]["brent_result"])


@pytest.mark.parametrize("case", CASES)
def test_halving_visits_k_in_the_order_of_the_original(case: str) -> None:
    curve = searched(case, "binary")
    assert curve.asked == CASES[case]["binary_search_K_order"]
    assert CASES[case]["binary_search_last_print"].endswith(f"at K {curve.best}")


@pytest.mark.parametrize("search", ["brent", "binary"])
def test_each_k_is_clustered_once(search: str) -> None:
    clustered = []
    curve = Curve(lambda k: clustered.append(k) or CURVES["edge_low"](k))
    explore(curve, low=100, high=1000, search=search)
    assert len(clustered) == len(set(clustered)) == len(set(curve.asked))


def test_the_smallest_of_equally_good_k_wins() -> None:
    assert Curve(lambda k: 1.0, values={30: 0.8, 12: 0.9, 7: 0.9, 9: 0.9}).best == 7


@pytest.mark.parametrize("search", ["brent", "binary"])
def test_the_number_of_separated_classes_is_nearly_found(search: str) -> None:
    got = estimate_k(*features(), search=search, high=40, n_init=3)
    assert 12 <= got.k <= 15  # the search need not visit 12 itself
    assert got.accuracy == max(got.curve.values()) > 0.9


def test_unlabelled_rows_are_clustered_but_not_scored() -> None:
    x, labels = features()
    got = estimate_k(x, labels, high=40, n_init=1)
    assert got.curve.keys() != estimate_k(x[labels >= 0], labels[labels >= 0], high=40).curve.keys()


def test_the_curve_is_left_as_a_table_and_a_plot(tmp_path: Path) -> None:
    x, labels = features()
    np.savez(tmp_path / "features.npz", features=x, labels=labels)
    out = tmp_path / "new" / "folder"
    got = run_estimate(tmp_path / "features.npz", out, high=40, n_init=2)
    with (out / "k_curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {int(row["k"]): float(row["labelled_accuracy"]) for row in rows} == got.curve
    assert (out / "k_curve.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.zeros(3)}, "4 features do not go with labels"),
        ({"labels": torch.full((4,), -1)}, "no row is labelled"),
        ({"low": 9}, "K is searched between 9 and 4"),
        ({"search": "grid"}, "search 'grid' is unknown"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(change: dict, message: str) -> None:
    good = {"features": torch.eye(4), "labels": torch.tensor([0, 1, -1, -1])}
    with pytest.raises(ValueError, match=message):
        estimate_k(**{**good, **change})


def test_hidden_labels_are_not_used(tmp_path: Path) -> None:
    x, labels = features()
    known = labels.numpy() >= 0
    names = np.where(known, np.char.add("bird", labels.numpy().astype(str)), "hidden")
    np.savez(tmp_path / "named.npz", features=x, labels=names, labelled=known)
    np.savez(tmp_path / "plain.npz", features=x, labels=labels)
    curves = [
        run_estimate(tmp_path / f"{name}.npz", tmp_path, high=20, n_init=1).curve
        for name in ("named", "plain")
    ]
    assert curves[0] == curves[1]


def test_a_file_that_is_missing_or_incomplete_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.npz: no such file"):
        run_estimate(tmp_path / "none.npz", tmp_path)
    np.savez(tmp_path / "half.npz", features=np.eye(3))
    with pytest.raises(ValueError, match=r"half\.npz: the array .labels. is missing"):
        run_estimate(tmp_path / "half.npz", tmp_path)
    np.savez(tmp_path / "odd.npz", features=np.eye(3), labels=np.arange(3), labelled=[True])
    with pytest.raises(ValueError, match="labelled has 1 entries, features has 3 rows"):
        run_estimate(tmp_path / "odd.npz", tmp_path)
