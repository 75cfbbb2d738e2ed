from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.paths import GOLDEN
from torch import nn

from gcdbench.core import registry
from gcdbench.nn.backbone import Encoded
from gcdbench.training.method import Batch, Clock, Task

CLASSES, OLD, WIDTH = 9, 5, 24


class Given(nn.Module):
    """A backbone whose images are their features."""

    dim = WIDTH

    def forward(self, images):
        return Encoded(images)


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "base_rankstats.npz") as arrays:
        return {name: torch.from_numpy(np.asarray(arrays[name])) for name in arrays.files}


def rankstats(golden, **config):
    """Build the method around the original's classifier."""
    cls = registry.load("method", "rankstats")
    task = Task(CLASSES, OLD, golden["label"], epochs=200, steps_per_epoch=1, seed=0)
    method = cls(cls.Config(**config), task, Given())
    weight, bias = method.classifier.parameters()
    with torch.no_grad():
        weight.copy_(golden["W"])
        bias.zero_()
    return method


def batch_of(golden, **changes):
    views = torch.stack([golden["feat"], golden["feat_bar"]])
    return Batch(views, **{"labels": golden["label"], "index": torch.arange(14), **changes})


def clock(epoch=40, epochs=200):
    return Clock(epoch, epoch, epochs, steps_per_epoch=1, seed=0)


def test_a_step_and_its_gradient_match_the_original(golden):
    method = rankstats(golden, ce_scope="all")
    loss = method.step(batch_of(golden), clock()).loss
    loss.backward()
    torch.testing.assert_close(loss, golden["total_loss_epoch40_c50_T150"], rtol=1e-5, atol=1e-5)
    weight, _ = method.classifier.parameters()
    torch.testing.assert_close(weight.grad, golden["grad_W_total"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "term", "expected"),
    [
        ({"label_pairs": "labels"}, "pairs", "bce_all_labelfix"),
        ({"label_pairs": "rank"}, "pairs", "bce_all_rank"),
        ({"ce_scope": "all"}, "classify", "ce_labelled"),
        ({"ce_scope": "known"}, "classify", "ce_labelled_first_NL_only"),
        ({}, "classify", "ce_labelled_first_NL_only"),  # the GCD paper's
        ({"consistency_weight": 1.0, "ramp_share": 0.2}, "consistency", "mse_consistency"),
    ],
)
def test_each_choice_gives_the_originals_term(golden, config, term, expected):
    terms = rankstats(golden, **config).step(batch_of(golden), clock()).terms
    torch.testing.assert_close(terms[term], golden[expected], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("epochs", [4, 20, 200])
def test_the_consistency_term_is_at_full_weight_in_the_last_quarter_of_any_run(golden, epochs):
    method, batch = rankstats(golden), batch_of(golden)
    weights = [
        method.step(batch, clock(epoch, epochs)).terms["consistency"] for epoch in range(epochs)
    ]
    full = 50 * golden["mse_consistency"]
    late = 3 * epochs // 4
    torch.testing.assert_close(torch.stack(weights[late:]), full.expand(epochs - late))
    assert all(weight < full for weight in weights[:late])


@pytest.mark.parametrize("scope", ["all", "known"])
def test_soft_targets_that_are_certain_are_labels(golden, scope):
    method = rankstats(golden, ce_scope=scope)
    targets = F.one_hot(golden["label"].clamp(min=0), CLASSES).float()
    plain = method.step(batch_of(golden), clock()).terms["classify"]
    soft = method.step(batch_of(golden, targets=targets), clock()).terms["classify"]
    torch.testing.assert_close(soft, plain)


def test_a_step_under_autocast_gives_losses_in_full_precision(golden):
    method = rankstats(golden)
    expected = method.step(batch_of(golden), clock()).terms
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = method.step(batch_of(golden), clock()).terms
    for name, term in terms.items():
        assert term.dtype == torch.float32
        torch.testing.assert_close(term, expected[name], rtol=0.1, atol=1e-2)
