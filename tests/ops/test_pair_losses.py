from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.paths import GOLDEN

from gcdbench.nn.heads import CosineClassifier
from gcdbench.ops.losses import cross_entropy_on, mean_entropy_deficit, ramp_up
from gcdbench.ops.pair_losses import (
    agreement_loss,
    margin_cross_entropy,
    pairwise_cross_entropy,
    positive_partners,
    same_top_dimensions,
    with_label_pairs,
)


def load(name):
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        return {key: torch.from_numpy(np.asarray(arrays[key])) for key in arrays.files}


@pytest.fixture(scope="module")
def ranks():
    return load("base_rankstats")


@pytest.fixture(scope="module")
def orca():
    return load("base_orca")


@pytest.fixture(scope="module")
def orca_labels(orca):
    return torch.cat([orca["target"], torch.full((6,), -1)])


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_rank_statistics_match_the_original(ranks):
    same = same_top_dimensions(ranks["feat"], 5)
    assert torch.equal(same, ranks["targets_all_rank"] > 0)
    hidden = ~ranks["mask_lab"]
    assert torch.equal(
        same_top_dimensions(ranks["feat"][hidden], 5), ranks["targets_unlabelled_only"] > 0
    )
    by_label = with_label_pairs(same, ranks["label"])
    assert torch.equal(by_label, ranks["targets_all_labelfix"] > 0)


def test_rank_statistics_ignore_the_order_of_the_largest_dimensions():
    row = torch.arange(12.0)
    shuffled = row.clone()
    shuffled[-4:] = row[-4:].flip(0)
    other = row.clone()
    other[0] = 100.0
    same = same_top_dimensions(torch.stack([row, shuffled, other]), 4)
    assert same.tolist() == [[True, True, False], [True, True, False], [False, False, True]]


def test_the_pair_losses_match_the_original(ranks):
    p, q = ranks["output"].softmax(1), ranks["output_bar"].softmax(1)
    for name in ("all_rank", "all_labelfix"):
        loss = pairwise_cross_entropy(q, p, ranks[f"targets_{name}"] > 0)
        torch.testing.assert_close(loss, ranks[f"bce_{name}"], rtol=1e-5, atol=1e-5)
    hidden = ~ranks["mask_lab"]
    loss = pairwise_cross_entropy(q[hidden], p[hidden], ranks["targets_unlabelled_only"] > 0)
    torch.testing.assert_close(loss, ranks["bce_unlabelled_only"], rtol=1e-5, atol=1e-5)


def test_the_loss_of_rankstats_and_its_gradient_match_the_original(ranks):
    weight = ranks["W"].clone().requires_grad_()
    logits, other = ranks["feat"] @ weight.T, ranks["feat_bar"] @ weight.T
    p, q = logits.softmax(1), other.softmax(1)
    same = with_label_pairs(same_top_dimensions(ranks["feat"], 5), ranks["label"])
    loss = (
        cross_entropy_on(logits, ranks["label"])
        + pairwise_cross_entropy(q, p, same)
        + ramp_up(40, 150, 50.0) * F.mse_loss(p, q)
    )
    loss.backward()
    torch.testing.assert_close(loss, ranks["total_loss_epoch40_c50_T150"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weight.grad, ranks["grad_W_total"], rtol=1e-4, atol=1e-5)


def test_certain_pairs_give_finite_losses():
    p = torch.eye(3).requires_grad_()
    loss = pairwise_cross_entropy(p, torch.eye(3), torch.zeros(3, 3, dtype=torch.bool))
    loss.backward()
    assert loss.item() == pytest.approx(-math.log(1e-7) / 3, rel=1e-3)
    assert p.grad.isfinite().all()


@pytest.mark.parametrize("u", ["0.0", "0.1", "0.3", "0.5", "0.9"])
def test_the_margin_and_its_gradient_match_the_original(orca, u):
    logits = orca["out"][:6].clone().requires_grad_()
    loss = margin_cross_entropy(logits, orca["target"], uncertainty=float(u))
    loss.backward()
    torch.testing.assert_close(loss, orca[f"margin_ce_u{u}"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits.grad, orca[f"margin_grad_u{u}"], rtol=1e-5, atol=1e-5)


def test_soft_targets_share_the_head_start(orca):
    one_hot = F.one_hot(orca["target"], orca["out"].shape[1]).float()
    settings = {"uncertainty": 0.3, "targets": one_hot}
    loss = margin_cross_entropy(orca["out"][:6], orca["target"], **settings)
    torch.testing.assert_close(loss, orca["margin_ce_u0.3"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("u", ["0.0", "0.3", "0.9"])
def test_the_loss_of_orca_matches_the_original(orca, orca_labels, u):
    classifier = CosineClassifier(16, 8, scale=10.0)
    classifier.load_state_dict({"weight": orca["head_weight"].T})
    logits, other = classifier(orca["feat"]), classifier(orca["feat2"])
    torch.testing.assert_close(logits, orca["out"], rtol=1e-5, atol=1e-5)
    pairs = agreement_loss(logits, other[orca["pos_pairs"]])
    torch.testing.assert_close(pairs, orca["bce_loss"], rtol=1e-5, atol=1e-5)
    uniformity = mean_entropy_deficit(logits, temperature=1.0) - math.log(8)
    margin = margin_cross_entropy(logits, orca_labels, uncertainty=torch.tensor(float(u)))
    torch.testing.assert_close(
        margin + pairs + uniformity, orca[f"total_u{u}"], rtol=1e-5, atol=1e-5
    )


def test_unlabelled_rows_get_the_originals_nearest_neighbour(orca, orca_labels):
    generator = torch.Generator().manual_seed(0)
    partners = positive_partners(orca["feat"], orca_labels, generator=generator)
    assert torch.equal(partners[6:], orca["pos_pairs"][6:])


def test_labelled_rows_get_every_other_row_of_their_label_equally_often():
    labels = torch.tensor([4, 4, 2, 4, -1])
    features = normal(5, 3)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack(
        [positive_partners(features, labels, generator=generator) for _ in range(600)]
    )
    assert set(drawn[:, 2].tolist()) == {2}  # alone with its label
    counts = torch.bincount(drawn[:, 0], minlength=5)
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0]
    assert 250 < counts[1] < 350


def test_a_duplicate_is_the_nearest_neighbour_of_an_unlabelled_row():
    features = normal(6, 4)
    features[5] = features[1]
    labels = torch.full((6,), -1)
    partners = positive_partners(features, labels, generator=torch.Generator().manual_seed(0))
    assert (partners[1].item(), partners[5].item()) == (5, 1)
    assert not (partners == torch.arange(6)).any()


def test_the_same_generator_gives_the_same_partners():
    features, labels = normal(9, 4), torch.tensor([0, 0, 0, 1, 1, 1, -1, -1, -1])
    first, again = (
        positive_partners(features, labels, generator=torch.Generator().manual_seed(5))
        for _ in range(2)
    )
    assert torch.equal(first, again)


def test_pairs_of_no_rows_are_harmless():
    logits = normal(4, 3).requires_grad_()
    none, labels = logits[:0], torch.zeros(0, dtype=torch.long)
    p, same = none.softmax(1), same_top_dimensions(none, 2)
    generator = torch.Generator().manual_seed(0)
    assert len(positive_partners(none, labels, generator=generator)) == 0
    losses = [
        pairwise_cross_entropy(p, p, same),
        margin_cross_entropy(none, labels, uncertainty=0.3),
        margin_cross_entropy(logits, torch.full((4,), -1), uncertainty=0.3),
        agreement_loss(none, none),
    ]
    sum(losses).backward()
    assert [loss.item() for loss in losses] == [0.0] * 4
    assert not logits.grad.any()


def test_autocast_does_not_change_pairs_and_their_losses():
    features, p = normal(8, 40), normal(8, 5).softmax(1)

    def evaluate():
        same = same_top_dimensions(features, 3)
        return same, pairwise_cross_entropy(p, p, same), agreement_loss(features, features)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = evaluate()
    assert all(torch.equal(a, b) for a, b in zip(inside, evaluate(), strict=True))
