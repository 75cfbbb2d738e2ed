"""Every technique at the seam where it acts: what changes, in which rows, with which sign.

Expected values are computed here by hand or by NumPy, not by the functions under test.
"""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.bench import bench

from gcdbench.core import registry
from gcdbench.core.config import build
from gcdbench.core.method_spec import MethodSpec
from gcdbench.training.method import Batch, Clock, FitContext, PoolFeatures, Step, Task, seeded

CLASSES, OLD, WIDTH = 4, 2, 6
LABELS = torch.tensor([0, 1, -1, -1])  # of the pool, and of the batch that shows it in order
CONTEXT = FitContext(lambda: pytest.fail("no features are needed"), seeded)


def at(epoch=0, step=0, epochs=10, seed=0) -> Clock:
    return Clock(epoch, step, epochs, steps_per_epoch=5, seed=seed)


def make(name, labels=LABELS, model=None, **config):
    """Build a technique alone."""
    cls = registry.load("technique", name)
    task = Task(CLASSES, OLD, labels, epochs=10, steps_per_epoch=5, seed=0)
    backbone = SimpleNamespace(dim=WIDTH, vit=SimpleNamespace(num_prefix_tokens=1))
    return cls(build(cls.Config, config, name), task, model or SimpleNamespace(backbone=backbone))


def batch_of(labels=LABELS, index=None, size=8) -> Batch:
    views = torch.rand(2, len(labels), 3, size, size, generator=seeded("views"))
    return Batch(views, labels, torch.arange(len(labels)) if index is None else index)


def random(*shape, name="values"):
    return torch.randn(*shape, generator=seeded(name))


def replaced(monkeypatch, technique, **functions):
    """Replace functions that a technique imports."""
    for name, function in functions.items():
        monkeypatch.setattr(f"gcdbench.methods.techniques.{technique}.{name}", function)


# --- loss terms


def confusion(logits, temperature):
    """Return the class confusion by the formula of the paper, in NumPy."""
    z = np.exp(logits.double().numpy() / temperature)
    q = z / z.sum(1, keepdims=True)
    w = 1 + np.exp((q * np.log(q + 1e-5)).sum(1))
    c = q.T @ (w[:, None] * q)
    c = c / c.sum(1, keepdims=True)
    return 1 - np.trace(c) / len(c)


def test_mcc_is_the_confusion_of_the_unlabelled_rows_of_both_views():
    logits = 3 * random(8, CLASSES)
    step = Step({}, random(8, WIDTH), logits)
    terms = make("mcc").terms(None, batch_of(), step, at())
    expected = confusion(logits[[2, 3, 6, 7]], 2.5)
    assert terms["confusion"].item() == pytest.approx(expected, rel=1e-5)


def test_mcc_has_its_weight_temperature_and_scale():
    logits = 3 * random(8, CLASSES)
    step = Step({}, random(8, WIDTH), logits)
    technique = make("mcc", weight=2.0, temperature=1.5, scale=0.5)
    found = technique.terms(None, batch_of(), step, at())["confusion"].item()
    assert found == pytest.approx(2 * confusion(0.5 * logits[[2, 3, 6, 7]], 1.5), rel=1e-5)


def nwd_case(step_number, **config):
    features = random(8, WIDTH).requires_grad_()
    weight = random(CLASSES, WIDTH, name="weight").requires_grad_()
    model = SimpleNamespace(classify=lambda f: f @ weight.T)
    technique = make("nwd", **config)
    terms = technique.terms(model, batch_of(), Step({}, features), at(step=step_number))
    found = torch.autograd.grad(terms["discrepancy"], [features, weight])

    p = (features @ weight.T).softmax(1)
    sides = [p[[0, 1, 4, 5]], p[[2, 3, 6, 7]]]  # labelled, unlabelled, both views
    discrepancy = (torch.linalg.svdvals(sides[0]).sum() - torch.linalg.svdvals(sides[1]).sum()) / 4
    rising = torch.autograd.grad(discrepancy, [features, weight])
    return terms["discrepancy"], found, discrepancy, rising


def test_nwd_is_minus_the_discrepancy_so_that_the_classifier_raises_it():
    term, (_, on_classifier), discrepancy, (_, rising) = nwd_case(1000, weight=1.5)
    torch.testing.assert_close(term, -1.5 * discrepancy)
    torch.testing.assert_close(on_classifier, -1.5 * rising)


@pytest.mark.parametrize("step", [0, 500, 1000])
def test_nwd_lets_the_features_lower_the_discrepancy_by_a_reversal_that_sets_in_slowly(step):
    _, (on_features, _), _, (rising, _) = nwd_case(step)
    strength = 2 / (1 + math.exp(-step / 1000)) - 1
    torch.testing.assert_close(on_features, strength * rising)


def test_nwd_warms_up_over_the_steps_that_it_is_given():
    _, (on_features, _), _, (rising, _) = nwd_case(10, warmup=10)
    torch.testing.assert_close(on_features, (2 / (1 + math.exp(-1)) - 1) * rising)


# --- sampling weights


def test_spl_admits_the_images_of_small_loss_and_keeps_the_unlabelled_mass():
    labels = torch.tensor([0, -1, -1, -1, -1])
    technique = make("spl", labels)
    technique.losses.copy_(torch.tensor([9.0, 1.0, 2.0, 3.0, 4.0]))
    weights = torch.tensor([1.0, 0.25, 0.25, 0.25, 0.25], dtype=torch.float64)
    first = technique.weights(weights, at(epoch=0), CONTEXT)
    torch.testing.assert_close(first, weights)  # all are in before there is a bound
    second = technique.weights(weights, at(epoch=1), CONTEXT)  # median: the lower middle one, 2
    torch.testing.assert_close(second, torch.tensor([1, 0.5, 0.5, 0, 0], dtype=torch.float64))
    technique.bound.fill_(2.9)
    third = technique.weights(weights, at(epoch=2), CONTEXT)  # 2.9 x 1.15 = 3.3
    torch.testing.assert_close(third, torch.tensor([1, 1 / 3, 1 / 3, 1 / 3, 0]).double())
    assert float(technique.bound) == pytest.approx(2.9 * 1.15)


def test_spl_remembers_the_cross_entropy_of_the_second_view_to_the_first():
    technique, logits = make("spl", torch.full((9,), -1)), 2 * random(8, CLASSES)
    step = Step({}, random(8, WIDTH), logits)
    technique.after_step(None, batch_of(index=torch.tensor([7, 3, 0, 5])), step, at())
    p, q = logits[:4].softmax(1), logits[4:].softmax(1)
    expected = torch.zeros(9)
    expected[[7, 3, 0, 5]] = -(p * q.log()).sum(1)
    torch.testing.assert_close(technique.losses, expected)


def test_cl_admits_the_unlabelled_images_that_are_nearest_to_a_class_first():
    angles = torch.tensor([0.0, 0.0, 90.0, 90.0, 50.0, 5.0, 80.0, 30.0]).deg2rad()
    features = torch.stack([angles.cos(), angles.sin()], 1) * torch.arange(1, 9)[:, None]
    labels = torch.tensor([0, 0, 1, 1, -1, -1, -1, -1])
    rows = torch.arange(8)
    pool = PoolFeatures(features, {}, labels, rows[:4], rows[4:], rows)
    technique = make("cl", labels, start=0.25, until=0.5)
    technique.begin_fit(None, FitContext(lambda: pool, seeded))
    # distances from the nearest class: 40, 5, 10 and 30 degrees
    torch.testing.assert_close(technique.rank[4:], torch.tensor([0.75, 0.0, 0.25, 0.5]))
    weights = torch.tensor([1.0, 1, 1, 1, 1, 1, 1, 1], dtype=torch.float64)

    def unlabelled(epoch):
        found = technique.weights(weights, at(epoch=epoch), CONTEXT)
        assert (found[:4] == 1).all()
        return found[4:].tolist()

    assert unlabelled(0) == pytest.approx([0, 4, 0, 0])
    assert unlabelled(2) == pytest.approx([0, 4 / 3, 4 / 3, 4 / 3])  # 0.25 + 0.75 x 2/5 = 0.55
    assert unlabelled(5) == pytest.approx([1, 1, 1, 1])


def test_the_curriculum_weighs_by_the_cluster_of_an_image_and_switches_once():
    labels = torch.tensor([0, 1, -1, -1, -1, -1, -1, -1])
    shifted = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1]).bool()
    model = SimpleNamespace(backbone=SimpleNamespace(tap=lambda block: None))
    technique = make("curriculum", labels, model)
    technique.shifted.copy_(shifted)
    weights = torch.full((8,), 7.0, dtype=torch.float64)
    early = technique.weights(weights, at(epoch=4), CONTEXT)  # switch at 0.4 of 10
    late = technique.weights(weights, at(epoch=5), CONTEXT)
    assert early.tolist() == pytest.approx([1, 1, 0.5, 0.5, 0.5, 0.5, 0, 0])
    assert late.tolist() == pytest.approx([1, 1, 0.5, 0.5, 0.5, 0.5, 0.05, 0.05])
    pairs = make("curriculum", labels, model, preset="domainnet")
    pairs.shifted.copy_(shifted)
    assert pairs.weights(weights, at(epoch=0), CONTEXT)[6:].tolist() == [1, 1]  # |D^l| / |D^b|


# --- features


def test_sfa_adds_noise_in_units_of_the_deviation_to_every_entry():
    technique, features = make("sfa", scale_noise=0.0, shift_noise=0.5), torch.ones(2048, WIDTH)
    technique.deviation.copy_(torch.arange(WIDTH))
    labels = torch.full((1024,), -1)
    batch = Batch(torch.zeros(2, 1024, 3, 1, 1), labels, torch.arange(1024))
    added = technique.features(features, batch, at()) - features
    assert added.std(0).tolist() == pytest.approx([0.5 * d for d in range(WIDTH)], rel=0.08)
    assert abs(added.mean()) < 0.1


def test_sfa_scales_every_entry_by_noise_around_one():
    technique = make("sfa", scale_noise=0.2, shift_noise=0.0)
    features = torch.arange(WIDTH).repeat(2048, 1).float()
    batch = Batch(torch.zeros(2, 1024, 3, 1, 1), torch.full((1024,), -1), torch.arange(1024))
    found = technique.features(features, batch, at())
    assert found.mean(0).tolist() == pytest.approx(list(range(WIDTH)), abs=0.1)
    assert found.std(0).tolist() == pytest.approx([0.2 * d for d in range(WIDTH)], rel=0.08)


def test_sfa_follows_the_deviation_of_the_features():
    technique, features = make("sfa"), random(8, WIDTH)
    technique.after_step(None, batch_of(), Step({}, features), at())
    torch.testing.assert_close(technique.deviation, 0.9 + 0.1 * features.std(0))


# --- images


def given_partners(labelled, *, generator):
    """Exchange the two labelled and the two unlabelled rows of the batch."""
    assert labelled.tolist() == [True, True, False, False]
    return torch.tensor([1, 0, 3, 2])


def test_mixup_blends_images_and_labels_by_one_share(monkeypatch):
    share = torch.tensor([0.25, 0.6, 0.25, 0.6])
    replaced(monkeypatch, "mixup", partners_within=given_partners, draw_beta=lambda *_, **__: share)
    batch = batch_of(index=torch.tensor([10, 11, 12, 13]))
    mixed = make("mixup", share="image").mix(batch, at())
    other = batch.views[:, [1, 0, 3, 2]]
    s = share.view(1, 4, 1, 1, 1)
    torch.testing.assert_close(mixed.views, s * batch.views + (1 - s) * other)
    expected = torch.tensor([[0.25, 0.75, 0, 0], [0.4, 0.6, 0, 0]])
    torch.testing.assert_close(mixed.targets[:2], expected)
    assert mixed.labels.tolist() == [1, 1, -1, -1]  # the larger share's
    assert mixed.index.tolist() == [11, 11, 13, 13]


def test_cutmix_shares_labels_by_the_area_that_is_left_of_the_cut_box(monkeypatch):
    replaced(
        monkeypatch,
        "cutmix",
        partners_within=given_partners,
        draw_beta=lambda a, b, n, **_: torch.full((n,), 0.75),  # a box of half the side
        draw_uniform=lambda k, n, **_: torch.zeros(k, n),  # at the corner: a quarter is left
    )
    batch = batch_of(index=torch.tensor([10, 11, 12, 13]))
    mixed = make("cutmix").mix(batch, at())
    expected = batch.views.clone()
    expected[..., :2, :2] = batch.views[:, [1, 0, 3, 2]][..., :2, :2]
    torch.testing.assert_close(mixed.views, expected)
    left = 1 - 4 / 64
    targets = torch.tensor([[left, 1 - left, 0, 0], [1 - left, left, 0, 0]])
    torch.testing.assert_close(mixed.targets[:2], targets)
    assert mixed.index.tolist() == [10, 11, 12, 13]


# --- tokens

STYLES = ("mixstyle", "efdm")


def style_case(monkeypatch, name, draw=0.4, share=0.0, **config):
    """Return tokens before and after; every image's partner is the next one."""
    partners = torch.tensor([1, 2, 3, 0])
    replaced(
        monkeypatch,
        name,
        draw_uniform=lambda *_, **__: torch.tensor([draw]),
        style_partners=lambda labelled, order, **_: (partners, torch.full((4,), share)),
    )
    x = random(8, 5, WIDTH, name="tokens") + torch.arange(8)[:, None, None]
    return x, make(name, **config).tokens(x, 1, batch_of(), at())


@pytest.mark.parametrize("name", STYLES)
def test_a_style_is_the_partners_in_the_patches_of_either_view_and_not_in_cls(monkeypatch, name):
    x, found = style_case(monkeypatch, name)
    assert torch.equal(found[:, 0], x[:, 0])
    other = x[[1, 2, 3, 0, 5, 6, 7, 4], 1:]
    torch.testing.assert_close(found[:, 1:].mean(1), other.mean(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found[:, 1:].std(1), other.std(1), rtol=1e-4, atol=1e-4)
    ranks = [t[:, 1:].argsort(1).argsort(1) for t in (x, found)]
    assert torch.equal(*ranks)  # the content stays


@pytest.mark.parametrize("name", STYLES)
def test_a_share_of_one_keeps_the_own_style(monkeypatch, name):
    x, found = style_case(monkeypatch, name, share=1.0)
    torch.testing.assert_close(found, x)


@pytest.mark.parametrize("name", STYLES)
def test_styles_are_mixed_in_half_of_the_batches_and_after_the_chosen_blocks(monkeypatch, name):
    x, found = style_case(monkeypatch, name, draw=0.6)
    assert torch.equal(found, x)
    x, found = style_case(monkeypatch, name, blocks=(2, 3))
    assert torch.equal(found, x)


# --- blends of patches


def pmtrans_case(monkeypatch, beta):
    """Take a step of SimGCD with PMTrans and catch what its losses are given."""
    made, caught = bench(MethodSpec.parse("simgcd+pmtrans")), {}

    def given(a, b, *shape, **_):
        caught["beta"] = beta if torch.is_tensor(beta) else torch.full(shape, beta)
        return caught["beta"].expand(shape)

    def features_loss(mixed, source, target, labels, share):
        caught.update(mixed=mixed, source=source, target=target, labels=labels, share=share)
        return mixed.sum() * 0 + 3

    def labels_loss(logits, labels, pseudo_labels, confidence, share, *, fixed_denominators):
        assert not fixed_denominators
        caught.update(logits=logits, pseudo_labels=pseudo_labels, label_share=share)
        return logits.sum() * 0 + 5

    replaced(
        monkeypatch,
        "pmtrans",
        draw_beta=given,
        mixed_feature_loss=features_loss,
        mixed_label_loss=labels_loss,
    )
    made.begin()
    batch = made.batch(made.mixed_rows())
    step = made.model.step(batch, made.clock())
    return made, batch, step, caught


@pytest.mark.parametrize(("beta", "side"), [(1.0, "source"), (0.0, "target")])
def test_a_whole_share_in_pmtrans_is_the_labelled_image_and_none_the_unlabelled(
    monkeypatch, beta, side
):
    _, _, _, caught = pmtrans_case(monkeypatch, beta)
    torch.testing.assert_close(caught["mixed"], caught[side], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(caught["share"], torch.full_like(caught["share"], beta))


def test_the_share_in_pmtrans_is_what_the_attention_of_the_labelled_image_gives(monkeypatch):
    beta = torch.linspace(0.1, 0.9, 16)
    made, batch, step, caught = pmtrans_case(monkeypatch, beta)
    attention = step.recording.attention.mean((0, 2)).softmax(1)
    distance = torch.cdist(caught["source"], step.features)
    rows = distance.argmin(1)
    assert batch.labelled[rows].all()
    assert torch.equal(batch.labels[rows], caught["labels"])
    of_source = (beta * attention[rows]).sum(1)
    expected = of_source / (of_source + (1 - beta).sum() / 16)
    torch.testing.assert_close(caught["share"], expected)
    torch.testing.assert_close(caught["label_share"], expected)
    weight = math.log1p(math.exp(-2))
    assert step.terms["pmtrans.features"].item() == pytest.approx(3 * weight)
    assert step.terms["pmtrans.labels"].item() == pytest.approx(5 * weight)
    torch.testing.assert_close(caught["logits"], made.model.classify(caught["mixed"]))


def test_pmtrans_remembers_the_first_views_of_unlabelled_images_and_asks_its_neighbours():
    labels = torch.tensor([0, 1, -1, -1, -1])
    technique = make("pmtrans", labels, neighbours=1)
    features, logits = random(8, WIDTH), random(8, CLASSES, name="logits")
    step = Step({}, features, logits)
    technique.after_step(None, batch_of(index=torch.tensor([0, 1, 2, 4])), step, at())
    torch.testing.assert_close(technique.features_seen[[0, 2]], F.normalize(features[2:4], dim=1))
    squared = logits[2:4].softmax(1) ** 2
    torch.testing.assert_close(technique.classes_seen[[0, 2]], squared / squared.sum(0))
    assert technique.seen.tolist() == [True, False, True]
    # the image itself is left out, so each is taken for what the other one was
    classes, confidence = technique.recall(features[2:4], torch.tensor([2, 4]))
    expected = (squared / squared.sum(0)).flip(0).max(1)
    assert torch.equal(classes, expected.indices)
    torch.testing.assert_close(confidence, expected.values)


def test_patchmix_weighs_labels_by_the_attention_of_both_images(monkeypatch):
    made, caught = bench(MethodSpec.parse("simgcd+patchmix")), {}

    def smoothed(logits, labels, alpha, *, temperature):
        caught.update(alpha=alpha, labels=labels, temperature=temperature)
        return logits.sum() * 0 + 1

    def contrast(z, labels, *, temperature, weight):
        caught.update(classes=labels, weight=weight)
        return z.sum() * 0 + 1

    replaced(monkeypatch, "patchmix", smoothed_cross_entropy=smoothed, sup_con=contrast)
    made.begin()
    batch = made.batch(made.mixed_rows())
    step = made.model.step(batch, made.clock())
    source, target, beta = made.model.techniques["patchmix"].blend(batch, 16, made.clock())
    attention = step.recording.attention.mean((0, 2))
    attention = attention / attention.sum(1, keepdim=True)
    ours, theirs = (beta * attention[source]).sum(1), ((1 - beta) * attention[target]).sum(1)
    torch.testing.assert_close(caught["alpha"], ours / (ours + theirs))
    torch.testing.assert_close(caught["weight"], caught["alpha"])
    labels = batch.labels.repeat(2)[source]
    assert (labels >= 0).all()
    assert torch.equal(caught["labels"], labels)
    assert torch.equal(caught["classes"], labels)
    assert (batch.labels.repeat(2)[target] < 0).all()


def test_patchmix_weighs_its_terms_by_kind():
    made = bench(MethodSpec.parse("simgcd+patchmix"))
    made.begin()
    technique = made.model.techniques["patchmix"]
    before = made.loss().terms
    with torch.no_grad():
        technique.raw_weights[0].add_(1.0)
    factor = float(F.softplus(technique.raw_weights[0])) / technique.config.weight
    after = made.loss().terms
    for name in ("contrast", "sup_contrast"):
        torch.testing.assert_close(after[f"patchmix.{name}"], factor * before[f"patchmix.{name}"])
    for name in ("classify", "distil", "entropy"):
        torch.testing.assert_close(after[f"patchmix.{name}"], before[f"patchmix.{name}"])


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_one_share_is_drawn_for_a_batch_unless_every_image_shall_have_its_own(name):
    labels = torch.zeros(16, dtype=torch.long)
    labels[8:] = -1
    batch = batch_of(labels)

    def shares(**config):
        mixed = make(name, labels, **config).mix(batch, at(seed=3))
        changed = (mixed.views - batch.views).flatten(2).abs().gt(0).double().mean(2)
        return changed, mixed

    by_image, _ = shares(share="image")
    together, mixed = shares()
    if name == "cutmix":  # pixels that changed: the box, for all images that have a partner
        assert len(by_image[by_image > 0].unique()) > 3
        assert len(together[together > 0].unique()) == 1
    else:
        assert len(mixed.index.unique()) == 16  # all rows keep their image, or none does
