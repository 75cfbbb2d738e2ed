from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.paths import GOLDEN
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from gcdbench.core import registry
from gcdbench.core.config import build
from gcdbench.core.method_spec import MethodSpec
from gcdbench.nn.backbone import Backbone, Recording
from gcdbench.nn.heads import CosineClassifier, ProjectionHead
from gcdbench.ops.losses import smoothed_cross_entropy, sup_con
from gcdbench.training.conformance import CHECKS, Bench
from gcdbench.training.method import Batch, Clock, Step, Task

SMALL = {
    "simgcd": {"hidden_dim": 16, "projection_dim": 8},
    "gcd": {"hidden_dim": 16, "out_dim": 32},
}
EPOCH_10 = Clock(epoch=10, step=10, epochs=200, steps_per_epoch=1, seed=0)


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "hilo_golden.npz") as arrays:
        tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    return tensors, json.loads((GOLDEN / "hilo_golden.json").read_text())


def part(mapping, prefix):
    return {name.removeprefix(prefix): x for name, x in mapping.items() if name.startswith(prefix)}


def golden_model(tensors):
    """Return the reference's backbone and semantic head, in double precision."""
    vit = VisionTransformer(
        img_size=32,
        patch_size=8,
        embed_dim=12,
        depth=12,
        num_heads=3,
        mlp_ratio=2,
        num_classes=0,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
    ).double()
    vit.load_state_dict(part(tensors, "vit/state/"))
    head = part(tensors, "mixbranch/sem_head/")
    projector = ProjectionHead(12, hidden_dim=9, out_dim=6).double()
    projector.load_state_dict({k: v for k, v in head.items() if k.startswith("mlp.")})
    classifier = CosineClassifier(12, 7).double()
    classifier.load_state_dict({"weight": head["last_layer.weight_v"]})
    backbone = Backbone(vit.eval(), mean=(0,) * 3, std=(1,) * 3, image_size=32).double()
    return SimpleNamespace(
        backbone=backbone, project=projector, classify=lambda f: classifier(f) / 0.1
    )


def make(model=None, **values):
    cls = registry.load("technique", "patchmix")
    task = Task(7, 4, torch.full((8,), -1), epochs=200, steps_per_epoch=1, seed=0)
    return cls(build(cls.Config, values, "patchmix"), task, model)


def step_of(model, batch):
    """Encode a batch as a method would, with a recording."""
    with model.backbone.recording() as recording:
        features = model.backbone(batch.images).cls
    return Step({}, features, recording=recording)


class GivenBeta(torch.autograd.Function):
    """A Beta sample of known value with the gradient of torch's reparameterised sampler."""

    @staticmethod
    def forward(ctx, a, b, beta):
        ctx.save_for_backward(a, b, beta)
        return beta.clone()

    @staticmethod
    def backward(ctx, grad):
        a, b, beta = ctx.saved_tensors
        x = torch.stack([beta, 1 - beta], -1)
        shape = torch.stack([a, b]).expand_as(x).contiguous()
        slope = torch._dirichlet_grad(x, shape, shape.sum(-1, True).expand_as(x).contiguous())
        both = torch.stack([grad, torch.zeros_like(grad)], -1)
        to_shape = (slope * (both - (x * both).sum(-1, True))).sum((0, 1))
        return to_shape[0], to_shape[1], None


def give_beta(monkeypatch, beta):
    def given(a, b, *shape, generator, device=None):
        assert beta.shape == shape
        return GivenBeta.apply(a, b, beta)

    monkeypatch.setattr("gcdbench.methods.techniques.patchmix.draw_beta", given)


@pytest.mark.parametrize("case", ["few_labelled", "many_labelled"])
def test_the_released_branch_equals_the_reference(golden, monkeypatch, case):
    tensors, values = golden
    given, expected = part(tensors, f"mixbranch/{case}/"), part(values, f"mixbranch/{case}/")
    model = golden_model(tensors)
    mask = given["mask_lab"]
    labels = torch.full((6,), -1).masked_scatter(mask, given["labels_of_labelled"])
    batch = Batch(given["images"].unflatten(0, (2, 6)), labels, torch.arange(6))
    give_beta(monkeypatch, given["beta"][:2])
    technique = make(preset="released").double()

    source, target, _ = technique.blend(batch, 16, EPOCH_10)
    assert torch.equal(source, given["s_row_of_2view_batch"])
    assert torch.equal(target, given["t_row_of_2view_batch"])

    terms = technique.terms(model, batch, step_of(model, batch), EPOCH_10)
    on_features = (terms["contrast"] + terms["sup_contrast"]).item()
    on_labels = sum(terms[name] for name in ("classify", "distil", "entropy")).item()
    weight = values["patchmix/mix_loss_weight_init"]
    assert on_features == pytest.approx(weight * expected["feature_loss"], rel=1e-6)
    assert on_labels == pytest.approx(weight * expected["label_loss"], rel=1e-6)

    sum(terms.values()).backward()
    weights, shape = technique.raw_weights.grad, technique.raw_shape.grad
    found = [*weights.tolist(), *shape.tolist()]
    # the reference draws the unlabelled image's share, so its concentrations come in that order
    names = ("super_ratio", "unsuper_ratio", "s_dist_beta", "s_dist_alpha")
    assert found == pytest.approx([expected[f"grad_{name}"] for name in names], rel=1e-5)


def test_the_released_score_equals_the_reference(golden):
    tensors, _ = golden
    given = part(tensors, "mixbranch/few_labelled/")
    attention = golden_model(tensors).backbone.attention(given["images"])
    score = make(preset="released").scores(attention)
    torch.testing.assert_close(score[given["s_row_of_2view_batch"]], given["score"])


def bench(spec="simgcd+patchmix", **values):
    made = Bench(MethodSpec.parse(spec), {**SMALL, "patchmix": values})
    made.begin()
    return made


@pytest.mark.parametrize("spec", ["simgcd+patchmix", "gcd+patchmix"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_keeps_the_contract_over_methods_with_and_without_a_classifier(spec, check):
    check(lambda: Bench(MethodSpec.parse(spec), SMALL))


def test_both_views_of_a_pair_share_partner_and_shares():
    made = bench()
    batch = made.batch(made.mixed_rows())
    source, target, beta = made.model.techniques["patchmix"].blend(batch, 16, made.clock())
    pairs, rows = len(source) // 2, len(batch)
    assert pairs == min(int(batch.labelled.sum()), int((~batch.labelled).sum()))
    assert batch.labelled[source[:pairs]].all()
    assert not batch.labelled[target[:pairs]].any()
    for side in (source, target):
        assert torch.equal(side[:pairs] + rows, side[pairs:])
    assert torch.equal(beta[:pairs], beta[pairs:])
    assert len(beta.unique()) == pairs * 16


def test_pairs_and_shares_belong_to_images_not_to_places_in_the_batch():
    made = bench()
    technique, rows = made.model.techniques["patchmix"], made.mixed_rows()
    shuffled = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(1))]

    def by_image(chosen):
        batch = made.batch(chosen)
        source, target, beta = technique.blend(batch, 16, made.clock())
        index = batch.per_view(batch.index)
        pairs = zip(index[source].tolist(), index[target].tolist(), strict=True)
        return dict(zip(pairs, beta, strict=True))

    first, second = by_image(rows), by_image(shuffled)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[pair], second[pair]) for pair in first)


def test_pairs_change_from_step_to_step():
    made = bench()
    batch, technique = made.batch(made.mixed_rows()), made.model.techniques["patchmix"]
    first = technique.blend(batch, 16, made.clock())
    made.number += 1
    assert not torch.equal(first[1], technique.blend(batch, 16, made.clock())[1])


def test_a_blend_of_nothing_but_the_source_is_the_source(monkeypatch):
    made = bench()
    batch, model = made.batch(made.mixed_rows()), made.model
    technique = model.techniques["patchmix"]
    monkeypatch.setattr(
        "gcdbench.methods.techniques.patchmix.draw_beta",
        lambda a, b, *shape, **_: torch.ones(shape),
    )
    terms = technique.terms(model, batch, step_of(model, batch), made.clock())
    source, _, _ = technique.blend(batch, 16, made.clock())
    features = model.backbone(batch.images).cls[source]
    labels, certain = batch.per_view(batch.labels)[source], torch.ones(len(source))
    classify = smoothed_cross_entropy(model.classify(features), labels, certain, temperature=1.0)
    contrast = sup_con(model.project(features), labels)
    weight = technique.config.weight
    torch.testing.assert_close(terms["classify"], weight * classify, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(terms["sup_contrast"], weight * contrast, rtol=1e-4, atol=1e-5)


def test_attention_decides_whose_label_counts():
    technique = make()
    attention = torch.rand(3, 5, 2, 16, generator=torch.Generator().manual_seed(0)) / 16
    torch.testing.assert_close(technique.scores(attention).sum(1), torch.ones(5))
    looked_at = attention.clone()
    looked_at[..., :8] *= 10
    assert (technique.scores(looked_at)[:, :8].sum(1) > 0.8).all()
    assert (make(attention="softmax").scores(looked_at)[:, :8].sum(1) < 0.6).all()


@pytest.mark.parametrize("rows", ["labelled", "unlabelled"])
def test_a_batch_without_pairs_adds_a_zero(rows):
    made = bench()
    chosen = torch.arange(len(made.labels))[(made.labels >= 0) == (rows == "labelled")]
    terms = made.loss(chosen[:6]).terms
    added = part(terms, "patchmix.")
    assert added
    assert all(term == 0 for term in added.values())


def test_weights_and_concentrations_are_learnt_only_if_asked_for():
    assert [p for p in make().parameters() if p.requires_grad] == []
    assert sum(p.numel() for p in make(preset="released").parameters() if p.requires_grad) == 4
    fixed = make(preset="released", learn_weights=False)
    assert sum(p.numel() for p in fixed.parameters() if p.requires_grad) == 2


def test_all_terms_have_the_given_weight():
    once, twice = (part(bench(weight=w).loss().terms, "patchmix.") for w in (0.1, 0.2))
    for name, term in once.items():
        torch.testing.assert_close(2 * term, twice[name])


def test_the_recording_equals_a_pass_of_its_own():
    made = bench()
    batch = made.batch(made.mixed_rows())
    recording = made.model.step(batch, made.clock()).recording
    backbone = made.model.backbone
    torch.testing.assert_close(recording.patches, backbone.patches(batch.images))
    torch.testing.assert_close(recording.attention, backbone.attention(batch.images))


def test_nothing_is_recorded_without_need():
    made = Bench(MethodSpec.parse("simgcd"), SMALL)
    assert made.loss().recording.scores == Recording().scores == []
