from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.paths import GOLDEN

from gcdbench.ops import mixing
from gcdbench.ops.losses import (
    info_nce,
    mean_entropy_deficit,
    self_distillation,
    smoothed_cross_entropy,
    sup_con,
    teacher_temperature,
)
from gcdbench.ops.mixing import (
    attention_share,
    cutmix,
    cutmix_boxes,
    efdm,
    image_pairs,
    mixed_feature_loss,
    mixed_label_loss,
    mixstyle,
    mixup,
    partners_across,
    partners_within,
    patch_mix,
    stacked_pairs,
)

LABELLED = torch.tensor([True, False, True, False, False, True, False])


def load(name):
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        return {key: torch.from_numpy(np.asarray(arrays[key])) for key in arrays.files}


@pytest.fixture(scope="module")
def styles():
    return load("base_mixstyle_efdm")


@pytest.fixture(scope="module")
def pmtrans():
    return load("base_patchmix_pmtrans")


@pytest.fixture(scope="module")
def hilo():
    return load("hilo_golden")


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


def as_tokens(images):
    """Turn (n, channels, h, w) into (n, positions, channels)."""
    return images.flatten(2).transpose(1, 2)


@pytest.mark.parametrize("name", ["mixstyle", "efdm"])
@pytest.mark.parametrize("mode", ["random_a0.1", "random_a1.0", "crossdomain_a0.1"])
def test_mixed_styles_and_their_gradients_match_the_original(styles, name, mode):
    prefix = f"{name}_{mode}"
    tokens = styles["x_tokens"].clone().requires_grad_()
    out = getattr(mixing, name)(tokens, styles[f"{prefix}_perm"], styles[f"{prefix}_lam"])
    expected = styles[f"{prefix}_out"]
    torch.testing.assert_close(out, as_tokens(expected), rtol=1e-5, atol=1e-5)
    probe = torch.arange(expected.numel(), dtype=torch.float32).view(expected.shape) / 100
    (out * as_tokens(probe)).sum().backward()
    torch.testing.assert_close(
        tokens.grad, as_tokens(styles[f"{prefix}_grad"]), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("mix", [mixstyle, efdm, mixup])
def test_a_share_of_one_keeps_the_tokens(styles, mix):
    tokens = styles["x_tokens"]
    out = mix(tokens, torch.arange(6).flip(0), torch.ones(6))
    torch.testing.assert_close(out, tokens, rtol=1e-5, atol=1e-5)


def test_efdm_with_share_zero_takes_over_the_partners_values(styles):
    tokens, partners = styles["x_tokens"], torch.arange(6).roll(1)
    out = efdm(tokens, partners, torch.zeros(6))
    torch.testing.assert_close(out.sort(1).values, tokens[partners].sort(1).values)
    assert torch.equal(out.argsort(1), tokens.argsort(1))


def test_mixup_is_the_weighted_sum_of_a_row_and_its_partner():
    x = torch.arange(12.0).view(3, 1, 2, 2)
    out = mixup(x, torch.tensor([2, 0, 1]), torch.tensor([1.0, 0.5, 0.0]))
    assert torch.equal(out, torch.stack([x[0], (x[1] + x[0]) / 2, x[1]]))


def test_cutmix_boxes_match_the_table():
    table = load("base_cutmix_boxes_formula")["table"]
    boxes, share = cutmix_boxes(table[:, 0], table[:, 1], table[:, 2], height=224, width=224)
    assert torch.equal(boxes, table[:, 3:7].long())
    torch.testing.assert_close(share, table[:, 7])


def test_cutmix_replaces_exactly_the_share_that_is_reported(generator):
    images = torch.stack([torch.zeros(2, 16, 12), torch.ones(2, 16, 12)])
    boxes, share = cutmix_boxes(
        torch.tensor([0.4, 0.7]), torch.tensor([3, 9]), torch.tensor([5, 11]), height=16, width=12
    )
    out = cutmix(images, torch.tensor([1, 0]), boxes)
    torch.testing.assert_close(out[0].mean(), 1 - share[0])
    torch.testing.assert_close(out[1].mean(), share[1])
    top, bottom, left, right = boxes[0].tolist()
    assert out[0, :, top:bottom, left:right].all()


def test_patch_mixing_of_hilo_matches_the_original(hilo):
    beta = hilo["patchmix/beta"]
    mixed = patch_mix(hilo["patchmix/s_token"], hilo["patchmix/t_token"], beta)
    torch.testing.assert_close(mixed, hilo["patchmix/mixed"])
    score_s, score_t = hilo["patchmix/score_s"], hilo["patchmix/score_t"]
    torch.testing.assert_close(hilo["patchmix/attn_s"].softmax(1), score_s)
    shares = {
        "code": attention_share(beta, score_s),
        "both_softmaxed": attention_share(beta, score_s, score_t),
        "raw_attention": attention_share(beta, hilo["patchmix/attn_s"], hilo["patchmix/attn_t"]),
        "no_attention": attention_share(beta),
    }
    for name, share in shares.items():
        torch.testing.assert_close(share, hilo[f"patchmix/alpha_{name}"])


@pytest.mark.parametrize("case", ["few_labelled", "many_labelled"])
def test_the_pairing_of_hilos_released_code_is_reproduced(hilo, case):
    source, target = stacked_pairs(hilo[f"mixbranch/{case}/mask_lab"])
    assert torch.equal(source, hilo[f"mixbranch/{case}/s_row_of_2view_batch"])
    assert torch.equal(target, hilo[f"mixbranch/{case}/t_row_of_2view_batch"])
    beta = hilo[f"mixbranch/{case}/beta"]
    mixed = patch_mix(hilo[f"mixbranch/{case}/s_token"], hilo[f"mixbranch/{case}/t_token"], beta)
    torch.testing.assert_close(mixed, hilo[f"mixbranch/{case}/mixed"])
    share = attention_share(beta, hilo[f"mixbranch/{case}/score"])
    torch.testing.assert_close(share, hilo[f"mixbranch/{case}/alpha"])


@pytest.mark.parametrize("case", ["few_labelled", "many_labelled"])
def test_the_losses_on_patch_mixed_rows_match_hilos_released_code(hilo, case):
    scalars = json.loads((GOLDEN / "hilo_golden.json").read_text())
    z, logits = hilo[f"mixbranch/{case}/mixed_proj"], hilo[f"mixbranch/{case}/mixed_logits"]
    labels = hilo[f"mixbranch/{case}/labels_of_labelled"].repeat(2)[: len(z)]
    # Its contrast takes the second half of the rows for second views of the first half.
    as_views = labels[: len(z) // 2].repeat(2)
    of_features = sup_con(z, as_views) + info_nce(z)
    assert of_features.item() == pytest.approx(scalars[f"mixbranch/{case}/feature_loss"])
    of_labels = (
        smoothed_cross_entropy(logits, labels, hilo[f"mixbranch/{case}/alpha"], temperature=1.0)
        + self_distillation(logits, teacher_temp=teacher_temperature(10, 200))
        + 2 * mean_entropy_deficit(logits, temperature=1.0)
    )
    assert of_labels.item() == pytest.approx(scalars[f"mixbranch/{case}/label_loss"])


def test_patch_mixing_of_pmtrans_matches_the_original(pmtrans):
    beta = pmtrans["s_lam"]
    mixed = patch_mix(pmtrans["s_tok"], pmtrans["t_tok"], beta)
    torch.testing.assert_close(mixed, pmtrans["mixed_tokens"])
    torch.testing.assert_close(pmtrans["s_attention"].softmax(1), pmtrans["s_scores"])
    share = attention_share(beta, pmtrans["s_scores"], pmtrans["t_scores"])
    torch.testing.assert_close(share, pmtrans["lam_attention"])
    torch.testing.assert_close(attention_share(beta), pmtrans["lam_plain"])


def test_the_losses_of_pmtrans_match_the_original(pmtrans):
    share, labels = pmtrans["lam_attention"], pmtrans["labels"]
    of_features = mixed_feature_loss(
        pmtrans["mixed_feat"], pmtrans["source_feat"], pmtrans["target_feat"], labels, share
    )
    torch.testing.assert_close(of_features, pmtrans["feat_loss"], rtol=1e-5, atol=1e-5)
    of_labels = mixed_label_loss(
        pmtrans["logits_mixed"], labels, pmtrans["pseudo_labels"], pmtrans["pseudo_weight"], share
    )
    torch.testing.assert_close(of_labels, pmtrans["label_loss"], rtol=1e-5, atol=1e-5)


def test_a_share_of_one_leaves_the_label_of_the_source_alone(pmtrans):
    loss = mixed_label_loss(
        pmtrans["logits_mixed"],
        pmtrans["labels"],
        pmtrans["pseudo_labels"],
        pmtrans["pseudo_weight"],
        torch.ones(5),
    )
    torch.testing.assert_close(loss, F.cross_entropy(pmtrans["logits_mixed"], pmtrans["labels"]))


def test_the_losses_of_no_mixed_rows_are_zero():
    x, labels = torch.eye(3).requires_grad_(), torch.zeros(0, dtype=torch.long)
    none, shares = x[:0], torch.zeros(0)
    losses = [
        mixed_feature_loss(none, none, none, labels, shares),
        mixed_label_loss(none, labels, labels, shares, shares),
    ]
    sum(losses).backward()
    assert [loss.item() for loss in losses] == [0.0, 0.0]
    assert not x.grad.any()


def test_the_start_of_the_learnt_shares_is_log_one_plus_e(pmtrans):
    start = F.softplus(torch.tensor(1.0)).item()
    assert start == pytest.approx(math.log(1 + math.e)) == pmtrans["beta_param"].item()


def test_partners_within_stay_on_their_side_and_are_a_permutation(generator):
    partners = partners_within(LABELLED, generator=generator)
    assert torch.equal(LABELLED[partners], LABELLED)
    assert torch.equal(partners.sort().values, torch.arange(7))


def test_partners_across_come_from_the_other_side(generator):
    partners = partners_across(LABELLED, generator=generator)
    assert torch.equal(LABELLED[partners], ~LABELLED)


def test_without_another_side_partners_are_a_permutation(generator):
    partners = partners_across(torch.ones(5, dtype=torch.bool), generator=generator)
    assert torch.equal(partners.sort().values, torch.arange(5))


def test_image_pairs_are_as_many_as_the_smaller_side_and_use_no_row_twice(generator):
    for labelled in (LABELLED, ~LABELLED):
        source, target = image_pairs(labelled, generator=generator)
        assert len(source) == len(target) == 3
        assert labelled[source].all()
        assert not labelled[target].any()
        assert len(set(source.tolist() + target.tolist())) == 6


@pytest.mark.parametrize("everything", [True, False])
def test_a_batch_of_one_kind_has_no_pairs(everything, generator):
    labelled = torch.full((4,), everything)
    assert [len(side) for side in image_pairs(labelled, generator=generator)] == [0, 0]
    assert [len(side) for side in stacked_pairs(labelled)] == [0, 0]


def test_autocast_does_not_change_mixed_tokens(styles):
    tokens, share, partners = styles["x_tokens"], torch.full((6,), 0.3), torch.arange(6).roll(1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = [mixstyle(tokens, partners, share), efdm(tokens, partners, share)]
    outside = [mixstyle(tokens, partners, share), efdm(tokens, partners, share)]
    assert all(torch.equal(a, b) for a, b in zip(inside, outside, strict=True))


def test_fixed_denominators_keep_the_loss_and_change_the_gradient_to_the_shares():
    generator = torch.Generator().manual_seed(0)
    logits, confidence = torch.randn(5, 4, generator=generator), torch.rand(5, generator=generator)
    labels, guesses = torch.tensor([0, 1, 2, 3, 0]), torch.tensor([1, 1, 0, 2, 3])
    share = torch.rand(5, generator=generator).requires_grad_()
    given = (logits, labels, guesses, confidence, share)
    free, fixed = (mixed_label_loss(*given, fixed_denominators=f) for f in (False, True))
    torch.testing.assert_close(free, fixed)
    (found,) = torch.autograd.grad(fixed, share)
    ours, theirs = (
        torch.nn.functional.cross_entropy(logits, wanted, reduction="none")
        for wanted in (labels, guesses)
    )
    s, c = share.detach(), confidence
    weight = (1 - s) * c
    # d/ds of sum(s ours)/S sum(s) + sum(w theirs)/W sum(1 - s), with S and W constant
    by_source = ours + (s * ours).sum() / s.sum()
    by_target = -c * theirs * (1 - s).sum() / weight.sum() - (weight * theirs).sum() / weight.sum()
    torch.testing.assert_close(found, (by_source + by_target) / 5)
