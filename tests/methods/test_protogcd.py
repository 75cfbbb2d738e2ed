from __future__ import annotations

import numpy as np
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

ARRAYS, SCALARS = load_golden("next_protogcd")
ours = module_of("protogcd")
CASES = [
    (case, epoch)
    for case in (
        *("mixed", "mixed_defaults", "ratio_mid", "temps"),
        *("no_labelled", "no_unlabelled", "one_labelled", "all_confident"),
    )
    for epoch in range(len(SCALARS[case]["by_epoch"]))
]
# our term -> theirs, and the weight that ours has
TERMS = {
    "distil": ("distill_loss", 0.65),
    "separation": ("proto_sep_loss", 0.65),
    "entropy": ("entropy_reg_loss", 0.65),
    "classify": ("cls_loss", 0.35),
    "contrast": ("contrastive_loss", 0.65),
    "sup_contrast": ("sup_con_loss", 0.35),
}
SCHEDULES = {
    "schedule_w0_r100_n200_i0.0_f1.0": (0, 100, 0.0),
    "schedule_w0_r100_n200_i0.2_f1.0": (0, 100, 0.2),
    "schedule_w10_r50_n100_i0.0_f1.0": (10, 50, 0.0),
    "schedule_w0_r1_n3_i0.0_f1.0": (0, 1, 0.0),
    "schedule_w0_r200_n200_i0.0_f1.0": (0, 200, 0.0),
}


def proto(settings, **config):
    epochs = settings["epochs"]
    return make_method(
        "protogcd",
        dim=12,
        classes=7,
        old=4,
        separation_weight=settings["weight_proto_sep"],
        entropy_weight=settings["weight_entropy_reg"],
        wait_share=settings["wait"] / epochs,
        ramp_share=settings["ramp"] / epochs,
        first_hard=settings["init_ratio"],
        student_temp=settings.get("temp_logits", 0.1),
        teacher_temp=settings.get("temp_teacher", 0.05),
        sup_contrast_temp=settings.get("temp_sup_con", 0.07),
        contrast_temp=settings.get("temp_unsup_con", 1.0),
        hidden_dim=16,
        projection_dim=8,
        **config,
    )


def weights(settings):
    found = {name: weight for name, (_, weight) in TERMS.items()}
    found["entropy"] *= settings["weight_entropy_reg"]
    found["separation"] *= settings["weight_proto_sep"]
    # a factor of the original that is one at the temperature that is used
    found["sup_contrast"] *= 0.07 / settings.get("temp_sup_con", 0.07)
    return found


@pytest.mark.parametrize(("case", "epoch"), CASES)
def test_the_terms_match_the_original(case, epoch):
    given, settings = part(ARRAYS, f"{case}__"), SCALARS[case]["settings"]
    expected, epochs = SCALARS[case]["by_epoch"][epoch], settings["epochs"]
    method, weight = proto(settings), weights(settings)
    z, cosines, prototypes = (given[n].clone().requires_grad_() for n in ("proj", "cosines", "W"))
    batch = make_batch(z.detach(), visible(given["labels"], given["mask_lab"]))
    terms = method.terms(z, cosines, prototypes, batch, clock(epoch, epochs))
    for name, (theirs, _) in TERMS.items():
        value = expected[theirs]  # None: no labelled row, where we return an exact zero
        assert_near(terms[name], weight[name] * (value or 0.0))
        gradient = given.get(f"grad_{theirs}_ep{epoch}")
        if gradient is not None and name != "separation":
            found = torch.autograd.grad(
                terms[name],
                (z, cosines),
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
            assert_near(torch.cat(found, 1), weight[name] * gradient.nan_to_num())
    (found,) = torch.autograd.grad(terms["separation"], prototypes)
    assert_near(found, weight["separation"] * given["gradW_proto_sep_loss"])


@pytest.mark.parametrize(("case", "epoch"), CASES)
def test_the_targets_match_the_original(case, epoch):
    given, settings = part(ARRAYS, f"{case}__"), SCALARS[case]["settings"]
    ratio = SCALARS[case]["by_epoch"][epoch]["ratio"]
    targets = ours.adaptive_targets(given["cosines"], ratio, temperature=settings["temp_teacher"])
    assert_near(targets, given[f"targets_ep{epoch}"])


@pytest.mark.parametrize("case", ["random", "temp05", "two", "identical", "orthogonal", "one"])
def test_the_separation_of_prototypes_matches_the_original(case):
    prototypes = ARRAYS[f"sep_{case}__W"].clone().requires_grad_()
    scalars = SCALARS[f"sep_{case}"]
    loss = ours.prototype_separation(prototypes, temperature=scalars["temperature"])
    loss.backward()
    assert_near(loss, scalars["value"] or 0.0, atol=1e-5)  # one prototype: NaN there, 0 here
    assert_near(prototypes.grad, ARRAYS[f"sep_{case}__grad"].nan_to_num(), atol=5e-6)


@pytest.mark.parametrize("case", SCHEDULES)
def test_the_share_of_hard_targets_matches_the_original(case):
    wait, ramp, first = SCHEDULES[case]
    expected = ARRAYS[f"{case}__ratio"].numpy()
    found = [
        ours.hard_share(epoch, wait=wait, ramp=ramp, first=first, last=1.0)
        for epoch in range(len(expected))
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    for rows in (100, 128, 256):
        hard = [int(rows * share) for share in found]
        assert hard == ARRAYS[f"{case}__n_hard_B{rows}"].tolist()


def test_three_training_steps_match_the_original():
    given, scalars = part(ARRAYS, "steps__"), SCALARS["steps"]
    method = proto(scalars["settings"])
    names = {"projector.mlp.": "mlp.", "classifier.weight": "prototype_layer.weight_v"}
    load_heads(method, part(given, "init__"), names)
    optimizer = make_sgd(method, epochs=3)
    for number, expected in enumerate(scalars["by_step"]):
        labels = visible(given[f"labels{number}"], given[f"mask{number}"])
        for group in optimizer.param_groups:
            group["lr"] = expected["lr"]
        optimizer.zero_grad()
        step = method.step(make_batch(given[f"feats{number}"], labels), clock(number))
        assert_near(step.loss, expected["loss"])
        step.loss.backward()
        optimizer.step()
        after = part(given, f"after{number + 1}__")
        assert_near(method.classifier.weight, after["prototype_layer.weight_v"])
        for name, value in method.projector.mlp.named_parameters():
            assert_near(value, after[f"mlp.{name}"])
    features = ARRAYS["predict__feats"]
    assert_near(method.classify(features) / 10, ARRAYS["predict__cosines"])
    assert torch.equal(method.classify(features).argmax(1), ARRAYS["predict__classes"])
