from __future__ import annotations

import json
import math
import sys
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.paths import GOLDEN
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from gcdbench.core import registry
from gcdbench.core.config import build, plain
from gcdbench.core.method_spec import MethodSpec
from gcdbench.errors import UserError
from gcdbench.experiment.plan import Request, make_cells
from gcdbench.nn.backbone import Backbone
from gcdbench.nn.critics import js_mutual_information
from gcdbench.training.conformance import CHECKS, Bench
from gcdbench.training.method import Batch, Clock, Task
from gcdbench.training.weights import trained_state

SMALL = {"hidden_dim": 16, "projection_dim": 8, "critic_dim": 8}
BARE = MethodSpec.parse("hilo-patchmix-curriculum")
DATASET = {"cifar10-c": "cifar10-c", "drawshift": "line+solid"}  # by suite
EPOCH_10 = Clock(epoch=10, step=10, epochs=200, steps_per_epoch=1, seed=0)


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "hilo_golden.npz") as arrays:
        tensors = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    return tensors, json.loads((GOLDEN / "hilo_golden.json").read_text())


def part(tensors, prefix):
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def golden_hilo(tensors, **values):
    """Build HiLo in double precision on the reference's tiny backbone."""
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
    backbone = Backbone(vit.eval(), mean=(0,) * 3, std=(1,) * 3, image_size=32)
    task = Task(7, 4, torch.full((8,), -1), epochs=200, steps_per_epoch=1, seed=0)
    cls = registry.load("method", "hilo")
    return cls(hilo_config(hidden_dim=9, projection_dim=6, **values), task, backbone).double()


def hilo_config(**values):
    return build(registry.load("method", "hilo").Config, values, "hilo")


def load_head(head, state):
    head.projector.load_state_dict(
        {name: x for name, x in state.items() if name.startswith("mlp.")}
    )
    head.classifier.load_state_dict({"weight": state["last_layer.weight_v"]})


def hilo_module():
    return sys.modules[registry.load("method", "hilo").__module__]


def toy_batch(labels, index=None):
    index = torch.arange(len(labels)) if index is None else index
    return Batch(torch.zeros(2, len(labels), 3, 32, 32), labels, index)


def bench(spec=BARE, **values):
    made = Bench(spec, {"hilo": {**SMALL, **values}})
    made.begin()
    return made


def test_with_everything_switched_off_hilo_is_simgcd():
    widths = {name: SMALL[name] for name in ("hidden_dim", "projection_dim")}
    simgcd = Bench(MethodSpec.parse("simgcd"), {"simgcd": widths})
    simgcd.begin()
    hilo = bench(disentangle=False)
    for _ in range(20):  # seven epochs
        ours, theirs = hilo.update(), simgcd.update()
        assert ours.terms.keys() == theirs.terms.keys()
        for name, term in ours.terms.items():
            assert torch.equal(term, theirs.terms[name])
    renamed = {
        name.replace("method.semantic.", "method."): value
        for name, value in trained_state(hilo.model).items()
    }
    expected = trained_state(simgcd.model)
    assert renamed.keys() == expected.keys()
    assert all(torch.equal(renamed[name], value) for name, value in expected.items())


def test_disentangling_leaves_the_semantic_terms_alone():
    with_domains, without = bench().loss().terms, bench(disentangle=False).loss().terms
    for name, term in without.items():
        torch.testing.assert_close(with_domains[name], term)
    assert set(with_domains) - set(without) == {
        *("domain_kmeans", "domain_entropy", "domain_classify", "domain_contrast"),
        *("domain_sup_contrast", "information"),
    }


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_ablations_keep_the_contract(check):
    check(lambda: Bench(BARE, {"hilo": {**SMALL, "domain_targets": "distil", "domain_block": 2}}))


@pytest.mark.parametrize(
    "check", [c for c in CHECKS if "row_order" not in c.__name__], ids=lambda check: check.__name__
)
def test_the_released_preset_keeps_the_contract_but_for_the_order_of_rows(check):
    released = {"preset": "released"}
    check(lambda: Bench(MethodSpec.parse("hilo"), {"hilo": SMALL | released, "patchmix": released}))


def test_the_released_preset_depends_on_the_order_of_rows():
    check = next(c for c in CHECKS if "row_order" in c.__name__)
    with pytest.raises(AssertionError, match="domain_kmeans"):
        check(lambda: Bench(BARE, {"hilo": {**SMALL, "preset": "released"}}))


def test_a_preset_lies_under_what_is_given_beside_it():
    released = hilo_config(preset="released")
    assert (released.critic, released.critic_update) == ("cosine", "joint")
    assert not released.align_clusters
    assert hilo_config(preset="released", critic="mlp").critic == "mlp"
    assert hilo_config().critic == "mlp"
    assert hilo_config(**plain(released)) == released


def test_an_unknown_preset_is_refused():
    with pytest.raises(UserError, match=r"hilo\.preset: expected one of paper, released"):
        hilo_config(preset="printed")


def test_the_plan_resolves_a_preset_without_importing_the_method():
    info = registry.get("method", "hilo")
    assert build(info.config, {"preset": "released"}, "hilo").critic == "cosine"
    assert info.constants["techniques"] == ("patchmix", "curriculum")
    assert "presets" not in plain(info.config())


def test_both_features_are_those_of_the_reference(golden):
    expected = part(golden[0], "vit/")
    backbone = golden_hilo(golden[0]).backbone
    with backbone.recording() as recording:
        encoded = backbone(expected["images"])
    torch.testing.assert_close(recording.patches, expected["patch_tokens"])
    torch.testing.assert_close(encoded.taps[1], expected["cls_after_block1_then_final_norm"])
    torch.testing.assert_close(encoded.cls, expected["cls_after_block12_then_final_norm"])
    attention = recording.attention.mean((0, 2))
    torch.testing.assert_close(attention, expected["cls_attention_mean_layers_heads"])


def test_a_preset_reaches_the_techniques_that_come_with_the_method():
    def presets(suite, **given):
        (cell,) = make_cells(Request(suite, ("hilo",), (DATASET[suite],), assignments=given))
        return {name: config["preset"] for name, config in cell.technique_configs.items()}

    released = {"hilo": {"preset": "released"}}
    assert presets("cifar10-c") == {"patchmix": "paper", "curriculum": "ssb-c"}
    assert presets("cifar10-c", **released) == dict.fromkeys(("patchmix", "curriculum"), "released")
    # what a suite or a user sets for a technique itself stands
    assert presets("drawshift", **released) == {"patchmix": "released", "curriculum": "domainnet"}
    mixed = presets("cifar10-c", **released, patchmix={"preset": "paper"})
    assert mixed == {"patchmix": "paper", "curriculum": "released"}


def test_the_semantic_terms_equal_the_reference(golden):
    tensors, values = golden
    hilo = golden_hilo(tensors, disentangle=False)
    load_head(hilo.semantic, part(tensors, "mixbranch/sem_head/"))
    sem = part(tensors, "sem_axis/")
    labels = torch.full((8,), -1).masked_scatter(sem["mask_lab"], sem["labels_of_labelled"])
    hilo.encode = lambda batch: type("Encoded", (), {"cls": sem["features_2view"]})
    step = hilo.step(toy_batch(labels), EPOCH_10)
    assert step.loss.item() == pytest.approx(values["sem_axis/total"], rel=1e-6)
    torch.testing.assert_close(step.logits, sem["logits"] / 0.1)


@pytest.mark.parametrize(("preset", "total"), [("paper", "aligned"), ("released", "code")])
def test_the_domain_terms_equal_the_reference(golden, preset, total):
    tensors, values = golden
    hilo = golden_hilo(tensors, preset=preset)
    dom = part(tensors, "dom_axis/")
    load_head(hilo.domain, part(tensors, "dom_axis/head/"))
    batch = toy_batch(torch.where(dom["mask_lab"], 3, -1))
    z, cosines = hilo.domain(dom["features_2view"])
    torch.testing.assert_close(z, dom["proj"])
    torch.testing.assert_close(cosines, dom["logits"])
    targets = hilo.clusters(z[:8], batch, EPOCH_10)
    assert torch.equal(targets[~dom["mask_lab"]], dom[f"{total}_targets"])
    assert (targets[dom["mask_lab"]] == -1).all()
    terms = hilo.domain_terms(z, cosines, batch, EPOCH_10)
    assert sum(terms.values()).item() == pytest.approx(values[f"dom_axis/total_{total}"], rel=1e-6)


def test_the_released_information_equals_the_reference(golden):
    tensors, values = golden
    mi = part(tensors, "mi_full/")
    hilo = golden_hilo(tensors, preset="released")
    hilo.critic = type(hilo.critic)(5, 5).double()
    hilo.critic.load_state_dict({"weight": mi["weight_v"]})
    x, y = mi["x_sem"].requires_grad_(), mi["y_dom"].requires_grad_()
    value, _ = hilo.information(x, y)
    assert value.item() == pytest.approx(values["mi_full/value"], rel=1e-9)
    grads = torch.autograd.grad(value, [x, y, hilo.critic.weight])
    for grad, name in zip(grads, ("grad_x", "grad_y", "grad_weight_v"), strict=True):
        torch.testing.assert_close(grad, mi[name], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("fooled", [False, True])
def test_the_critic_raises_the_estimate_that_the_features_lower_until_they_fool_it(fooled):
    hilo = bench(critic_inputs="scaled", critic_scores="raw").model.method
    z, domain_z = (torch.randn(6, 8, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    inputs = [z.requires_grad_(), domain_z.requires_grad_()]
    critic = list(hilo.critic.parameters())
    scaled = [x / x.square().mean(1, keepdim=True).sqrt() for x in inputs]

    def estimate():
        return js_mutual_information(hilo.critic(*scaled))  # far from the limit

    if bool(estimate() < -2 * math.log(2)) != fooled:  # the opposite scores are as wrong as right
        with torch.no_grad():
            critic[-2].neg_()
    rising = torch.autograd.grad(estimate(), inputs + critic)
    loss, watched = hilo.information(z, domain_z)
    assert watched["critic_estimate"] == -loss
    assert watched["critic_saturated"] == 0
    used = torch.autograd.grad(loss, inputs + critic)
    signs = [1.0 - fooled] * 2 + [-1.0] * len(critic)  # descent: features down, critic up
    assert all(grad.any() for grad in rising[:2])
    for grad, reference, sign in zip(used, rising, signs, strict=True):
        torch.testing.assert_close(grad, sign * reference)


def test_inputs_of_the_critic_are_standardised_by_statistics_without_a_gradient():
    scale = hilo_module().Standardise(3)
    x = torch.tensor([3.0, -1.0, 0.5]) + torch.tensor([2.0, 0.5, 0.0]) * torch.randn(
        400, 3, generator=torch.Generator().manual_seed(0)
    )
    found = scale(x.requires_grad_())
    assert found.mean(0).abs().max() < 1e-4
    assert found.std(0, unbiased=False)[:2].tolist() == pytest.approx([1, 1], rel=1e-2)
    assert found[:, 2].abs().max() < 1e-3  # no deviation is not blown up
    (grad,) = torch.autograd.grad((found * found.detach()).sum(), x)
    torch.testing.assert_close(grad, found.detach())  # not divided by the deviation
    before = scale.mean.clone()
    scale(x.detach() + 10)
    torch.testing.assert_close(scale.mean, before + 5, rtol=1e-4, atol=1e-4)  # two batches, equal
    scale.eval()(x.detach() + 10)
    assert scale.seen == 2


def test_running_statistics_forget_at_their_momentum():
    scale = hilo_module().Standardise(1, momentum=0.9)
    scale.seen.fill_(50)
    scale.mean.fill_(1.0)
    scale(torch.tensor([[10.0], [12.0]]))
    assert scale.mean.item() == pytest.approx(0.9 * 1 + 0.1 * 11)
    assert scale.var.item() == pytest.approx(0.9 * 1 + 0.1 * 1)


def test_only_the_interaction_of_both_features_counts():
    """What depends on one of them alone cannot change the estimate, so it fools nobody."""
    generator = torch.Generator().manual_seed(0)
    scores, of_x, of_y = (torch.randn(5, 5, generator=generator) for _ in range(3))
    found = hilo_module().interaction(scores)
    shifted = hilo_module().interaction(scores + 9 * of_x[:, :1] - 7 * of_y[:1] + 50)
    torch.testing.assert_close(shifted, found, rtol=1e-4, atol=1e-4)
    assert found.mean(0).abs().max() < 1e-6
    assert found.mean(1).abs().max() < 1e-6
    assert found.diagonal().mean() == pytest.approx(
        (scores.diagonal().mean() - scores.mean()).item(), abs=1e-6
    )
    made = bench().model.method
    inputs = [torch.randn(6, 8, generator=generator) for _ in range(2)]
    before = made.information(*inputs)[0]
    with torch.no_grad():
        list(made.critic.parameters())[-1].add_(20)  # the bias of the critic's scores
    assert made.information(*inputs)[0].item() == pytest.approx(before.item(), abs=0.02)
    with torch.no_grad():
        made.offset.add_(20)
    assert made.information(*inputs)[0] > before + 5


def test_scores_beyond_the_limit_keep_a_slope_that_lets_the_critic_learn():
    scores = torch.tensor([-1005.0, -6.0, -2.0, 0.0, 4.9, 9.0], requires_grad=True)
    found = hilo_module().softly_limited(scores, 5.0)
    excess = math.log(1001), math.log(2), math.log(5)
    expected = [-5 - excess[0], -5 - excess[1], -2, 0, 4.9, 5 + excess[2]]
    assert found.tolist() == pytest.approx(expected, rel=1e-5)
    (slope,) = torch.autograd.grad(found.sum(), scores)
    assert slope.tolist() == pytest.approx([1 / 1001, 1 / 2, 1, 1, 1, 1 / 5])
    assert hilo_module().softly_limited(scores, None) is scores


def test_a_nearly_constant_domain_projection_is_still_seen_by_the_critic():
    """Dependence in 0.04 % of the energy: scaling alone hides it, standardising does not."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for inputs in ("scaled", "standardised"):
        made = bench(critic_inputs=inputs, critic_dim=32)
        hilo = made.model.method
        optimizer = torch.optim.SGD(hilo.critic.parameters(), lr=0.1, momentum=0.9)
        for _ in range(150):
            z = torch.randn(32, 8, generator=generator)
            domain_z = 10 + 0.2 * z
            loss, watched = hilo.information(z, domain_z)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found[inputs] = watched
    assert found["standardised"]["domain_spread"] < 1e-3
    assert found["standardised"]["critic_estimate"] > -0.9
    assert found["scaled"]["critic_estimate"] < -1.2


@pytest.mark.parametrize(
    ("choice", "dropped"), [("self", {"sup_contrast"}), ("none", {"sup_contrast", "contrast"})]
)
def test_the_domain_contrast_can_be_switched_off(choice, dropped):
    both, fewer = bench().loss().terms, bench(domain_contrast=choice).loss().terms
    assert set(both) - set(fewer) == {f"domain_{name}" for name in dropped}
    kept = [n for n in fewer if n not in ("information",)]
    assert all(torch.equal(both[name], fewer[name]) for name in kept)


def test_without_information_the_domain_contrast_reaches_nothing_that_predicts():
    def trained(choice):
        values = {**SMALL, "information_weight": 0.0, "domain_contrast": choice}
        return Bench(MethodSpec.parse("hilo"), {"hilo": values}).run()

    both, self_only, none = (trained(choice) for choice in ("both", "self", "none"))
    for other in (self_only, none):
        moved = {name for name in both if not torch.equal(both[name], other[name])}
        assert moved
        assert all(name.startswith(("method.domain.", "method.scales.")) for name in moved)


def test_what_is_watched_is_the_estimate_both_spreads_and_the_share_beyond_the_limit():
    seen = bench().loss().diagnostics
    names = {"critic_estimate", "semantic_spread", "domain_spread", "critic_saturated"}
    assert set(seen) == {*names, "predicted_new"}
    same, far = torch.ones(4, 8), torch.eye(4, 8) - 0.25 * F.pad(torch.ones(4, 4), (0, 4))
    assert hilo_module().varying_share(same) == 0
    assert hilo_module().varying_share(far) == pytest.approx(1)
    made = bench(critic_limit=1e-6)
    assert made.loss().diagnostics["critic_saturated"] > 0.9


@pytest.mark.parametrize("block", [1, 2])
def test_the_domain_head_reads_the_block_that_it_is_given(block):
    made, seen = bench(domain_block=block), []
    made.model.method.domain.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    batch = made.batch(made.mixed_rows())
    made.model.step(batch, made.clock())
    torch.testing.assert_close(seen[0], made.model.backbone(batch.images).taps[block])


def test_domain_terms_do_not_reach_the_backbone():
    made = bench()
    terms = made.loss().terms
    domain = sum(term for name, term in terms.items() if name.startswith("domain_"))
    domain.backward()
    grads = [p.grad for p in made.model.backbone.parameters() if p.grad is not None]
    assert not any(grad.any() for grad in grads)
    assert all(p.grad is not None for p in made.model.method.domain.parameters())


def test_a_shallow_semantic_feature_is_trained_and_predicted_with():
    made = bench(semantic_block=1)
    batch = made.batch(made.mixed_rows())
    shallow = made.model.backbone(batch.images).taps[1]
    torch.testing.assert_close(made.model.step(batch, made.clock()).features, shallow)
    store = made.compute_features()
    torch.testing.assert_close(store.features, store.taps[1])


@pytest.mark.parametrize("hidden", [True, False])
def test_there_are_no_domain_clusters_without_both_kinds_of_rows(hidden):
    hilo = bench().model.method
    labels = torch.full((4,), -1 if hidden else 2)
    assert (hilo.clusters(torch.randn(4, 8), toy_batch(labels), EPOCH_10) == -1).all()


def test_a_batch_may_have_fewer_rows_than_domains():
    hilo = bench(num_domains=10).model.method
    clusters = hilo.clusters(torch.randn(3, 8), toy_batch(torch.tensor([0, -1, -1])), EPOCH_10)
    assert clusters[0] == -1
    assert ((clusters[1:] >= 0) & (clusters[1:] < 10)).all()


def test_soft_targets_of_mixed_images_take_the_place_of_labels():
    made = bench(disentangle=False)
    batch = made.batch(made.mixed_rows())
    one_hot = nn.functional.one_hot(batch.labels.clamp(min=0), made.task.num_classes).float()
    hilo = made.model.method
    hard = hilo.step(batch, made.clock()).terms["classify"]
    same = hilo.step(Batch(batch.views, batch.labels, batch.index, one_hot), made.clock())
    torch.testing.assert_close(same.terms["classify"], hard)
    flat = torch.full_like(one_hot, 1 / made.task.num_classes)
    other = hilo.step(Batch(batch.views, batch.labels, batch.index, flat), made.clock())
    assert abs(other.terms["classify"] - hard) > 1e-3


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_terms_are_finite_under_mixed_precision(preset):
    made = bench(MethodSpec.parse("hilo"), preset=preset)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step = made.loss()
    assert all(term.isfinite() for term in step.terms.values())
    step.loss.backward()
    for parameter in made.model.parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all()
