from __future__ import annotations

import torch
import torch.nn.functional as F

from gcdbench.ops.unit import unit_rows


def rows(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def test_rows_and_gradients_are_those_of_torch():
    for shape in ((5, 3), (2, 4, 3)):
        x = rows(*shape).requires_grad_()
        given, upper = unit_rows(x), rows(*shape).flip(0)
        torch.testing.assert_close(given, F.normalize(x, dim=-1))
        (own,) = torch.autograd.grad(given, x, upper)
        (torchs,) = torch.autograd.grad(F.normalize(x, dim=-1), x, upper)
        torch.testing.assert_close(own, torchs)
    assert torch.autograd.gradcheck(unit_rows, (rows(4, 3).requires_grad_(),))


def test_a_row_of_zeros_stays_one_and_passes_a_finite_gradient():
    x = torch.zeros(1, 3, requires_grad=True)
    unit_rows(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_half_precision_is_normalised_in_full():
    unit = unit_rows(rows(6, 300).half() * 100)
    assert unit.dtype == torch.float32
    assert (unit.norm(dim=1) - 1).abs().max() < 1e-6
