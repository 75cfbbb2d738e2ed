from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from gcdbench.clustering import KMeansResult, assign, semi_supervised_kmeans

GOLDEN = Path(__file__).parent / "golden"
CASES = json.loads((GOLDEN / "gcd_ssk.json").read_text())


def golden(case: str, field: str) -> np.ndarray:
    with np.load(GOLDEN / "gcd_ssk.npz") as archive:
        return archive[f"{case}__{field}"]


def cluster(case: str) -> KMeansResult:
    settings = CASES[case]
    return semi_supervised_kmeans(
        *(golden(case, field) for field in ("u_feats", "l_feats", "l_targets")),
        settings["k"],
        seed=settings["seed"],
        n_init=settings["n_init"],
        max_iter=settings["max_iterations"],
    )


@pytest.mark.parametrize("case", CASES)
def test_labels_and_inertia_are_those_of_the_original(case: str) -> None:
    result = cluster(case)
    labels = torch.cat([result.labelled_labels, result.labels])
    np.testing.assert_array_equal(labels, golden(case, "labels"))
    assert result.inertia == pytest.approx(CASES[case]["inertia"], rel=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_labels_are_the_nearest_of_the_returned_centres(case: str) -> None:
    result = cluster(case)
    assert torch.equal(result.labels, assign(golden(case, "u_feats"), result.centers))
