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

ARRAYS, SCALARS = load_golden("next_debgcd")
ours = module_of("debgcd")
CASES = (
    *("mixed", "none_above", "all_above", "tie_at_threshold", "one_labelled"),
    *("no_labelled", "no_unlabelled"),
)
HEADS = {
    "projector.mlp.": "mlp.",
    "classifier.weight": "last_layer.weight_v",
    "debiased.weight": "last_layer_deb.weight_v",
    "detector_mlp.mlp.": "mlp_ood.",
    "detector.weight": "last_layer_ood.weight_v",
}
NEAR = {"rtol": 1e-5, "atol": 5e-6}


def deb(case):
    config, own = SCALARS[case]["config"], part(ARRAYS, f"{case}__param_")
    method = make_method(
        "debgcd",
        dim=12,
        classes=8 if own else 7,
        old=4,
        threshold=config["threshold"],
        debias_weight=config["adl_loss_weight"],
        detect_weight=config["sdl_loss_weight"],
        entropy_weight=config["memax_weight"],
        teacher_warmup=config["warmup_teacher_temp_epochs"],
        hidden_dim=10,
        projection_dim=6,
    )
    load_heads(method, own or part(ARRAYS, "head__"), HEADS)
    return method


def expected_terms(case, scalars):
    """Return our terms, made of theirs; those that are not defined there are zero here."""
    config = SCALARS[case]["config"]
    v = {name: value or 0.0 for name, value in scalars.items()}
    debias, share = config["adl_loss_weight"], config["pl_loss_weight"]
    return {
        "distil": 0.65 * v["distill"],
        "entropy": 0.65 * config["memax_weight"] * v["memax"],
        "contrast": 0.65 * v["infonce"],
        "classify": 0.35 * v["cls"],
        "sup_contrast": 0.35 * v["supcon"],
        "detect": config["sdl_loss_weight"] * (v["ova_sup"] + 0.1 * v["ova_ent"] + v["socr"]),
        "debias": debias * (1 - share) * v["deb_sup"],
        "debias_pseudo": debias * share * v["deb_unsup"],
    }


@pytest.mark.parametrize("case", CASES)
def test_the_terms_match_the_original(case):
    given, scalars = part(ARRAYS, f"{case}__"), SCALARS[case]["steps"][0]
    batch = make_batch(given["feats"], visible(given["labels"], given["mask_lab"]))
    step = deb(case).step(batch, clock(0, 1))
    for name, value in expected_terms(case, scalars).items():
        assert_near(step.terms[name], value, **NEAR)
    total = scalars["total"]
    assert_near(step.loss, scalars["total_of_defined"] if total is None else total, **NEAR)
    assert_near(step.logits / 10, given["out_gcd"], **NEAR)


@pytest.mark.parametrize("case", CASES)
def test_the_gradients_match_the_original(case):
    given = part(ARRAYS, f"{case}__")
    outputs = [
        given[f"out_{name}"].clone().requires_grad_() for name in ("proj", "gcd", "ood", "deb")
    ]
    batch = make_batch(given["feats"], visible(given["labels"], given["mask_lab"]))
    loss = sum(deb(case).terms(*outputs, batch, clock(0, 1)).values())
    loss.backward()
    defined = SCALARS[case]["steps"][0]["total"] is not None
    for name, output in zip(("proj", "gcd", "ood", "deb"), outputs, strict=True):
        which = "total" if defined else "total_of_defined"
        if (expected := given.get(f"grad_{which}_{name}")) is not None:
            assert_near(output.grad, expected, **NEAR)


@pytest.mark.parametrize("case", CASES)
def test_certainty_and_pseudo_labels_match_the_original(case):
    given, method = part(ARRAYS, f"{case}__"), deb(case)
    hidden = ~given["mask_lab"].repeat(2)
    pairs = (given["out_ood"] / 0.1).unflatten(1, (2, -1))
    assert_near(ours.certainty(pairs)[hidden], given["certainty_unlabelled"], **NEAR)
    losses = method.pseudo_losses(given["out_deb"], given["out_gcd"], pairs)
    assert torch.equal(losses[hidden] > 0, given["pseudo_kept"].bool())


@pytest.mark.parametrize("case", ["mild", "extreme"])
def test_the_detectors_losses_match_the_original(case):
    given, scalars = part(ARRAYS, f"ova_{case}__"), SCALARS[f"ova_{case}"]
    for name, loss in (
        ("sup", lambda pairs: ours.one_vs_all_loss(pairs, given["labels"].long())),
        ("ent", ours.detector_entropy),
    ):
        logits = given["logits"].clone().requires_grad_()
        value = loss(logits.unflatten(1, (2, -1)))
        value.backward()
        assert_near(value, scalars[name], **NEAR)
        assert_near(logits.grad, given[f"grad_{name}"], **NEAR)


def test_the_gradients_of_the_heads_match_the_original():
    given, method = part(ARRAYS, "mixed__"), deb("mixed")
    batch = make_batch(given["feats"], visible(given["labels"], given["mask_lab"]))
    method.step(batch, clock(0, 1)).loss.backward()
    expected = part(given, "gradtotal_")
    for prefix, theirs in HEADS.items():
        for name, value in method.named_parameters():
            if name.startswith(prefix):
                assert_near(value.grad, expected[theirs + name.removeprefix(prefix)], **NEAR)


def test_three_training_steps_match_the_original():
    given, method = part(ARRAYS, "steps3__"), deb("steps3")
    optimizer = make_sgd(method, epochs=3)
    for number, scalars in enumerate(SCALARS["steps3"]["steps"]):
        labels = visible(given[f"labels_{number}"], given[f"mask_lab_{number}"])
        for group in optimizer.param_groups:
            group["lr"] = scalars["lr"]
        optimizer.zero_grad()
        step = method.step(make_batch(given[f"feats_{number}"], labels), clock(number))
        assert_near(step.loss, scalars["total"], **NEAR)
        step.loss.backward()
        optimizer.step()
    after = part(given, "after_")
    for prefix, theirs in HEADS.items():
        for name, value in method.named_parameters():
            if name.startswith(prefix):
                assert_near(value, after[theirs + name.removeprefix(prefix)], **NEAR)


def test_the_size_of_the_heads_is_the_originals():
    method, expected = make_method("debgcd", dim=768, classes=200, old=100), SCALARS["real_size"]
    for prefix, theirs in HEADS.items():
        for name, value in method.named_parameters():
            if name.startswith(prefix):
                original = expected[theirs + name.removeprefix(prefix)]
                assert list(value.shape) == original["shape"]
                assert_near(value.std(), original["std"], rtol=0.02)
