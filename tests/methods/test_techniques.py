"""Every technique over every method: it trains, or it is refused with a reason."""

from __future__ import annotations

import pytest
import torch
from helpers.bench import bench

from gcdbench.core import registry
from gcdbench.core.method_spec import MethodSpec
from gcdbench.errors import UserError

METHODS, TECHNIQUES = list(registry.available("method")), list(registry.available("technique"))


def spelled(method: str, technique: str) -> MethodSpec:
    own = registry.get("method", method).constants.get("techniques", ())
    alone = method + "".join(f"-{name}" for name in own)
    return MethodSpec.parse(f"{alone}+{technique}")


@pytest.mark.parametrize("technique", TECHNIQUES)
@pytest.mark.parametrize("method", METHODS)
def test_a_technique_trains_over_a_method_or_is_refused_with_a_reason(method, technique):
    needs = set(registry.get("technique", technique).constants.get("requires", ()))
    if "projection" in needs - set(registry.get("method", method).constants["provides"]):
        with pytest.raises(UserError, match=f"{technique} cannot be applied to {method}: it needs"):
            spelled(method, technique)
        return
    spec = spelled(method, technique)
    made = bench(spec)
    made.begin()
    for _ in range(3):
        assert made.update().loss.isfinite()


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_a_technique_has_no_part_in_the_evaluation(technique):
    plain, laid = bench(MethodSpec.parse("simgcd")), bench(spelled("simgcd", technique))
    laid.model.eval()
    with torch.no_grad():
        a, b = plain.compute_features().features, laid.compute_features().features
        torch.testing.assert_close(a, b)
        first = plain.model.predict(plain.compute_features(), plain.context)
        assert torch.equal(first, laid.model.predict(laid.compute_features(), laid.context))


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_a_technique_leaves_the_rows_order_without_influence(technique):
    spec = spelled("simgcd", technique)
    one, other = bench(spec), bench(spec)
    rows = one.mixed_rows()
    one.begin()
    other.begin()
    first, second = one.loss(rows).terms, other.loss(rows.flip(0)).terms
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("technique", ["mixup", "cutmix"])
def test_mixed_labels_are_distributions_and_the_larger_share_names_the_row(technique):
    made = bench(MethodSpec.parse(f"simgcd+{technique}"))
    batch = made.batch(made.mixed_rows())
    mixed = made.model.techniques[technique].mix(batch, made.clock())
    torch.testing.assert_close(mixed.targets.sum(1), torch.ones(len(batch)))
    labelled = mixed.labelled
    assert torch.equal(labelled, batch.labelled)
    assert (mixed.targets[labelled].argmax(1) == mixed.labels[labelled]).all()
    assert torch.equal(made.labels[mixed.index], mixed.labels)
    assert not torch.equal(mixed.views, batch.views)


def test_a_curriculum_of_ease_admits_more_images_and_keeps_half_labelled():
    made = bench(MethodSpec.parse("simgcd+cl"))
    made.begin()
    hidden = made.labels < 0
    shares = []
    for epoch in range(4):
        made.number = epoch * 3
        weights = made.model.begin_epoch(made.clock(), made.context)
        shares.append(float((weights[hidden] > 0).double().mean()))
        assert weights[hidden].sum() == pytest.approx(float(weights[~hidden].sum()))
    assert shares[0] < shares[1] < shares[-1] == 1.0
