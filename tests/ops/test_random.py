from __future__ import annotations

import pytest
import torch
from scipy import stats

from gcdbench.ops.random import draw_beta, draw_integers, draw_permutation, draw_uniform

DRAWS = {
    "uniform": lambda g: draw_uniform(3, 4, generator=g),
    "integers": lambda g: draw_integers(1000, 12, generator=g),
    "permutation": lambda g: draw_permutation(50, generator=g),
    "beta": lambda g: draw_beta(0.1, 0.1, 12, generator=g),
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_depends_on_its_generator_alone(name):
    before = torch.get_rng_state()
    first, again, other = (DRAWS[name](torch.Generator().manual_seed(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(("a", "b"), [(0.1, 0.1), (1.0, 1.0), (1.3133, 1.3133), (2.0, 0.5)])
def test_beta_samples_follow_their_distribution(a, b):
    sample = draw_beta(a, b, 4000, generator=torch.Generator().manual_seed(0))
    assert ((sample >= 0) & (sample <= 1)).all()
    points = torch.linspace(0.01, 0.99, 50)
    measured = (sample[:, None] <= points).double().mean(0)
    expected = torch.from_numpy(stats.beta(a, b).cdf(points.double().numpy()))
    assert (measured - expected).abs().max() < 1.63 / 4000**0.5  # Kolmogorov-Smirnov at 1 %


def test_beta_samples_teach_their_concentrations():
    a, b = torch.tensor(1.3).requires_grad_(), torch.tensor(1.3).requires_grad_()
    draw_beta(a, b, 4000, generator=torch.Generator().manual_seed(0)).mean().backward()
    # The mean is a / (a + b): its derivatives are +-1 / (4 * 1.3) where both are equal.
    assert a.grad.item() == pytest.approx(1 / 5.2, rel=0.1)
    assert b.grad.item() == pytest.approx(-1 / 5.2, rel=0.1)
