"""RLCD against outputs of its authors' code (golden/README_next.md)."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from helpers.golden import (
    assert_near,
    clock,
    load_golden,
    make_batch,
    make_sgd,
    module_of,
    part,
    visible,
)
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from gcdbench.core import registry
from gcdbench.core.config import build
from gcdbench.nn.backbone import Backbone
from gcdbench.training.method import Task

ARRAYS, SCALARS = load_golden("next_rlcd")
ours = module_of("rlcd")
CASES = (
    *("mixed", "mixed_fctemp07", "no_labelled", "no_unlabelled", "one_labelled"),
    *("no_base_no_labelled", "base_only_by_label"),
)
NEAR = {"rtol": 1e-5, "atol": 5e-6}


def make(config, *, dim, heads):
    """Return RLCD with the reference's weights, on its tiny backbone if that has its size."""
    vit = VisionTransformer(
        img_size=16,
        patch_size=8,
        embed_dim=dim,
        depth=3,
        num_heads=2,
        mlp_ratio=2,
        num_classes=0,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
    )
    if dim == 16:
        own = part(ARRAYS, "vit__")
        vit.load_state_dict({name: own[name] for name in vit.state_dict()})
    backbone = Backbone(vit.eval(), mean=(0,) * 3, std=(1,) * 3, image_size=16)
    task = Task(7, 4, torch.full((8,), -1), epochs=3, steps_per_epoch=1, seed=0)
    values = {
        "entropy_weight": config["memax_weight"],
        "agree_weight": config["dw"],
        "agree_temp": config["fc_temp"],
        "cross_temp": config["shrink_temp"],
        "cross_weight": config["cross_weight"],
        "sup_contrast_temp": config["suptemp"],
        "old_sup_weight": config["fc_weight"],
        "teacher_warmup": config["warmup_teacher_temp_epochs"],
    }
    cls = registry.load("method", "rlcd")
    method = cls(build(cls.Config, values, "rlcd"), task, backbone)
    given = part(ARRAYS, heads)
    with torch.no_grad():
        method.classifier.weight.copy_(given["head.last_layer.weight_v"])
        method.old_classifier.weight.copy_(given["aux_fc.weight"])
        if dim == 16:
            method.token.value.copy_(ARRAYS["vit__Prompt_Token"][0])
    return method


def expected(case, scalars):
    config, v = SCALARS[case]["config"], {n: x or 0.0 for n, x in scalars.items()}
    dw = config["dw"]
    return {
        "distil": 0.65 * v["distill"],
        "entropy": 0.65 * config["memax_weight"] * v["memax"],
        "agree": 0.65 * dw * v["cdr_main"],
        "classify": 0.35 * v["cls"],
        "sup_contrast": 0.35 * v["supcon_main"],
        "old_views": 0.5 * v["aux_kl"],
        "old_agree": 0.5 * dw * v["cdr_aux"],
        "old_classify": 0.5 * v["aux_ce"],
        "old_sup_contrast": 0.5 * v["aux_supcon"],
        "cross": config["cross_weight"] * v["cross"],
    }


def terms_of(method, given, suffix=""):
    inputs = given[f"inputs{suffix}"].clone().requires_grad_()
    labels = visible(given[f"labels{suffix}"], given[f"mask_lab{suffix}"])
    features, token = inputs.split(12, dim=1)
    cosines = method.classifier(features)
    batch = make_batch(inputs, labels)
    return inputs, method.terms(features, token, cosines, batch, clock(0, 1))


@pytest.mark.parametrize("case", CASES)
def test_the_terms_match_the_original(case):
    given, scalars = part(ARRAYS, f"{case}__"), SCALARS[case]["steps"][0]
    _, terms = terms_of(make(SCALARS[case]["config"], dim=12, heads="head__"), given)
    for name, value in expected(case, scalars).items():
        assert_near(terms[name], value, rtol=2e-6, atol=2e-6)
    total = scalars["total"] if scalars["total"] is not None else scalars["total_of_defined"]
    assert_near(sum(terms.values()), total, **NEAR)


@pytest.mark.parametrize("case", ["mixed", "no_unlabelled", "base_only_by_label"])
def test_the_gradients_match_the_original(case):
    given = part(ARRAYS, f"{case}__")
    method = make(SCALARS[case]["config"], dim=12, heads="head__")
    inputs, terms = terms_of(method, given)
    weights = [method.classifier.weight, method.old_classifier.weight]
    of_inputs, *of_weights = torch.autograd.grad(sum(terms.values()), [inputs, *weights])
    names = ("gradtotal_cls_feat", "gradtotal_tok_feat")
    assert_near(of_inputs, torch.cat([given[name] for name in names], dim=1), **NEAR)
    for found, name in zip(of_weights, ("head.last_layer.weight_v", "aux_fc.weight"), strict=True):
        assert_near(found, given[f"gradtotal_{name}"], **NEAR)


@pytest.mark.parametrize("case", ["cdr_soft", "cdr_peaked", "cdr_single_row"])
def test_the_agreement_of_views_matches_the_original(case):
    given = part(ARRAYS, f"{case}__")
    p, q = (given[name].clone().requires_grad_() for name in ("p1", "p2"))
    everyone = torch.ones(len(p), dtype=torch.bool)
    loss = ours.agreement(p, q, given["y1"].long(), given["y2"].long(), everyone)
    assert_near(loss, SCALARS[case]["loss"], **NEAR)
    for found, name in zip(torch.autograd.grad(loss, [p, q]), ("p1", "p2"), strict=True):
        assert_near(found, given[f"grad_{name}"], rtol=1e-4, atol=1e-5)


def test_a_class_without_probability_leaves_the_agreement_finite():
    p = torch.tensor([[0.6, 0.4, 0.0], [0.1, 0.9, 0.0]], requires_grad=True)
    chosen, everyone = torch.tensor([0, 1]), torch.ones(2, dtype=torch.bool)
    loss = ours.agreement(p, p, chosen, chosen, everyone)
    (grad,) = torch.autograd.grad(loss, p)
    assert loss.isfinite()
    assert grad.isfinite().all()


def test_the_token_enters_the_last_block_and_features_skip_the_final_norm():
    method = make(SCALARS["mixed"]["config"], dim=16, heads="vithead__")
    given = part(ARRAYS, "vit__")
    encoded = method.backbone(given["images"])
    near = {"rtol": 1e-5, "atol": 5e-6}
    assert_near(encoded.cls, given["cls_feat"], **near)
    assert_near(encoded.added[:, 0], given["tok_feat"], **near)
    block = dict(method.backbone.vit.blocks[2].named_parameters())
    names = {f"blocks.2.{name}": p for name, p in block.items()}
    for kind, found in (("cls", encoded.cls), ("tok", encoded.added[:, 0])):
        value = (found * given[f"probe_{kind}"]).sum()
        wanted = [method.token.value, *names.values()]
        of_token, *grads = torch.autograd.grad(value, wanted, retain_graph=True)
        assert_near(of_token, given[f"grad_{kind}_Prompt_Token"][0], **near)
        for name, grad in zip(names, grads, strict=True):
            assert_near(grad, given[f"grad_{kind}_{name}"], rtol=1e-4, atol=2e-5)


def test_three_training_steps_match_the_original():
    case = "vit_steps3"
    config = SCALARS[case]["config"]
    method = make(config, dim=16, heads="vithead__")
    optimizer = make_sgd(method, lr=0.1, weight_decay=config["weight_decay"], epochs=3)
    for number, scalars in enumerate(SCALARS[case]["steps"]):
        images = ARRAYS[f"{case}__inputs_{number}"]
        labels = visible(ARRAYS[f"{case}__labels_{number}"], ARRAYS[f"{case}__mask_lab_{number}"])
        step = method.step(make_batch(images, labels), clock(number, 3))
        for name, value in expected(case, scalars).items():
            assert_near(step.terms[name], value, rtol=1e-4, atol=2e-5)
        for group in optimizer.param_groups:
            group["lr"] = scalars["lr"][0]
        optimizer.zero_grad()
        step.loss.backward()
        optimizer.step()
    after = part(ARRAYS, f"{case}__after_")
    near = {"rtol": 1e-4, "atol": 2e-5}
    assert_near(method.token.value, after["backbone.Prompt_Token"][0], **near)
    assert_near(method.classifier.weight, after["head.last_layer.weight_v"], **near)
    assert_near(method.old_classifier.weight, after["aux_fc.weight"], **near)
    for name, found in method.backbone.vit.blocks[2].named_parameters():
        assert_near(found, after[f"backbone.blocks.2.{name}"], **near)


def test_the_backbone_may_have_a_rate_of_its_own():
    method = make(SCALARS["mixed"]["config"], dim=16, heads="vithead__")
    object.__setattr__(method.config, "block_lr", 0.1)
    rates = {id(p): rate for params, rate in method.param_groups() for p in params}
    trained = [p for p in method.parameters() if p.requires_grad]
    assert rates.keys() == {id(p) for p in trained}
    assert {rates[id(p)] for p in method.backbone.vit.parameters() if p.requires_grad} == {0.1}
    for part_ in (method.token, method.classifier, method.old_classifier):
        assert {rates[id(p)] for p in part_.parameters()} == {1.0}
