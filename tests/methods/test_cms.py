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
from scipy.cluster.hierarchy import linkage

from gcdbench.core.settings import TrainConfig
from gcdbench.ops.losses import sup_con
from gcdbench.training.method import FitContext, PoolFeatures, seeded
from gcdbench.training.optimizer import learning_rate

ARRAYS, SCALARS = load_golden("next_cms")
ours = module_of("cms")
NEAR = {"rtol": 1e-5, "atol": 2e-6}
HEAD = {
    "head.projector.mlp.": "img_projection_head.mlp.",
    "head.last_layer.weight": "img_projection_head.last_layer.weight_v",
}
WARD = {"most_rows": 20_000, "groups": 5_000, "seed": 0}


def cms(case, number=24):
    settings = SCALARS[case]
    method = make_method(
        "cms",
        dim=12,
        classes=6,
        old=3,
        labels=torch.full((number,), -1),
        epochs=settings["epochs"],
        neighbours=settings["k"],
        hidden_dim=16,
        bottleneck_dim=8,
        out_dim=12,
    )
    source = "train_e1" if case == "train_e2" else case  # the same inputs
    load_heads(method, part(ARRAYS, f"{source}__init."), HEAD)
    return method, part(ARRAYS, f"{source}__")


@pytest.mark.parametrize(
    "case", ["t025", "t05_a05", "alpha0", "alpha1", "close_views_negative", "two_images"]
)
def test_the_contrast_matches_the_original(case):
    given, settings = part(ARRAYS, f"ms_{case}__"), SCALARS[f"ms_{case}"]
    z = given["features"].clone().requires_grad_()
    loss = ours.mean_shift_contrast(
        z, given["knn"], share=settings["alpha"], temperature=settings["temperature"]
    )
    loss.backward()
    assert_near(loss, settings["loss"], **NEAR)
    assert_near(z.grad, given["grad"], **NEAR)


@pytest.mark.parametrize("case", ["one_image", "zero_shift"])
def test_the_contrast_is_finite_where_the_original_is_not(case):
    given, settings = part(ARRAYS, f"ms_{case}__"), SCALARS[f"ms_{case}"]
    z = given["features"].clone().requires_grad_()
    loss = ours.mean_shift_contrast(
        z, given["knn"], share=settings["alpha"], temperature=settings["temperature"]
    )
    loss.backward()
    assert loss.isfinite()
    assert z.grad.isfinite().all()


@pytest.mark.parametrize("case", ["mixed", "all_distinct", "one_row"])
def test_the_supervised_contrast_is_the_originals(case):
    given = part(ARRAYS, f"sup_{case}__")
    z = given["features"].transpose(0, 1).flatten(0, 1)
    loss = sup_con(z, given["labels"].repeat(2), normalise=False)
    assert_near(loss, SCALARS[f"sup_{case}"]["loss"], **NEAR)


@pytest.mark.parametrize("case", ["train_e1", "train_e2", "train_all_labelled"])
def test_training_steps_match_the_original(case):
    settings, (method, given) = SCALARS[case], cms(case)
    own = part(ARRAYS, f"{case}__")
    config = TrainConfig(epochs=settings["epochs"], **type(method).train_defaults)
    optimizer = make_sgd(method, epochs=settings["epochs"], **type(method).train_defaults)
    per_epoch = len([name for name in given if name.endswith("_views") and "step" in name])
    for number, expected in enumerate(settings["total"]):
        epoch, at = divmod(number, per_epoch)
        if not at:
            views = [given[f"mem{i}_views"] for i in range(3) if f"mem{i}_views" in given]
            method.bank = method.embed(torch.cat([v.flatten(0, 1) for v in views]))
            assert_near(method.bank, own[f"bank_epoch{epoch}"], **NEAR)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(config, epoch)
        labels = visible(given[f"step{at}_labels"], given[f"step{at}_mask_lab"])
        batch = make_batch(given[f"step{at}_views"].flatten(0, 1), labels)
        z = method.embed(batch.images)
        means = ours.neighbour_means(z, method.bank, settings["k"])
        assert_near(z, own[f"step{number}_features"], **NEAR)
        assert_near(means, own[f"step{number}_knn"], **NEAR)
        optimizer.zero_grad()
        step = method.step(batch, clock(epoch, settings["epochs"]))
        assert_near(step.terms["meanshift"], 0.65 * settings["unsup"][number], **NEAR)
        assert_near(step.terms["sup_contrast"], 0.35 * settings["sup"][number], **NEAR)
        assert_near(step.loss, expected, **NEAR)
        step.loss.backward()
        optimizer.step()
    after = part(own, "after.")
    assert_near(method.head.last_layer.weight, after[HEAD["head.last_layer.weight"]], **NEAR)
    for name, value in method.head.projector.mlp.named_parameters():
        assert_near(value, after[f"img_projection_head.mlp.{name}"], **NEAR)


@pytest.mark.parametrize("case", ["ims_bs96", "ims_odd", "ims_duplicates", "ims_not_stopped"])
def test_the_clusters_match_the_original(case):
    given, settings = part(ARRAYS, f"{case}__"), SCALARS[case]
    x, labels = given["x"], visible(given["y"], given["labelled"])
    for which in ("true", "est"):
        found = ours.mean_shift_clusters(
            x,
            labels,
            settings[f"k_{which}"],
            queries=x[:0],
            neighbours=settings["k"],
            share=settings["alpha"],
            rounds=settings["max_rounds"],
            patience=2,
            ward=WARD,
        )
        assert found.round == settings[f"kept_round_{which}"]
        assert torch.equal(found.labels + 1, given[f"pred_kept_{which}"].long())


@pytest.mark.parametrize("case", ["ims_bs96", "ims_odd", "ims_duplicates"])
def test_the_rounds_match_the_original(case):
    given, settings = part(ARRAYS, f"{case}__"), SCALARS[case]
    rounds = given["feats_per_round"]
    for before, after, heights in zip(
        rounds, rounds[1:], given["linkage_heights"][1:], strict=False
    ):
        means = ours.neighbour_means(before, before, settings["k"])
        found = ours.step_towards(before, means, settings["alpha"])
        assert_near(found, after, **NEAR)
        np.testing.assert_allclose(linkage(found.double(), "ward")[:, 2], heights, atol=2e-6)


def test_queries_outside_of_the_pool_take_the_cluster_that_is_near():
    centres = torch.eye(4)
    rows = F.normalize(centres.repeat(6, 1) + 0.05 * torch.randn(24, 4, generator=seeded("x")))
    labels = torch.arange(24) % 4
    hidden = labels.where((torch.arange(24) < 12) & (labels < 2), -1)
    method = make_method("cms", dim=4, classes=4, old=2, labels=hidden, out_dim=4, neighbours=3)
    method.head = torch.nn.Identity()
    all_rows = torch.arange(28)
    pool = PoolFeatures(
        torch.cat([rows, centres]),
        {},
        F.pad(hidden, (0, 4), value=-1),
        all_rows[:24][hidden >= 0],
        all_rows[:24][hidden < 0],
        all_rows[20:],
    )
    found = method.predict(pool, FitContext(lambda: pool, seeded))
    assert found[:4].tolist() == found[4:].tolist()  # the centres come in the order of the classes
    assert len(found.unique()) == 4
