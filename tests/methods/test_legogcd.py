from __future__ import annotations

import pytest
import torch
from helpers.golden import (
    assert_near,
    clock,
    load_golden,
    load_heads,
    make_batch,
    make_method,
    make_sgd,
    module_of,
    part,
    visible,
)
from torch import nn

from gcdbench.core.settings import TrainConfig
from gcdbench.training.method import Step
from gcdbench.training.optimizer import learning_rate

ARRAYS, SCALARS = load_golden("next_legogcd")
view_alignment = module_of("legogcd").view_alignment
ONE_STEP = (
    "mixed",
    "mixed_thr85",
    "all_below_threshold",
    "all_above_threshold",
    "no_unlabelled",
    "no_labelled",
)
MANY_STEPS = ("qhat_m5", "qhat_skewed", "qhat_m999")
# our term -> theirs, and the weight that ours has
TERMS = {
    "distil": ("distill", 0.65),
    "align": ("dkl", 0.65),
    "entropy": ("me_max_loss", 0.65),
    "classify": ("cls_loss", 0.35),
    "contrast": ("contrastive_loss", 0.65),
    "sup_contrast": ("sup_con_loss", 0.35),
    "old": ("ler", 2.0),
}


def lego(settings, **config):
    return make_method(
        "legogcd",
        dim=12,
        classes=7,
        old=4,
        threshold=settings["thr"],
        entropy_weight=settings["memax_weight"],
        running_momentum=settings["qhat_momentum"],
        teacher_warmup=settings["warmup"],
        hidden_dim=16,
        projection_dim=8,
        **config,
    )


def weight(ours, settings):
    return TERMS[ours][1] * (settings["memax_weight"] if ours == "entropy" else 1)


def assert_step(method, given, expected, scalars, settings, epoch, epochs):
    """Compare terms, gradients, selection and the running prediction of one step."""
    z, cosines = (given[name].clone().requires_grad_() for name in ("proj", "cosines"))
    labels = visible(given["labels"], given["mask_lab"])
    batch = make_batch(z.detach(), labels)
    terms = method.terms(z, cosines, batch, clock(epoch, epochs))
    for ours, (theirs, _) in TERMS.items():
        value = scalars[theirs]  # None: no labelled row, where we return an exact zero
        assert_near(terms[ours], weight(ours, settings) * (value or 0.0))
        grads = torch.autograd.grad(
            terms[ours], (z, cosines), retain_graph=True, allow_unused=True, materialize_grads=True
        )
        theirs_grad = expected[f"grad_{theirs}"].nan_to_num()
        assert_near(torch.cat(grads, 1), weight(ours, settings) * theirs_grad)
    if scalars["loss"] is not None:
        assert_near(sum(terms.values()), scalars["loss"])
    rows = method.certain_old(cosines, batch.per_view(labels))
    assert_near(rows, expected["ler_per_row"] * expected["selected"])
    assert torch.equal(method.running, expected["qhat_before"])
    step = Step(terms, z, cosines / method.config.student_temp)
    with torch.no_grad():
        method.after_step(batch, step, clock(epoch, epochs))
    assert_near(method.running, expected["qhat_after"])


@pytest.mark.parametrize("case", ONE_STEP)
def test_a_step_matches_the_original(case):
    settings = SCALARS[case]["settings"]
    given = part(ARRAYS, f"{case}__")
    assert_step(lego(settings), given, given, SCALARS[case]["by_step"][0], settings, 0, 1)


@pytest.mark.parametrize("case", MANY_STEPS)
def test_the_running_prediction_matches_the_original_over_several_steps(case):
    settings = SCALARS[case]["settings"]
    method, batches = lego(settings), settings["batches_per_epoch"]
    for number, scalars in enumerate(SCALARS[case]["by_step"]):
        given = part(ARRAYS, f"{case}__b{number % batches}_")
        expected = part(ARRAYS, f"{case}__s{number}_")
        method.running.copy_(expected["qhat_before"])  # equal up to rounding, asserted before
        epoch = number // batches
        assert_step(method, given, expected, scalars, settings, epoch, settings["epochs"])


def test_the_series_of_running_predictions_matches_the_original():
    method = make_method("legogcd", dim=4, classes=5, old=2, running_momentum=0.9)
    for cosines, expected in zip(
        ARRAYS["qhat_series__cosines"], ARRAYS["qhat_series__qhat"][1:], strict=True
    ):
        step = Step({}, cosines, cosines / method.config.student_temp)
        method.after_step(make_batch(cosines, torch.full((3,), -1)), step, clock())
        assert_near(method.running, expected)


@pytest.mark.parametrize("case", ["cos", "large", "equal"])
def test_the_alignment_of_views_matches_the_original(case):
    logits = ARRAYS[f"dkl_{case}__logits"].clone().requires_grad_()
    assert_near(view_alignment(logits), SCALARS[f"dkl_{case}"]["dkl"])


def test_the_divergence_of_the_paper_is_one():
    cosines = ARRAYS["dkl_cos__logits"].clone().requires_grad_()
    first, second = (cosines / 0.1).log_softmax(1).chunk(2)
    expected = nn.functional.kl_div(second, first, log_target=True, reduction="batchmean")
    assert_near(view_alignment(cosines, kind="kl"), expected)
    view_alignment(cosines, kind="kl_detached").backward()
    assert not cosines.grad[6:].any()
    assert cosines.grad[:6].any()


def test_three_training_steps_match_the_original():
    given = part(ARRAYS, "steps__")
    method = make_method(
        "legogcd",
        dim=12,
        classes=7,
        old=4,
        threshold=0.5,
        running_momentum=0.9,
        teacher_warmup=2,
        hidden_dim=16,
        projection_dim=8,
    )
    names = {"projector.mlp.": "mlp.", "classifier.weight": "last_layer.weight_v"}
    load_heads(method, part(given, "init__"), names)
    optimizer = make_sgd(method, epochs=3)
    for number, scalars in enumerate(SCALARS["steps"]["by_step"]):
        labels = visible(given[f"labels{number}"], given[f"mask{number}"])
        batch = make_batch(given[f"feats{number}"], labels)
        for group in optimizer.param_groups:
            group["lr"] = scalars["lr"]
        optimizer.zero_grad()
        step = method.step(batch, clock(number))
        assert_near(step.loss, scalars["loss"])
        step.loss.backward()
        optimizer.step()
        with torch.no_grad():
            method.after_step(batch, step, clock(number))
        assert_near(method.running, given[f"qhat_after{number}"])
        after = part(given, f"after{number + 1}__")
        assert_near(method.classifier.weight, after["last_layer.weight_v"])
        for name, value in method.projector.mlp.named_parameters():
            assert_near(value, after[f"mlp.{name}"])
    features = ARRAYS["predict__feats"]
    assert torch.equal(method.classify(features).argmax(1), ARRAYS["predict__classes"])


def test_the_default_schedule_is_the_originals():
    settings = SCALARS["steps"]["by_step"]
    config = TrainConfig(epochs=3)
    assert_near(
        torch.tensor([learning_rate(config, e) for e in range(3)]),
        torch.tensor([s["lr"] for s in settings]),
    )
