from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.paths import GOLDEN

from gcdbench.nn import critics as mutual_information
from gcdbench.nn.critics import CosineCritic, MLPCritic, js_mutual_information

CASES = ["zeros4", "rand5", "rand12", "eye6", "anti6", "big3"]


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "hilo_golden.npz") as arrays:
        names = [name for name in arrays.files if name.startswith("mi_")]
        tensors = {name: torch.from_numpy(arrays[name]) for name in names}
    return tensors, json.loads((GOLDEN / "hilo_golden.json").read_text())


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tiled(x, y):
    """Concatenate all pairs of rows: (n, m, d_x + d_y)."""
    n, m = len(x), len(y)
    return torch.cat([x[:, None].expand(n, m, -1), y[None].expand(n, m, -1)], dim=2)


def build(kind, **options):
    generator = torch.Generator().manual_seed(7)
    return kind(6, 5, generator=generator, **options).double()


def evaluated_plainly(critic, x, y):
    """Score all pairs by evaluating the critic's definition on every concatenation."""
    pairs = tiled(x, y)
    if isinstance(critic, MLPCritic):
        return critic.head(pairs).squeeze(-1)
    return F.cosine_similarity(pairs, critic.weight[None], dim=2)


def value_and_grads(score, critic, x, y):
    x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
    value = js_mutual_information(score(x, y))
    return value, torch.autograd.grad(value, [x, y, *critic.parameters()])


@pytest.mark.parametrize("case", CASES)
def test_the_estimate_and_its_gradient_match_the_original(golden, case):
    tensors, scalars = golden
    scores = tensors[f"mi_score/{case}/scores"].clone().requires_grad_()
    value = js_mutual_information(scores)
    value.backward()
    assert value.item() == pytest.approx(scalars[f"mi_score/{case}/value"], rel=1e-7)
    torch.testing.assert_close(scores.grad, tensors[f"mi_score/{case}/grad"], rtol=1e-6, atol=1e-8)


def test_the_released_critic_and_its_gradients_match_the_original(golden):
    tensors, scalars = golden
    critic = CosineCritic(5, 5).double()
    critic.load_state_dict({"weight": tensors["mi_full/weight_v"]})
    x, y = tensors["mi_full/x_sem"], tensors["mi_full/y_dom"]
    torch.testing.assert_close(critic(x, y), tensors["mi_full/scores"])
    value, grads = value_and_grads(critic, critic, x, y)
    assert value.item() == pytest.approx(scalars["mi_full/value"])
    for grad, name in zip(grads, ("grad_x", "grad_y", "grad_weight_v"), strict=True):
        torch.testing.assert_close(grad, tensors[f"mi_full/{name}"])


@pytest.mark.parametrize(("kind", "options"), [(CosineCritic, {}), (MLPCritic, {"hidden_dim": 9})])
def test_values_and_gradients_equal_the_evaluation_of_all_concatenations(kind, options):
    critic, x, y = build(kind, **options), normal(11, 6), normal(11, 5, seed=1)
    value, grads = value_and_grads(critic, critic, x, y)
    expected, expected_grads = value_and_grads(
        lambda x, y: evaluated_plainly(critic, x, y), critic, x, y
    )
    torch.testing.assert_close(value, expected, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(grads, expected_grads, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_the_number_of_rows_at_a_time_changes_nothing(rows, monkeypatch):
    critic, x, y = build(MLPCritic, hidden_dim=4), normal(7, 6), normal(7, 5, seed=1)
    expected = value_and_grads(critic, critic, x, y)
    monkeypatch.setattr(mutual_information, "CPU_CHUNK", rows * 7 * 4 * 8)
    torch.testing.assert_close(value_and_grads(critic, critic, x, y), expected)


@pytest.mark.parametrize(("dependent", "low", "high"), [(True, -0.6, 0.0), (False, -1.45, -1.3)])
def test_a_critic_learns_to_tell_dependent_from_independent_features(dependent, low, high):
    generator = torch.Generator().manual_seed(0)
    critic = MLPCritic(2, 2, hidden_dim=64, generator=generator)
    optimiser = torch.optim.Adam(critic.parameters(), lr=0.02)
    estimates = []
    for _ in range(80):
        x, y = torch.randn(2, 64, 2, generator=generator)
        estimate = js_mutual_information(critic(x, x + 0.1 * y if dependent else y))
        optimiser.zero_grad()
        (-estimate).backward()
        optimiser.step()
        estimates.append(estimate.item())
    assert low < np.mean(estimates[-10:]) < high


def test_a_critic_that_knows_nothing_estimates_independence():
    value = js_mutual_information(torch.zeros(5, 5))
    assert value.item() == pytest.approx(-2 * math.log(2))


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("kind", [CosineCritic, MLPCritic])
def test_too_few_rows_give_zero_and_back_propagate_zeros(kind, rows):
    critic, x = build(kind), normal(3, 6).requires_grad_()
    value = js_mutual_information(critic(x[:rows], normal(rows, 5)))
    value.backward()
    assert value.item() == 0.0
    assert x.grad is None or not x.grad.any()


def test_rows_of_zeros_give_finite_gradients():
    critic = build(CosineCritic)
    x, y = torch.zeros(3, 6).double().requires_grad_(), torch.zeros(3, 5).double()
    js_mutual_information(critic(x, y)).backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("kind", [CosineCritic, MLPCritic])
def test_autocast_does_not_change_the_estimate(kind):
    critic, x, y = build(kind).float(), normal(9, 6).float() * 9, normal(9, 5, seed=1).float() * 9

    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = js_mutual_information(critic(x, y))
    outside = js_mutual_information(critic(x, y))
    torch.testing.assert_close(inside, outside, rtol=0, atol=0)
    weights = list(critic.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(inside, weights), torch.autograd.grad(outside, weights), rtol=0, atol=0
    )


def test_the_generator_decides_the_initial_critic():
    first, again = (build(MLPCritic).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
