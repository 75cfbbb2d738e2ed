"""Hooks of methods, and the order in which a composed model calls those of its parts."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from helpers.bench import bench

from gcdbench.core import registry
from gcdbench.core.method_spec import MethodSpec
from gcdbench.ops.metrics import accuracies
from gcdbench.training.compose import Composed
from gcdbench.training.conformance import Bench
from gcdbench.training.method import Clock, PoolFeatures, Technique, balanced_weights, seeded

METHODS = list(registry.available("method"))


def started(spec: str, **config) -> Bench:
    made = bench(MethodSpec.parse(spec))
    if config:
        made = Bench(made.spec, {**made.configs, made.spec.method: config})
    made.begin()
    return made


def at(step: int) -> Clock:
    return Clock(0, step, epochs=4, steps_per_epoch=500, seed=0)


def provided(name: str) -> tuple[str, ...]:
    return tuple(registry.get("method", name).constants.get("provides", ()))


# --- methods


@pytest.mark.parametrize("name", [n for n in METHODS if n != "uniot" and "logits" in provided(n)])
def test_logits_of_a_step_are_those_that_predict(name):
    made = started(name)
    step = made.loss()
    assert step.logits.shape == (len(step.features), made.task.num_classes)
    made.model.eval()  # batch statistics are not those of prediction
    if name != "uno":
        torch.testing.assert_close(made.model.classify(step.features), step.logits)


@pytest.mark.parametrize(
    ("name", "temperature"), [("simgcd", 0.1), ("hilo", 0.1), ("ncdd", 0.1), ("orca", 0.1)]
)
def test_logits_are_cosines_over_the_temperature(name, temperature):
    made = started(name)
    method = made.model.method
    classifier = method.semantic.classifier if name == "hilo" else method.classifier
    features = torch.randn(5, made.model.backbone.dim, generator=seeded("features"))
    cosines = F.normalize(features, dim=1) @ F.normalize(classifier.weight, dim=1).T
    torch.testing.assert_close(method.classify(features), cosines / temperature)


def test_gcd_clusters_directions_with_labelled_images_in_the_clusters_of_their_classes():
    made = started("gcd")
    generator = seeded("directions")
    angles = torch.arange(6) * math.pi / 6
    centres = torch.zeros(6, made.model.backbone.dim)
    centres[:, 0], centres[:, 1] = angles.cos(), angles.sin()
    classes = torch.arange(60) % 6
    length = 0.2 + 20 * torch.rand(60, 1, generator=generator)  # must not matter
    features = length * (centres[classes] + 0.01 * torch.randn(60, 48, generator=generator))
    rows = torch.arange(60)
    labelled = rows[(classes < 4) & (rows < 30)]
    unlabelled = rows[~torch.isin(rows, labelled)]
    labels = torch.full((60,), -1)
    labels[labelled] = classes[labelled]
    queries = rows[30:]
    pool = PoolFeatures(features, {}, labels, labelled, unlabelled, queries)
    found = made.model.predict(pool, made.context)
    old = classes[queries] < 4
    assert torch.equal(found[old], classes[queries][old])
    new = found[~old]
    assert sorted(new.unique().tolist()) == [4, 5]
    pairs = zip(new.tolist(), classes[queries][~old].tolist(), strict=True)
    assert len(set(pairs)) == 2  # each new class is one cluster


def test_uniot_detects_common_classes_only_after_its_first_steps(monkeypatch):
    made = started("uniot", detect_after=100, hidden_dim=16, projection_dim=8)
    method, batch = made.model.method, made.batch(made.mixed_rows())
    rejected = torch.tensor([True, False, True, True])
    given = lambda target, _: (target.sum() * 0 + 7, rejected)  # noqa: E731
    monkeypatch.setattr(method, "_common_class_loss", given)
    found = [method.step(batch, at(s)).terms["common"].item() for s in (0, 100, 101)]
    assert found == pytest.approx([0.0, 0.0, 0.7])


def test_uniot_weighs_both_target_terms():
    small = {"hidden_dim": 16, "projection_dim": 8, "detect_after": -1}
    one, three = (started("uniot", **small, target_weight=w).loss().terms for w in (0.1, 0.3))
    for name in ("private", "common"):
        torch.testing.assert_close(three[name], 3 * one[name])
    torch.testing.assert_close(three["classify"], one["classify"])
    assert one["common"] > 0


def test_uniot_lets_the_mass_of_classes_follow_the_plan_by_its_momentum():
    small = {"hidden_dim": 16, "projection_dim": 8, "detect_after": -1, "gamma": 0.0}
    kept = started("uniot", **small)
    kept.loss()
    uniform = torch.full((4,), 0.25, dtype=torch.float64)
    torch.testing.assert_close(kept.model.method.class_mass, uniform)
    moved, all_new = (started("uniot", **small, mass_momentum=m) for m in (0.9, 0.0))
    for made in (moved, all_new):
        made.loss()
    plan = all_new.model.method.class_mass
    assert not torch.allclose(plan, uniform)
    torch.testing.assert_close(moved.model.method.class_mass, 0.9 * uniform + 0.1 * plan)


def test_uniot_draws_all_old_classes_equally_often_as_its_code_does():
    made = started("uniot", preset="released", hidden_dim=16, projection_dim=8)
    labels = torch.tensor([0, 0, 0, 1, 2, 2, -1, -1, -1, -1])
    made.model.method.task = replace(made.task, labels=labels)
    weights = made.model.begin_epoch(made.clock(), made.context)
    ninth = 1 / 9
    assert weights.tolist() == pytest.approx([ninth] * 3 + [1 / 3, 1 / 6, 1 / 6] + [0.25] * 4)


def test_ncdd_raises_certainty_and_spread_of_unlabelled_rows_alone():
    made = started("ncdd")
    rows = made.mixed_rows()
    step, labels = made.loss(rows), made.labels[rows].repeat(2)
    p = step.logits[labels < 0].softmax(1)
    certainty = -(p * p.log()).sum(1).mean()
    mean = p.mean(0)
    spread = math.log(6) + (mean * mean.log()).sum()
    assert set(step.terms) == {"classify", "contrast", "sup_contrast", "certainty", "spread"}
    torch.testing.assert_close(step.terms["certainty"], 0.65 * certainty)
    torch.testing.assert_close(step.terms["spread"], 0.65 * 2 * spread)


def test_uno_and_orca_start_an_epoch_with_empty_sums():
    uno = started("uno")
    for _ in range(3):
        uno.update()
    assert not uno.model.method.head_losses.any()
    orca = started("orca")
    orca.update()
    hidden = int((orca.labels[orca.mixed_rows()] < 0).sum())
    assert orca.model.method.confidence[1] == hidden
    orca.model.begin_epoch(orca.clock(), orca.context)
    assert not orca.model.method.confidence.any()


def two_sets() -> tuple[PoolFeatures, torch.Tensor]:
    """Return features of two sets, of which the second one is turned by 40 degrees."""
    generator = seeded("sets")
    classes = torch.arange(120) % 6
    shifted = torch.arange(120) >= 60
    angles = (classes * 30 + shifted * 40).deg2rad()
    noise = 0.01 * torch.randn(120, 2, generator=generator)
    features = F.pad(torch.stack([angles.cos(), angles.sin()], 1) + noise, (0, 46))
    rows = torch.arange(120)
    labelled, unlabelled = rows[(classes < 4) & (rows < 30)], rows[30:]
    labels = torch.full((120,), -1)
    labels[labelled] = classes[labelled]
    queries = torch.cat([rows[30:60], rows[60:]])
    pool = PoolFeatures(
        features, {}, labels, labelled, unlabelled, queries, (rows[30:60], rows[60:])
    )
    return pool, classes[queries]


def agreement(found: torch.Tensor, classes: torch.Tensor) -> float:
    return accuracies(preds=found, labels=classes, num_old=4).all


@pytest.mark.parametrize("clustering", ["per_set", "per_set_plain"])
def test_gcd_can_cluster_every_evaluation_set_by_itself(clustering):
    made = started("gcd", clustering=clustering, hidden_dim=8, out_dim=8, bottleneck_dim=8)
    pool, classes = two_sets()
    found = made.model.predict(pool, made.context)
    near, far = slice(0, 30), slice(30, None)
    assert agreement(found[near], classes[near]) == 1
    if clustering == "per_set":
        old = classes[near] < 4  # labelled images name the clusters
        assert torch.equal(found[near][old], classes[near][old])
    else:
        assert agreement(found[far], classes[far]) == 1
        pooled = started("gcd").model.predict(pool, made.context)
        assert agreement(pooled[far], classes[far]) < 1


def test_gcd_refuses_to_cluster_sets_that_share_images():
    made = started("gcd", clustering="per_set", hidden_dim=8, out_dim=8, bottleneck_dim=8)
    pool, _ = two_sets()
    twice = replace(pool, sets=(pool.sets[0], pool.sets[0]))
    with pytest.raises(ValueError, match="in two evaluation sets"):
        made.model.predict(twice, made.context)


# --- diagnostics


@pytest.mark.parametrize("name", [n for n in METHODS if n == "gcd" or "logits" in provided(n)])
def test_every_method_tells_the_share_of_unlabelled_rows_that_it_takes_for_new(name):
    small = {"detect_after": -1, "hidden_dim": 16, "projection_dim": 8} if name == "uniot" else {}
    made = started(name, **small)
    found = [made.update().diagnostics for _ in range(3)]  # an epoch
    shares = [float(one["predicted_new"]) for one in found if "predicted_new" in one]
    assert shares
    assert all(0 <= share <= 1 for share in shares)


def test_the_share_predicted_new_is_that_of_the_unlabelled_rows_of_all_views(monkeypatch):
    made = started("simgcd")
    method, batch = made.model.method, made.batch(made.mixed_rows())
    logits = torch.zeros(2 * len(batch), 6)
    hidden = (~batch.labelled).repeat(2).nonzero().squeeze(1)
    logits[:, 0] = 1
    logits[batch.labelled.repeat(2), 5] = 2  # labelled rows do not count
    logits[hidden[: len(hidden) // 4], 4] = 2  # the first new class
    logits[hidden[-1], 3] = 2  # the last old one
    given = method.step(batch, made.clock())
    monkeypatch.setattr(method, "step", lambda *_: replace(given, logits=logits))
    share = made.model.step(batch, made.clock()).diagnostics["predicted_new"]
    assert share == pytest.approx((len(hidden) // 4) / len(hidden))


# --- sampling


@pytest.mark.parametrize(("sampling", "share"), [("balanced", 0.5), ("natural", 16 / 48)])
def test_batches_are_half_labelled_or_drawn_as_the_pool_is(sampling, share):
    made = bench(MethodSpec.parse("simgcd"))
    made.model.method.task = replace(made.task, sampling=sampling)
    weights = made.model.begin_epoch(made.clock(), made.context)
    labelled = weights[made.labels >= 0].sum() / weights.sum()
    assert labelled.item() == pytest.approx(share)


def test_orca_and_uno_draw_naturally_as_their_codes_do():
    natural = [
        name
        for name in METHODS
        if registry.get("method", name).constants.get("train_defaults", {}).get("sampling")
    ]
    assert natural == ["orca", "uno"]


# --- composition


class Loud(Technique):
    """Changes all that a technique can change, by known amounts, and notes when it is asked."""

    def __init__(self, task, model, factor: float) -> None:
        super().__init__(None, task, model)
        self.factor, self.heard = factor, []
        self.learnt = torch.nn.Parameter(torch.ones(()))

    def mix(self, batch, clock):
        self.heard.append("mix")
        return type(batch)(batch.views * self.factor, batch.labels, batch.index)

    def weights(self, weights, clock, context):
        return weights * self.factor

    def features(self, features, batch, clock):
        self.heard.append("features")
        return features * self.factor

    def tokens(self, x, block, batch, clock):
        if block == 1:
            self.heard.append("tokens")
        return x

    def terms(self, model, batch, step, clock):
        self.heard.append("terms")
        return {"loud": self.learnt * self.factor}

    def after_step(self, model, batch, step, clock):
        self.heard.append("after")


def loud(spec: str = "simgcd") -> tuple[Bench, list[Loud]]:
    made = bench(MethodSpec.parse(spec))
    parts = [Loud(made.task, made.model, factor) for factor in (0.5, 3.0)]
    for name, part in zip(("first", "second"), parts, strict=True):
        made.model.add(name, part)
    return made, parts


def test_techniques_act_in_turn_on_images_tokens_features_and_terms(monkeypatch):
    made, parts = loud()
    batch, seen = made.batch(made.mixed_rows()), {}
    method_step = made.model.method.step

    def step(given, clock):
        seen["views"] = given.views
        return method_step(given, clock)

    monkeypatch.setattr(made.model.method, "step", step)
    found = made.model.step(batch, made.clock())
    assert torch.equal(seen["views"], batch.views * 0.5 * 3.0)
    bare = made.model.backbone(seen["views"].flatten(0, 1)).cls
    torch.testing.assert_close(found.features, bare * 1.5)
    assert found.terms["first.loud"] == 0.5
    assert found.terms["second.loud"] == 3.0
    made.model.after_step(batch, found, made.clock())
    assert all(p.heard == ["mix", "tokens", "features", "terms", "after"] for p in parts)


def test_the_method_and_every_technique_hear_of_a_step(monkeypatch):
    made, parts = loud()
    heard = []
    monkeypatch.setattr(made.model.method, "after_step", lambda *args: heard.append(args))
    batch = made.batch(made.mixed_rows())
    made.model.after_step(batch, None, made.clock())
    assert len(heard) == 1
    assert all(part.heard == ["after"] for part in parts)


def test_weights_pass_through_all_techniques():
    made, _ = loud()
    found = made.model.begin_epoch(made.clock(), made.context)
    torch.testing.assert_close(found, 1.5 * balanced_weights(made.labels))


def test_what_techniques_learn_is_trained_at_the_full_rate():
    made, parts = loud()
    groups = made.model.param_groups()
    assert any(p is parts[0].learnt for params, scale in groups if scale == 1 for p in params)


def test_a_method_without_classifier_gets_one_that_is_trained_by_labels():
    made = bench(MethodSpec.parse("gcd+mcc"))
    made.begin()
    model: Composed = made.model
    step = made.loss()
    labels = made.labels[made.mixed_rows()].repeat(2)
    weight = F.normalize(model.auxiliary.weight, dim=1)
    logits = F.normalize(step.features, dim=1) @ weight.T / 0.1
    torch.testing.assert_close(step.logits, logits)
    expected = F.cross_entropy(logits[labels >= 0], labels[labels >= 0])
    torch.testing.assert_close(step.terms["auxiliary"], expected)
    held = {id(p) for params, _ in model.param_groups() for p in params}
    assert id(model.auxiliary.weight) in held
