from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.paths import GOLDEN

from gcdbench.nn.heads import ProjectionHead, Prototypes
from gcdbench.ops import universal_adaptation as universal
from gcdbench.ops.losses import cross_entropy_on
from gcdbench.ops.transport import sinkhorn, unbalanced_transport
from gcdbench.ops.universal_adaptation import (
    adaptive_filling,
    detect_common,
    nearest_neighbours,
    private_class_loss,
)

REGIMES = ["pos", "neg", "half"]
REJECTED = 6  # the original's label of rows that are not confident
BATCH = slice(-20, None)


def load(name):
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        return {key: torch.from_numpy(np.asarray(arrays[key])) for key in arrays.files}


@pytest.fixture(scope="module")
def ot():
    return load("base_uniot_ot")


@pytest.fixture(scope="module")
def pcd():
    return load("base_uniot_pcd")


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("regime", REGIMES)
def test_detection_on_the_originals_plan_matches_the_original(ot, regime):
    plan = ot[f"{regime}_uot_plan_1e-4"]
    found = detect_common(plan / plan.sum())
    labels = found.labels.where(found.confident, REJECTED)
    assert torch.equal(labels, ot[f"{regime}_ccd_all_conf_label"])
    assert torch.equal(labels[BATCH], ot[f"{regime}_ccd_conf_label"])
    assert torch.equal(found.common.nonzero()[:, 0], ot[f"{regime}_ccd_all_high_conf_id"])
    assert torch.equal(
        found.labels.where(found.common, REJECTED)[BATCH], ot[f"{regime}_ccd_high_conf_label"]
    )
    torch.testing.assert_close(
        found.class_mass.float(), ot[f"{regime}_ccd_new_beta"], rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("regime", REGIMES)
def test_filling_and_what_is_detected_then_match_the_original(ot, regime, generator, monkeypatch):
    drawn = ot[f"{regime}_fill_select_id"]
    monkeypatch.setattr(universal, "draw_integers", lambda high, count, **_: drawn[:count])
    filled = adaptive_filling(
        ot[f"{regime}_feat"], ot[f"{regime}_proto"], generator=generator, stop="pot"
    )
    torch.testing.assert_close(filled, ot[f"{regime}_fill_newsim"], rtol=1e-5, atol=1e-5)
    assert len(filled) == 60 + ot[f"{regime}_fill_fake_size"]
    found = detect_common(unbalanced_transport(filled, stop="pot"))
    assert torch.equal(
        found.labels.where(found.confident, REJECTED)[BATCH], ot[f"{regime}_filled_conf_label"]
    )
    assert torch.equal(found.common[BATCH].nonzero()[:, 0], ot[f"{regime}_filled_high_conf_id"])
    torch.testing.assert_close(
        found.class_mass.float(), ot[f"{regime}_filled_new_beta"], rtol=1e-4, atol=1e-5
    )
    uniform = torch.full((6,), 1 / 6, dtype=torch.float64)
    torch.testing.assert_close(
        0.7 * uniform + 0.3 * found.class_mass, ot[f"{regime}_beta_mu0.7"], rtol=1e-4, atol=1e-5
    )


def test_filling_makes_both_sides_equally_many(ot, generator):
    for regime in REGIMES:
        filled = adaptive_filling(ot[f"{regime}_feat"], ot[f"{regime}_proto"], generator=generator)
        assert ((filled.amax(1) > 0.7).double().mean() - 0.5).abs() < 0.25
        assert torch.equal(filled[-60:], ot[f"{regime}_feat"] @ ot[f"{regime}_proto"].T)


def test_nothing_is_filled_where_nothing_can_be_copied(generator):
    prototypes = torch.eye(4)[:2]
    features = torch.eye(4)[2:]  # at right angles to all prototypes: no row is confident
    filled = adaptive_filling(features, prototypes, generator=generator)
    assert torch.equal(filled, torch.zeros(2, 2))


def projector_of(pcd):
    projector = ProjectionHead(
        24, hidden_dim=20, out_dim=16, layers=2, activation=torch.nn.ReLU, init_std=None
    )
    names = ("proj_w0", "proj_b0", "proj_w1", "proj_b1")
    projector.load_state_dict(
        {k: pcd[n] for k, n in zip(projector.state_dict(), names, strict=True)}
    )
    return projector


def test_neighbours_match_the_original_once_the_batch_is_taken_out_of_the_memory(pcd):
    features = F.normalize(projector_of(pcd)(pcd["raw_t"]), dim=1)
    torch.testing.assert_close(features, pcd["norm_feat_t"], rtol=1e-5, atol=1e-6)
    kept = ~torch.isin(pcd["queue_ids"], pcd["ids_t"])
    neighbours = nearest_neighbours(
        features, pcd["ids_t"], pcd["queue_feat"][kept], pcd["queue_ids"][kept]
    )
    torch.testing.assert_close(neighbours, pcd["neighbour_feat"], rtol=1e-5, atol=1e-6)


def test_an_image_is_not_its_own_neighbour_but_may_be_one_of_others():
    memory = F.normalize(torch.tensor([[1.0, 0.1], [-1.0, 0.2]]), dim=1)
    features = F.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.3], [0.0, 1.0]]), dim=1)
    ids, memory_ids = torch.tensor([7, 8, 9]), torch.tensor([7, 5])
    neighbours = nearest_neighbours(features, ids, memory, memory_ids)
    torch.testing.assert_close(neighbours[0], features[1])
    torch.testing.assert_close(neighbours[1], memory[0])


def test_gradients_reach_neighbours_in_the_batch_but_not_the_memory():
    features = F.normalize(torch.tensor([[1.0, 0.0], [1.0, 0.1], [-1.0, 1.0]]), dim=1)
    features.requires_grad_()
    memory = F.normalize(torch.tensor([[-1.0, 0.9]]), dim=1).requires_grad_()
    ids = torch.arange(3)
    nearest_neighbours(features, ids, memory, torch.tensor([9])).sum().backward()
    assert features.grad.tolist() == [[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]
    assert memory.grad is None or not memory.grad.any()


def test_the_private_class_loss_matches_the_original(pcd):
    features = pcd["norm_feat_t"].clone().requires_grad_()
    loss = private_class_loss(features, pcd["neighbour_feat"], pcd["fill_feat"], pcd["clu_proto"])
    torch.testing.assert_close(loss, pcd["loss_pcd"], rtol=1e-5, atol=1e-5)
    loss.backward()
    assert features.grad.any()


def test_the_assignment_behind_it_matches_the_original(pcd):
    rows = torch.cat([pcd["norm_feat_t"], pcd["neighbour_feat"], pcd["fill_feat"]])
    q = sinkhorn(rows @ pcd["clu_proto"].T)
    torch.testing.assert_close(q, normalise_rows(pcd["Q_tilde"]), rtol=1e-4, atol=1e-5)


def normalise_rows(q):
    return q / q.sum(1, keepdim=True)


def test_the_supervised_loss_of_uniot_matches_the_original(pcd):
    head = Prototypes(16, 5)
    head.load_state_dict({"weight": pcd["src_proto"]})
    logits = head(projector_of(pcd)(pcd["raw_s"])) / pcd["temp"].item()
    loss = cross_entropy_on(logits, pcd["y_s"])
    torch.testing.assert_close(loss, pcd["loss_cls"], rtol=1e-5, atol=1e-5)


def test_the_private_class_loss_of_no_rows_is_zero():
    features, prototypes = torch.eye(4).requires_grad_(), torch.eye(4)[:3]
    loss = private_class_loss(features[:0], features[:0], torch.eye(4), prototypes)
    loss.backward()
    assert loss.item() == 0.0
    assert not features.grad.any()
