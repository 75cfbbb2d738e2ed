from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from gcdbench.metrics import accuracies

GOLDEN = Path(__file__).parent / "golden"
CASES = json.loads((GOLDEN / "gcd_acc.json").read_text())


def golden(case: str, field: str) -> np.ndarray:
    with np.load(GOLDEN / "gcd_acc.npz") as archive:
        return archive[f"{case}__{field}"]


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
