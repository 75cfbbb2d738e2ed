from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.paths import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st

from gcdbench.core.settings import TrainConfig
from gcdbench.ops.losses import (
    cross_entropy_on,
    info_nce,
    mean_entropy_deficit,
    mean_or_zero,
    ramp_up,
    self_distillation,
    smoothed_cross_entropy,
    soft_cross_entropy,
    sup_con,
    teacher_temperature,
)
from gcdbench.training.optimizer import learning_rate

SUPCON = ["labels6", "all_distinct", "all_same", "unnormalised_input", "three_views"]
DISTIL_EPOCHS = [0, 1, 10, 15, 28, 29, 30, 100, 199]


@pytest.fixture(scope="module")
def gcd():
    with np.load(GOLDEN / "gcd_losses.npz") as arrays:
        tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    return tensors, json.loads((GOLDEN / "gcd_losses.json").read_text())


@pytest.fixture(scope="module")
def hilo():
    with np.load(GOLDEN / "hilo_golden.npz") as arrays:
        tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    return tensors, json.loads((GOLDEN / "hilo_golden.json").read_text())


def view_major(features):
    """Turn (B, views, d) into (views * B, d)."""
    return features.transpose(0, 1).flatten(0, 1)


def value_and_grad(loss, x):
    x = x.clone().requires_grad_()
    value = loss(x)
    value.backward()
    return value.item(), x.grad


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.mark.parametrize("case", [*SUPCON, "no_labels_simclr", "single_sample"])
def test_sup_con_and_its_gradient_match_the_original(gcd, case):
    tensors, scalars = gcd
    features = tensors[f"supcon__{case}__features"]
    images, views = features.shape[:2]
    labels = tensors.get(f"supcon__{case}__labels", torch.arange(images)).repeat(views)
    value, grad = value_and_grad(
        lambda x: sup_con(view_major(x), labels, normalise=False), features
    )
    assert value == pytest.approx(scalars["supcon"][case]["loss"], rel=1e-5)
    torch.testing.assert_close(grad, tensors[f"supcon__{case}__grad"], rtol=1e-5, atol=2e-6)


def test_sup_con_leaves_out_the_originals_factor_for_other_temperatures(gcd):
    tensors, scalars = gcd
    features = view_major(tensors["supcon__temp_0.5_base_0.07__features"])
    labels = tensors["supcon__temp_0.5_base_0.07__labels"].repeat(2)
    loss = sup_con(features, labels, temperature=0.5, normalise=False) * 0.5 / 0.07
    assert loss.item() == pytest.approx(scalars["supcon"]["temp_0.5_base_0.07"]["loss"], rel=1e-5)


def test_sup_con_normalises_unless_told_not_to(gcd):
    tensors, scalars = gcd
    z = view_major(tensors["supcon__labels6__features"]) * torch.linspace(0.5, 1.5, 12)[:, None]
    loss = sup_con(z, tensors["supcon__labels6__labels"].repeat(2))
    assert loss.item() == pytest.approx(scalars["supcon"]["labels6"]["loss"], rel=1e-5)


def test_a_weight_multiplies_the_loss_of_its_anchor_alone():
    z, labels = normal(8, 5), torch.tensor([0, 1, 0, 2, 0, 1, 0, 2])
    alone = [sup_con(z, labels, weight=F.one_hot(torch.tensor(i), 8)) for i in range(8)]
    weight = torch.rand(8, generator=torch.Generator().manual_seed(1))
    expected = (weight * torch.stack(alone)).sum()
    torch.testing.assert_close(sup_con(z, labels, weight=weight), expected)
    torch.testing.assert_close(sup_con(z, labels), torch.stack(alone).sum())


def test_a_row_without_a_partner_adds_nothing_to_sup_con():
    loss = sup_con(normal(1, 4).requires_grad_(), torch.tensor([3]))
    assert loss.item() == 0.0


@pytest.mark.parametrize(("case", "temperature"), [("b4", 1.0), ("b6_t0.07", 0.07), ("b1", 1.0)])
def test_info_nce_and_its_gradient_match_the_original(gcd, case, temperature):
    tensors, scalars = gcd
    z = tensors[f"infonce__{case}__features"]
    value, grad = value_and_grad(lambda x: info_nce(x, temperature=temperature), z)
    assert value == pytest.approx(scalars["infonce"][case]["loss"], rel=1e-5, abs=1e-6)
    torch.testing.assert_close(grad, tensors[f"infonce__{case}__grad"], rtol=1e-5, atol=2e-6)


def test_info_nce_is_sup_con_with_one_label_per_image():
    z = normal(10, 6)
    torch.testing.assert_close(
        info_nce(z, temperature=0.3), sup_con(z, torch.arange(5).repeat(2), temperature=0.3)
    )


def test_the_contrastive_losses_of_hilo_match_the_original(hilo):
    tensors, scalars = hilo
    z, labels = view_major(tensors["supcon/features"]), tensors["supcon/labels"].repeat(2)
    assert sup_con(z, labels, normalise=False).item() == pytest.approx(scalars["supcon/plain"])
    for name, temperature in {"tau1": 1.0, "tau0.07": 0.07}.items():
        loss = info_nce(tensors["infonce/features"], temperature=temperature)
        assert loss.item() == pytest.approx(scalars[f"infonce/value_{name}"])


@pytest.mark.parametrize("epoch", DISTIL_EPOCHS)
def test_self_distillation_and_its_gradient_match_the_original(gcd, epoch):
    tensors, scalars = gcd
    temp = teacher_temperature(epoch, 200)
    value, grad = value_and_grad(
        lambda x: self_distillation(x, teacher_temp=temp), tensors["distill__logits"]
    )
    assert value == pytest.approx(scalars["distill"][str(epoch)]["loss"], rel=1e-5)
    torch.testing.assert_close(grad, tensors[f"distill__grad_ep{epoch}"], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("epoch", [0, 15, 29, 30, 199])
def test_the_self_distillation_of_hilo_matches_the_original(hilo, epoch):
    tensors, scalars = hilo
    temp = teacher_temperature(epoch, 200)
    loss = self_distillation(tensors["distill/logits"], teacher_temp=temp)
    assert loss.item() == pytest.approx(scalars[f"distill/value_epoch{epoch}"])


def test_the_teacher_sharpens_as_in_the_original_schedules(gcd, hilo):
    tensors, scalars = gcd
    schedules = [
        (tensors["distill__schedule_30_200"], 30),
        (hilo[0]["distill/teacher_temp_by_epoch"], 30),
        (tensors["distill__schedule_5_10"], 5),
        (torch.tensor(scalars["distill"]["warmup1_epochs5_schedule"]), 1),
        (torch.tensor(scalars["distill"]["warmup0_epochs5_schedule"]), 0),
    ]
    for schedule, warmup in schedules:
        epochs = len(schedule)
        ours = [teacher_temperature(t, epochs, warmup=warmup) for t in range(epochs)]
        assert ours == pytest.approx(schedule.tolist(), rel=1e-6)


@pytest.mark.parametrize("epochs", [2, 3, 20, 29])
def test_a_run_shorter_than_the_warm_up_still_ends_at_the_lowest_temperature(epochs):
    ours = [teacher_temperature(t, epochs) for t in range(epochs)]
    assert ours == pytest.approx(np.linspace(0.07, 0.04, epochs))


@pytest.mark.parametrize("case", ["generic", "uniform", "collapsed", "underflow"])
def test_the_entropy_deficit_and_its_gradient_match_the_original(gcd, case):
    tensors, scalars = gcd
    value, grad = value_and_grad(mean_entropy_deficit, tensors[f"memax__{case}__logits"])
    assert value == pytest.approx(scalars["memax"][case]["value"], rel=1e-5, abs=2e-6)
    torch.testing.assert_close(grad, tensors[f"memax__{case}__grad"], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_the_entropy_deficit_of_hilo_matches_the_original(hilo, temperature):
    tensors, scalars = hilo
    p = tensors[f"memax/mean_prob_tau{temperature:g}"]
    deficit = mean_entropy_deficit(p.log()[None] * temperature, temperature=temperature)
    assert deficit.item() == pytest.approx(scalars[f"memax/tau{temperature:g}"])


def test_the_smoothed_cross_entropy_matches_the_original(hilo):
    tensors, scalars = hilo
    logits, labels = tensors["smooth_ce/logits"], tensors["smooth_ce/labels"]
    alpha = tensors["smooth_ce/alpha"]
    value, grad = value_and_grad(
        lambda x: smoothed_cross_entropy(x, labels, alpha, temperature=1.0), logits
    )
    assert value == pytest.approx(scalars["smooth_ce/value_tau1"])
    torch.testing.assert_close(grad, tensors["smooth_ce/grad_logits_tau1"])
    sharp = smoothed_cross_entropy(logits, labels, alpha, temperature=0.1)
    assert sharp.item() == pytest.approx(scalars["smooth_ce/value_tau0.1"])
    hard = smoothed_cross_entropy(logits, labels, torch.ones_like(alpha), temperature=1.0)
    assert hard.item() == pytest.approx(scalars["smooth_ce/value_alpha1_tau1"])


def test_the_semantic_loss_of_hilo_is_the_sum_of_the_shared_terms(hilo):
    tensors, scalars = hilo
    proj, logits = tensors["sem_axis/proj"], tensors["sem_axis/logits"]
    labelled = tensors["sem_axis/mask_lab"].repeat(2)
    labels = torch.full((len(labelled),), -1)
    labels[labelled] = tensors["sem_axis/labels_of_labelled"].repeat(2)
    terms = {
        "distill": self_distillation(logits, teacher_temp=teacher_temperature(10, 200)),
        "memax": mean_entropy_deficit(logits),
        "cls": cross_entropy_on(logits, labels, temperature=0.1),
        "infonce": info_nce(proj),
        "supcon": sup_con(proj[labelled], labels[labelled]),
    }
    assert {k: v.item() for k, v in terms.items()} == pytest.approx(
        {k: scalars[f"sem_axis/{k}"] for k in terms}
    )


def test_targets_take_the_place_of_labels_where_these_are_not_hidden():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(4, 3, generator=generator), torch.tensor([2, -1, 0, -1])
    one_hot = F.one_hot(labels.clamp(min=0), 3).float()
    plain = cross_entropy_on(logits, labels, temperature=0.5)
    torch.testing.assert_close(
        cross_entropy_on(logits, labels, targets=one_hot, temperature=0.5), plain
    )
    mixed = 0.3 * one_hot[[0, 2]] + 0.7 * one_hot[[2, 0]]
    expected = soft_cross_entropy(logits[[0, 2]], mixed, temperature=0.5).mean()
    targets = torch.full((4, 3), torch.nan).index_copy(0, torch.tensor([0, 2]), mixed)
    found = cross_entropy_on(logits, labels, targets=targets, temperature=0.5)
    torch.testing.assert_close(found, expected)


def test_cross_entropy_counts_the_rows_of_the_mask_alone():
    logits, labels = normal(6, 4), torch.tensor([0, 3, -1, 1, 2, -1])
    mask = torch.tensor([True, False, True, True, False, False])
    expected = F.cross_entropy(logits[[0, 3]] / 0.1, labels[[0, 3]])
    torch.testing.assert_close(cross_entropy_on(logits, labels, mask, temperature=0.1), expected)


LOSSES_OF_ROWS = {
    "info_nce": info_nce,
    "sup_con": lambda x: sup_con(x, torch.zeros(len(x), dtype=torch.long)),
    "self_distillation": self_distillation,
    "mean_entropy_deficit": mean_entropy_deficit,
    "cross_entropy_on": lambda x: cross_entropy_on(x, torch.zeros(len(x), dtype=torch.long)),
    "smoothed_cross_entropy": lambda x: smoothed_cross_entropy(
        x, torch.zeros(len(x), dtype=torch.long), torch.full((len(x),), 0.5)
    ),
    "soft_cross_entropy": lambda x: mean_or_zero(
        soft_cross_entropy(x, torch.full(x.shape, 1 / x.shape[1]))
    ),
}


@pytest.mark.parametrize("name", LOSSES_OF_ROWS)
def test_a_loss_of_no_rows_is_zero_and_back_propagates_zeros(name):
    x = normal(4, 3).requires_grad_()
    loss = LOSSES_OF_ROWS[name](x[:0])
    loss.backward()
    assert loss.item() == 0.0
    assert x.grad is not None
    assert not x.grad.any()


@pytest.mark.parametrize("name", LOSSES_OF_ROWS)
def test_autocast_does_not_change_a_loss(name):
    x = normal(8, 5) * 20  # large enough for half precision to show
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = LOSSES_OF_ROWS[name](x)
    torch.testing.assert_close(inside, LOSSES_OF_ROWS[name](x), rtol=0, atol=0)


@pytest.mark.parametrize("name", LOSSES_OF_ROWS)
def test_half_precision_inputs_give_a_float32_loss(name):
    x = normal(8, 5).half()
    loss = LOSSES_OF_ROWS[name](x)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, LOSSES_OF_ROWS[name](x.float()))


@pytest.mark.parametrize("loss", [info_nce, self_distillation])
def test_an_odd_number_of_rows_is_refused(loss):
    with pytest.raises(ValueError, match="stack both views"):
        loss(normal(5, 3))


@settings(max_examples=25, deadline=None)
@given(images=st.integers(1, 6), dim=st.integers(2, 6), seed=st.integers(0, 1000))
def test_the_order_of_the_images_does_not_matter(images, dim, seed):
    x = normal(2 * images, dim, seed=seed, dtype=torch.float64)
    order = torch.randperm(images, generator=torch.Generator().manual_seed(seed))
    shuffled = x[torch.cat([order, order + images])]
    for loss in (info_nce, self_distillation, mean_entropy_deficit):
        torch.testing.assert_close(loss(shuffled), loss(x))


@pytest.mark.parametrize("loss", [info_nce, self_distillation, mean_entropy_deficit])
def test_extreme_logits_give_finite_losses_and_gradients(loss):
    value, grad = value_and_grad(loss, normal(8, 5) * 1e4)
    assert math.isfinite(value)
    assert grad.isfinite().all()


@pytest.mark.parametrize(("scale", "length"), [(5, 50), (50, 150), (25, 300), (50, 80)])
def test_the_ramp_matches_the_original(scale, length):
    with np.load(GOLDEN / "base_rampup.npz") as arrays:
        expected = arrays[f"w_c{scale}_T{length}"].tolist()
    assert [ramp_up(t, length, scale) for t in range(201)] == pytest.approx(expected)


def test_the_ramp_of_zero_length_is_at_its_end():
    assert ramp_up(0, 0, 3.0) == 3.0


@pytest.mark.parametrize("base", [0.4, 0.1])
def test_the_trainers_warm_up_and_cosine_are_those_of_uno(base):
    with np.load(GOLDEN / "base_uno_lr_schedule.npz") as arrays:
        expected = arrays[f"lr_base{base}_w10_e200"].tolist()
    config = TrainConfig(epochs=200, lr=base, warmup_epochs=10, min_lr_share=0.001 / base)
    assert [learning_rate(config, t) for t in range(200)] == pytest.approx(expected, rel=1e-6)
