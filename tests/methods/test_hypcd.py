from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.golden import (
    assert_near,
    clock,
    load_golden,
    make_batch,
    make_method,
    module_of,
    part,
    visible,
)
from torch import nn

ARRAYS, SCALARS = load_golden("next_hypcd")
ours = module_of("hypcd")
MAPS = part(ARRAYS, "maps__")
CURVATURES = (0.05, 0.1, 1.0)


def hyp(**config):
    method = make_method("hypcd", dim=12, classes=7, old=4, longest=2.0, **config)
    method.classifier.load_state_dict(part(ARRAYS, "init__cls."))
    return method


def stand_in():
    """Return the linear layer that stands in for the backbone."""
    layer = nn.Linear(12, 12)
    layer.load_state_dict(part(ARRAYS, "init__lin."))
    return layer


@pytest.mark.parametrize("c", CURVATURES)
def test_the_maps_of_the_ball_match_the_original(c):
    points = ours.exp0(MAPS["u"], c)
    assert_near(points, MAPS[f"expmap0_c{c}"])
    inside = ours.project(points, c)
    assert_near(inside, MAPS[f"projected_c{c}"])
    assert_near(ours.ball_matvec(MAPS["W"], inside, c), MAPS[f"matvec_c{c}"])
    found = ours.mobius_add(inside, inside.flip(0), c)
    assert_near(found, MAPS[f"mobius_add_rows_reversed_c{c}"], atol=1e-5)


@pytest.mark.parametrize("c", CURVATURES)
def test_the_distances_match_the_original(c):
    found = ours.pairwise_distances(MAPS[f"projected_c{c}"], curvature=c)
    others = ~torch.eye(len(found), dtype=torch.bool)  # there, rounding shows on the diagonal
    assert_near(found[others], MAPS[f"dist_c{c}"][others], rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("longest", [1.2, 2.0, 2.3])
def test_features_enter_the_ball_as_in_the_original(longest):
    x = MAPS["u"].clone().requires_grad_()
    points = ours.to_ball(x, curvature=0.1, longest=longest)
    assert_near(points, MAPS[f"topoincare_c0.1_cr{longest}"])
    (points * MAPS["probe"]).sum().backward()
    assert_near(x.grad, MAPS[f"topoincare_grad_cr{longest}"], atol=5e-6)


def test_the_classifier_matches_the_original():
    given = part(ARRAYS, "hyplinear__")
    layer = ours.HyperbolicLinear(5, 4, curvature=0.1, generator=torch.Generator())
    layer.load_state_dict({"weight": given["weight"], "bias": given["bias"]})
    x = given["x"].clone().requires_grad_()
    out = layer(x)
    assert_near(out, given["out"])
    (out * given["probe"]).sum().backward()
    for found, name in ((x, "x"), (layer.weight, "weight"), (layer.bias, "bias")):
        assert_near(found.grad, given[f"grad_{name}"], rtol=1e-4, atol=1e-5)


def mixed_step(epoch=1):
    """Return the features and the step of the reference, whose share of distances is 2 of 5."""
    given = part(ARRAYS, "mixed__")
    batch = make_batch(given["inputs"], visible(given["labels"], given["mask_lab"]))
    features = stand_in()(given["inputs"])
    features.retain_grad()
    method = hyp(teacher_start=0.07, teacher_end=0.07)
    z = method.project(features)
    logits = method.classifier(z)
    return method, features, z, logits, method.terms(z, logits, batch, clock(epoch, 5))


def test_the_terms_match_the_original():
    given, expected = part(ARRAYS, "mixed__"), SCALARS["mixed"]["steps"][0]
    _, _, z, logits, terms = mixed_step()
    assert_near(z, given["out_ball"])
    assert_near(logits, given["out_logits"])
    pairs = {
        "distil": 0.65 * expected["distill"],
        "entropy": 0.65 * expected["memax"],
        "classify": 0.35 * expected["cls"],
        "contrast": 0.65 * (0.6 * expected["infonce_angle"] + 0.4 * expected["infonce_dist"]),
        "sup_contrast": 0.35 * (0.6 * expected["supcon_angle"] + 0.4 * expected["supcon_dist"]),
    }
    for name, value in pairs.items():
        assert_near(terms[name], value, rtol=2e-6)
    assert_near(sum(terms.values()), expected["total"], rtol=2e-6)


def test_the_gradients_match_the_original():
    given = part(ARRAYS, "mixed__")
    method, features, _, _, terms = mixed_step()
    sum(terms.values()).backward()
    assert_near(features.grad, given["grad_total_feat"], atol=1e-5)
    assert_near(method.classifier.weight.grad, given["grad_total_weight"], atol=1e-5)
    assert_near(method.classifier.bias.grad, given["grad_total_bias"], atol=1e-5)


def test_three_training_steps_match_the_original_with_its_optimisers():
    given, backbone, method = part(ARRAYS, "steps3__"), stand_in(), hyp(teacher_warmup=2)
    flat = [{"params": [backbone.bias], "weight_decay": 0.0}]
    sgd = torch.optim.SGD(
        [{"params": [backbone.weight]}, *flat], lr=0.1, momentum=0.9, weight_decay=5e-5
    )
    for number, expected in enumerate(SCALARS["steps3"]["steps"]):
        labels = visible(given[f"labels_{number}"], given[f"mask_lab_{number}"])
        batch = make_batch(given[f"inputs_{number}"], labels)
        z = method.project(backbone(given[f"inputs_{number}"]))
        loss = sum(method.terms(z, method.classifier(z), batch, clock(number)).values())
        assert_near(loss, expected["total"], rtol=1e-5)
        for group in sgd.param_groups:
            group["lr"] = expected["lr_backbone"]
        sgd.zero_grad()
        method.zero_grad()
        loss.backward()
        sgd.step()
        method.after_step(batch, None, clock(number))
    after = part(given, "after_")
    for name, value in (*backbone.state_dict().items(),):
        assert_near(value, after[f"lin.{name}"], atol=1e-5)
    for name, value in method.classifier.state_dict().items():
        assert_near(value, after[f"cls.{name}"], atol=1e-5)


def test_the_share_of_distances_is_the_originals():
    method = hyp()
    found = [method.distance_share(clock(epoch, 200)) for epoch in range(200)]
    np.testing.assert_allclose(found, ARRAYS["sched__lambda_0_200"], rtol=1e-6)


def test_equal_points_have_distance_zero_and_finite_gradients():
    z = torch.full((4, 3), 0.4).requires_grad_()
    distances = ours.pairwise_distances(z, curvature=0.1)
    distances.sum().backward()
    assert_near(distances, torch.zeros(4, 4), atol=1e-6)
    assert z.grad.isfinite().all()


def test_the_runs_optimiser_does_not_move_the_classifier():
    method = hyp()
    scales = {id(p): scale for group, scale in method.param_groups() for p in group}
    assert {scales[id(p)] for p in method.classifier.parameters()} == {0.0}


def test_the_classifiers_optimiser_is_adam_and_passes_over_what_is_not_finite():
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(3, 2, generator=generator), torch.randn(3, generator=generator)]
    mine, theirs = ([torch.nn.Parameter(x.clone()) for x in start] for _ in range(2))
    adam, reference = ours.Adam(9), torch.optim.Adam(theirs, lr=0.3)
    for number in range(5):
        for own, other in zip(mine, theirs, strict=True):
            own.grad = torch.randn(own.shape, generator=generator)
            other.grad = own.grad.clone()
        adam.step(mine, 0.3)
        reference.step()
        if number == 2:
            mine[0].grad = torch.full((3, 2), torch.inf)
            adam.step(mine, 0.3)
    for own, other in zip(mine, theirs, strict=True):
        assert_near(own, other, rtol=1e-5)
