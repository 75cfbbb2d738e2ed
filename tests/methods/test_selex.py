from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
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

from gcdbench.ops.distance_losses import contrast_by_score, euclidean_distances

ARRAYS, SCALARS = load_golden("next_selex")
ours = module_of("selex")
NEAR = {"rtol": 1e-5, "atol": 2e-6}
HEAD = {"head.projector.mlp.": "mlp.", "head.last_layer.weight": "last_layer.weight_v"}
LADDERS = ("5_3", "5_3_unbalanced", "8_8", "1_2", "7_1")
STEPS = ("train_main", "train_large_norm", "train_odd_dim", "train_all_labelled")


@pytest.mark.parametrize(
    "case", ["mixed", "slice", "distinct", "one_row", "identical_views", "40rows"]
)
def test_the_supervised_contrast_matches_the_original(case):
    given = part(ARRAYS, f"sup_{case}__")
    z = given["features"].transpose(0, 1).flatten(0, 1).clone().requires_grad_()
    labels = given["labels"].repeat(2)
    (gaps,) = euclidean_distances(z)
    loss = contrast_by_score(-gaps / 0.07, labels[:, None] == labels)
    loss.backward()
    near = {"rtol": 5e-5, "atol": 2e-5}  # of distances that are made by products
    assert_near(loss, SCALARS[f"sup_{case}"]["loss"], **near)
    assert_near(z.grad.unflatten(0, (2, -1)).transpose(0, 1), given["grad"], **near)


@pytest.mark.parametrize("case", ["s0.0", "s0.1", "s0.5", "s1.0", "t05", "one_image"])
def test_the_smoothed_contrast_matches_the_original(case):
    given, settings = part(ARRAYS, f"nce_{case}__"), SCALARS[f"nce_{case}"]
    z = given["features"].clone().requires_grad_()
    (gaps,) = euclidean_distances(F.normalize(z, dim=1))
    scores = -gaps / settings["temperature"]
    loss = ours.smoothed_contrast(scores, given["confusion"], share=settings["smoothing"])
    loss.backward()
    assert_near(loss, settings["loss"], **NEAR)
    assert_near(z.grad, given["grad"], **NEAR)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("case", LADDERS)
def test_the_rungs_match_the_original(case, aligned):
    given, settings = part(ARRAYS, f"hier_{case}__"), SCALARS[f"hier_{case}"]
    groups = {
        len(given[name].unique()): given[name].long()
        for name in given
        if name.startswith("old_proto_groups")
    }
    rungs = ours.climb(
        F.normalize(given["feats"], dim=1),
        visible(given["targets"], given["labelled"]),
        settings["n_old"],
        settings["n_new"],
        limited=not settings["unbalanced"],
        aligned=aligned,
        max_iter=10,
        random=np.random.RandomState(settings["numpy_seed"]),
        group=lambda _, number: groups[number],  # those of one version of scikit-learn
    )
    assert [len(rung.centers) for rung in rungs] == settings["clusters"]
    for number, rung in enumerate(rungs):
        name = f"derived_aligned_level{number}" if aligned and number else f"pred_level{number}"
        assert torch.equal(rung.labels, given[name].long())
        assert_near(rung.centers, given[f"proto_level{number}"], **NEAR)


def test_the_ladder_halves_old_and_new_clusters():
    assert ours.rung_sizes(100, 100) == [(n, n) for n in (100, 50, 25, 12, 6, 3, 1)]
    assert [
        len(ours.rung_sizes(*sizes)) for sizes in ((98, 98), (50, 50), (80, 20), (341, 342))
    ] == [
        7,
        6,
        7,
        9,
    ]


def selex(case):
    given, settings = part(ARRAYS, f"{case}__"), SCALARS[case]
    old, new = settings["num_labeled_classes"], settings["num_unlabeled_classes"]
    method = make_method(
        "selex",
        dim=12,
        classes=old + new,
        old=old,
        labels=visible(given["mem_targets"], given["mem_labelled"]),
        smoothing=settings["unsupervised_smoothing"],
        hidden_dim=16,
        bottleneck_dim=8,
        out_dim=len(given["init.last_layer.weight_v"]),
    )
    load_heads(method, part(given, "init."), HEAD)
    for number in range(len(method.clusters)):
        clusters = given[f"pred_level{number}"].long()  # misread by the original: take as given
        method.clusters[number] = clusters
        method.radii[number] = ours.half_gaps(given[f"proto_level{number}"])[clusters]
    return method, given, settings


@pytest.mark.parametrize("case", STEPS)
def test_training_steps_match_the_original(case):
    method, given, settings = selex(case)
    optimizer = make_sgd(method, epochs=1, **type(method).train_defaults)
    place = {int(name): position for position, name in enumerate(given["mem_ids"])}
    for number, expected in enumerate(settings["total"]):
        index = torch.tensor([place[int(name)] for name in given[f"step{number}_ids"]])
        labels = visible(given[f"step{number}_labels"], given[f"step{number}_mask_lab"])
        batch = make_batch(given[f"step{number}_views"].flatten(0, 1), labels, index)
        radii = torch.stack([batch.per_view(rung) for rung in method.radii[:, index]])
        far = ours.far_pairs(batch.images, radii)
        apart = ~torch.eye(len(far), dtype=torch.bool)
        assert_near(far[apart], given[f"step{number}_confusion"][apart], **NEAR)
        optimizer.zero_grad()
        step = method.step(batch, clock(0, 1))
        sup, *rungs = settings["sup_terms"][number]
        weighted = sum(2.0 ** -(i + 1) * value for i, value in enumerate(rungs))
        near = {"rtol": 5e-5, "atol": 5e-6}
        assert_near(step.terms["contrast"], 0.65 * settings["unsup"][number], **near)
        assert_near(step.terms["sup_contrast"], 0.175 * sup, **near)
        assert_near(step.terms["rung_contrast"], 0.175 * weighted, **near)
        assert_near(step.loss, expected, **near)
        step.loss.backward()
        optimizer.step()
    after = part(given, "after.")
    assert_near(method.head.last_layer.weight, after["last_layer.weight_v"], atol=1e-5)
    for name, value in method.head.projector.mlp.named_parameters():
        assert_near(value, after[f"mlp.{name}"], atol=1e-5)


@pytest.mark.parametrize("case", ["train_main", "train_odd_dim"])
def test_the_radii_match_the_original(case):
    given = part(ARRAYS, f"{case}__")
    levels = [name for name in given if name.startswith("proto_level")]
    for number in range(len(levels)):
        radii = ours.half_gaps(given[f"proto_level{number}"])
        assert_near(radii, given[f"step0_radii_level{number}"], **NEAR)


def test_a_pair_is_far_by_the_radius_of_the_second_rows_cluster():
    v, radii = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[0.4, 0.6, 0.9], [2.0, 0.1, 0.1]])
    # distances: 1 from 0 to 1, 2 from 1 to 2, 3 from 0 to 2; diameters of columns, by rung
    finest = torch.tensor([[0, 0, 1], [1, 0, 1], [1, 1, 0.0]])  # 0.8, 1.2, 1.8
    coarse = torch.tensor([[0, 1, 1], [0, 0, 1], [0, 1, 0.0]])  # 4, 0.2, 0.2
    expected = (finest + coarse / 2) / 1.5
    found = ours.far_pairs(v, radii)
    torch.testing.assert_close(found, expected / expected.sum(1), rtol=1e-5, atol=1e-6)


def test_pairs_that_are_nowhere_far_apart_leave_the_loss_finite():
    method, given, _ = selex("train_tiny_norm")  # 0/0 in the original
    labels = visible(given["step0_labels"], given["step0_mask_lab"])
    batch = make_batch(given["step0_views"].flatten(0, 1), labels, torch.arange(len(labels)))
    assert method.step(batch, clock(0, 1)).loss.isfinite()
