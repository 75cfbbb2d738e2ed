from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from helpers.paths import GOLDEN

from gcdbench.ops.domain_losses import (
    minimum_class_confusion,
    nuclear_discrepancy,
    reverse_gradient,
    warm_start,
)


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "base_mcc_nwd.npz") as arrays:
        return {key: torch.from_numpy(np.asarray(arrays[key])) for key in arrays.files}


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_class_confusion_and_its_gradient_match_the_original(golden, temperature):
    logits = golden["mcc_logits"].clone().requires_grad_()
    loss = minimum_class_confusion(logits, temperature=temperature)
    loss.backward()
    torch.testing.assert_close(loss, golden[f"mcc_loss_T{temperature}"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        logits.grad, golden[f"mcc_grad_T{temperature}"], rtol=1e-4, atol=1e-6
    )


def test_class_confusion_of_bare_cosines_is_nearly_flat(golden):
    cosines = golden["mcc_cosine_logits"]
    flat = minimum_class_confusion(cosines)
    torch.testing.assert_close(flat, golden["mcc_cosine_unscaled"], rtol=1e-5, atol=1e-5)
    sharp = minimum_class_confusion(cosines / 0.1)
    torch.testing.assert_close(sharp, golden["mcc_cosine_over_0.1"], rtol=1e-5, atol=1e-5)


def test_class_confusion_is_zero_for_certain_rows_of_all_classes():
    assert minimum_class_confusion(1e3 * torch.eye(5)).item() == pytest.approx(0.0, abs=1e-6)


def test_a_class_that_no_row_shows_leaves_the_confusion_finite():
    logits = torch.tensor([[1e4, 0.0, -1e4], [0.0, 1e4, -1e4]], requires_grad=True)
    loss = minimum_class_confusion(logits)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()


def test_the_nuclear_discrepancy_and_its_reversed_gradient_match_the_original(golden):
    features = golden["nwd_feat"].clone().requires_grad_()
    weight = golden["nwd_w"].clone().requires_grad_()
    strength = warm_start(int(golden["nwd_grl_iter"]))
    p = (reverse_gradient(features, strength) @ weight.T + golden["nwd_b"]).softmax(1)
    discrepancy = nuclear_discrepancy(p[:12], p[12:])
    (-discrepancy).backward()
    torch.testing.assert_close(discrepancy, golden["nwd_value"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(features.grad, golden["nwd_grad_feat"], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(weight.grad, golden["nwd_grad_w"], rtol=1e-4, atol=1e-6)


def test_both_terms_of_hilos_adaptation_match_the_original():
    with np.load(GOLDEN / "hilo_golden.npz") as arrays:
        logits = torch.from_numpy(arrays["uda/logits"])
        labelled = torch.from_numpy(arrays["uda/mask_lab"]).repeat(2)
    scalars = json.loads((GOLDEN / "hilo_golden.json").read_text())
    assert minimum_class_confusion(logits[~labelled]).item() == pytest.approx(
        scalars["uda/mcc"], rel=1e-6
    )
    p = logits.softmax(1)
    assert nuclear_discrepancy(p[labelled], p[~labelled]).item() == pytest.approx(
        scalars["uda/daln_first_call"], rel=1e-6
    )
    for step, strength in scalars["uda/grl_coeff_by_iter"].items():
        assert warm_start(int(step)) == pytest.approx(strength)


def test_the_reversal_sets_in_as_in_the_original(golden):
    ours = [warm_start(int(step)) for step in golden["grl_iters"]]
    assert ours == pytest.approx(golden["grl_coeff"].tolist())


def test_a_discrepancy_with_an_empty_side_is_zero_and_back_propagates_zeros():
    p = torch.rand(4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    for source, target in ((p[:0], p), (p, p[:0]), (p[:0], p[:0])):
        loss = nuclear_discrepancy(source, target)
        loss.backward()
        assert loss.item() == 0.0
    assert not p.grad.any()


def test_the_confusion_of_no_rows_is_zero_and_back_propagates_zeros():
    logits = torch.ones(4, 3, requires_grad=True)
    loss = minimum_class_confusion(logits[:0])
    loss.backward()
    assert loss.item() == 0.0
    assert not logits.grad.any()
