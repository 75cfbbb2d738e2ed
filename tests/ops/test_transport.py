from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.paths import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st

from gcdbench.ops.transport import balanced_targets, sinkhorn, unbalanced_transport

REGIMES = ["pos", "neg", "half"]


def load(name):
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        return {key: torch.from_numpy(np.asarray(arrays[key])) for key in arrays.files}


@pytest.fixture(scope="module")
def uno():
    return load("base_uno_sinkhorn")


@pytest.fixture(scope="module")
def uniot():
    return load("base_uniot_ot")


def normalised(plan):
    return plan / plan.sum()


@pytest.mark.parametrize("case", ["a", "b", "c"])
@pytest.mark.parametrize("iterations", [3, 50])
def test_balanced_assignments_match_the_original(uno, case, iterations):
    q = sinkhorn(uno[f"{case}_logits"], iterations=iterations)
    torch.testing.assert_close(q, uno[f"{case}_q_it{iterations}"], rtol=1e-4, atol=1e-5)


def test_the_balanced_assignments_of_uniot_match_the_original(uniot):
    q = sinkhorn(uniot["sk_scores"]) / len(uniot["sk_scores"])
    torch.testing.assert_close(q, uniot["sk_Q"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("case", ["overflow", "overflow2"])
def test_scores_that_overflow_the_original_stay_finite(uno, case):
    assert uno[f"{case}_q_official_float32"].isnan().all()
    q = sinkhorn(uno[f"{case}_logits"])
    torch.testing.assert_close(q.sum(1), torch.ones(len(q)))


def test_heads_and_views_are_solved_in_one_call_as_they_are_alone(uno):
    scores = uno["a_logits"].reshape(2, 2, 8, 10)
    alone = torch.stack([torch.stack([sinkhorn(s) for s in view]) for view in scores])
    torch.testing.assert_close(sinkhorn(scores), alone)


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 12), columns=st.integers(1, 8), seed=st.integers(0, 1000))
def test_many_iterations_use_all_columns_equally(rows, columns, seed):
    scores = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)).double()
    q = sinkhorn(scores, epsilon=0.5, iterations=200)
    torch.testing.assert_close(q.sum(1), torch.ones(rows, dtype=torch.float64))
    expected = torch.full((columns,), rows / columns, dtype=torch.float64)
    torch.testing.assert_close(q.sum(0), expected, rtol=1e-4, atol=1e-6)


def test_half_precision_scores_are_assigned_in_full_precision(uno):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        q = sinkhorn(uno["a_logits"].half())
    torch.testing.assert_close(q, sinkhorn(uno["a_logits"].half().float()), rtol=0, atol=0)


def test_assigning_no_rows_gives_no_rows():
    assert sinkhorn(torch.zeros(2, 0, 5)).shape == (2, 0, 5)
    assert unbalanced_transport(torch.zeros(0, 5)).shape == (0, 5)


def test_labelled_rows_keep_their_label_and_the_others_are_balanced():
    logits = torch.rand(2, 6, 5, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([1, -1, 0, -1, -1, 1])
    targets = balanced_targets(logits, labels, first_class=2)
    hidden = labels == -1
    assert torch.equal(targets[0, ~hidden], F.one_hot(labels[~hidden], 5).float())
    torch.testing.assert_close(targets[:, hidden, 2:], sinkhorn(logits[:, hidden, 2:]))
    assert not targets[:, hidden, :2].any()


@pytest.mark.parametrize("labels", [[0, 1, 0], [-1, -1, -1]])
def test_targets_of_a_batch_of_one_kind_are_distributions(labels):
    logits = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    targets = balanced_targets(logits, torch.tensor(labels))
    torch.testing.assert_close(targets.sum(1), torch.ones(3))


@pytest.mark.parametrize("regime", REGIMES)
def test_the_rule_of_pot_stops_where_the_original_stopped(uniot, regime):
    plan = unbalanced_transport(uniot[f"{regime}_sim"], stop="pot")
    expected = normalised(uniot[f"{regime}_uot_plan_1e-4"])
    torch.testing.assert_close(plan, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("regime", REGIMES)
def test_the_relative_rule_comes_close_to_the_solution_within_its_limit(uniot, regime):
    expected = normalised(uniot[f"{regime}_uot_plan_tight"])
    plan = unbalanced_transport(uniot[f"{regime}_sim"])
    assert ((plan - expected).abs().max() / expected.max()).item() < 1e-3
    assert torch.equal(plan.argmax(1), expected.argmax(1))


@pytest.mark.parametrize("regime", REGIMES)
def test_a_small_tolerance_reaches_the_solution(uniot, regime):
    plan = unbalanced_transport(uniot[f"{regime}_sim"], tolerance=1e-12, max_sweeps=2000)
    expected = normalised(uniot[f"{regime}_uot_plan_tight"])
    torch.testing.assert_close(plan, expected, rtol=1e-6, atol=1e-8)


def test_the_rule_of_pot_can_stop_far_from_the_solution(uniot):
    early = unbalanced_transport(uniot["neg_sim"], stop="pot")
    solution = normalised(uniot["neg_uot_plan_tight"])
    assert ((early - solution).abs().sum() / 2).item() > 0.02


@pytest.mark.parametrize("stop", ["relative", "pot"])
def test_transport_stays_finite_at_the_ends_of_the_cosines(stop):
    similarity = torch.tensor([[1.0, -1.0], [-1.0, -1.0], [0.2, 1.0]])
    plan = unbalanced_transport(similarity, stop=stop)
    assert plan.isfinite().all()
    assert plan.sum().item() == pytest.approx(1.0)


def test_more_mass_for_a_class_draws_more_rows_to_it():
    similarity = torch.rand(20, 3, generator=torch.Generator().manual_seed(0)) * 0.1
    shares = [
        unbalanced_transport(similarity, class_mass=torch.tensor([m, 0.3, 0.3])).sum(0)[0]
        for m in (0.1, 0.4)
    ]
    assert shares[0] < shares[1]
