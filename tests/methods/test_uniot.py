from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.paths import GOLDEN
from torch import nn

from gcdbench.core import registry
from gcdbench.core.method_spec import MethodSpec
from gcdbench.nn.backbone import Encoded
from gcdbench.nn.memory import Ring
from gcdbench.ops import universal_adaptation as universal
from gcdbench.ops.kmeans.api import assign, semi_supervised_kmeans
from gcdbench.training.conformance import CHECKS, Bench
from gcdbench.training.method import Batch, Clock, FitContext, PoolFeatures, Task, seeded

REGIMES = ("pos", "neg", "half")
FIRST = Clock(epoch=0, step=0, epochs=1, steps_per_epoch=200, seed=0)
LATE = replace(FIRST, step=101)  # the first step with the common-class term


class Given(nn.Module):
    """A backbone whose images are their features."""

    def __init__(self, dim):
        super().__init__()
        self.dim = dim
        self.block = nn.Linear(dim, dim)  # something to train

    def forward(self, images):
        return Encoded(images)


def load(name):
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        return {name: torch.from_numpy(np.asarray(arrays[name])) for name in arrays.files}


@pytest.fixture(scope="module")
def pcd():
    return load("base_uniot_pcd")


@pytest.fixture(scope="module")
def ot():
    return load("base_uniot_ot")


def uniot(dim, task, **config):
    cls = registry.load("method", "uniot")
    return cls(cls.Config(**config), task, Given(dim))


def unprojected(prototypes, num_new=2, labels=None, **config):
    """Build a method whose embedding is the normalised feature, with these old classes."""
    old, dim = prototypes.shape
    labels = torch.full((60,), -1) if labels is None else labels
    task = Task(old + num_new, old, labels, epochs=1, steps_per_epoch=200, seed=0)
    method = uniot(dim, task, hidden_dim=2 * dim, projection_dim=dim, **config)
    first, first_bias, second, second_bias = method.projector.parameters()
    with torch.no_grad():  # relu(x) - relu(-x) is x
        first.copy_(torch.cat([torch.eye(dim), -torch.eye(dim)]))
        second.copy_(torch.cat([torch.eye(dim), -torch.eye(dim)], dim=1))
        first_bias.zero_()
        second_bias.zero_()
        method.known.weight.copy_(prototypes)
    return method


def test_the_supervised_and_the_private_class_term_match_the_original(pcd, monkeypatch):
    labels = torch.cat([pcd["y_s"], torch.full((8,), -1)])
    task = Task(8, 5, labels, epochs=1, steps_per_epoch=1, seed=0)
    method = uniot(24, task, hidden_dim=20, projection_dim=16, clusters_per_class=1.25)
    with torch.no_grad():
        names = ("proj_w0", "proj_b0", "proj_w1", "proj_b1")
        for parameter, name in zip(method.projector.parameters(), names, strict=True):
            parameter.copy_(pcd[name])
        method.known.weight.copy_(pcd["src_proto"])
        method.clusters.weight.copy_(pcd["clu_proto"])
    # the original hides remembered images of the batch from all rows, we from their own row only
    elsewhere = ~torch.isin(pcd["queue_ids"], pcd["ids_t"])
    method.queue = Ring(int(elsewhere.sum()), 16)
    method.queue.push(pcd["queue_feat"][elsewhere], pcd["queue_ids"][elsewhere])
    monkeypatch.setattr(method, "_remembered", lambda count, generator: pcd["fill_feat"])

    views = torch.cat([pcd["raw_s"], pcd["raw_t"]])[None]
    ids = torch.cat([1000 + torch.arange(8), pcd["ids_t"]])
    terms = method.step(Batch(views, labels, ids), FIRST).terms
    torch.testing.assert_close(terms["classify"], pcd["loss_cls"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(terms["private"], 0.1 * pcd["loss_pcd"], rtol=1e-5, atol=1e-5)
    assert terms["common"] == 0


@pytest.mark.parametrize("regime", REGIMES)
def test_the_common_class_term_learns_what_the_original_detects(ot, regime, monkeypatch):
    features = ot[f"{regime}_feat"]
    method = unprojected(ot[f"{regime}_proto"], stop="pot", mass_momentum=0.7)
    monkeypatch.setattr(method, "_remembered", lambda count, generator: features[:40])
    drawn = ot[f"{regime}_fill_select_id"]
    monkeypatch.setattr(universal, "draw_integers", lambda high, count, **_: drawn[:count])
    batch = Batch(features[None, 40:], torch.full((20,), -1), torch.arange(20))
    term = method.step(batch, LATE).terms["common"]

    rows = ot[f"{regime}_filled_high_conf_id"]
    labels = ot[f"{regime}_filled_high_conf_label"][rows]
    cosines = features[40:][rows] @ ot[f"{regime}_proto"].T
    expected = 0.1 * F.cross_entropy(cosines / 0.1, labels)
    torch.testing.assert_close(term, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(method.class_mass, ot[f"{regime}_beta_mu0.7"], rtol=1e-4, atol=1e-5)


def test_the_mass_of_the_classes_stays_uniform_by_default(ot):
    method = unprojected(ot["pos_proto"])
    batch = Batch(ot["pos_feat"][None], torch.full((60,), -1), torch.arange(60))
    method.queue.push(ot["pos_feat"], torch.arange(60))
    method.step(batch, LATE)
    assert (method.class_mass == 1 / 6).all()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract_holds_with_the_common_class_term(check):
    small = {"hidden_dim": 32, "projection_dim": 16, "detect_after": -1, "mass_momentum": 0.9}
    check(lambda: Bench(MethodSpec.parse("uniot"), {"uniot": small}))


def test_the_backbone_learns_at_a_tenth_of_the_rate(ot):
    method = unprojected(ot["pos_proto"])
    scales = {id(p): scale for params, scale in method.param_groups() for p in params}
    assert len(scales) == len(list(method.parameters()))
    for name, parameter in method.named_parameters():
        assert scales[id(parameter)] == (0.1 if name.startswith("backbone") else 1.0)


def test_the_memory_starts_full_of_unlabelled_images(ot):
    labels = torch.full((60,), -1)
    labels[::3] = 0
    method = unprojected(ot["pos_proto"], labels=labels, queue=25)
    rows = torch.arange(60)
    store = PoolFeatures(ot["pos_feat"], {}, labels, rows[::3], rows[labels == -1], rows)
    method.begin_fit(FitContext(lambda: store, seeded))
    assert len(method.queue.ids.unique()) == 25
    assert (labels[method.queue.ids] == -1).all()
    torch.testing.assert_close(method.queue.rows, ot["pos_feat"][method.queue.ids])


def test_after_a_step_prototypes_have_length_one_and_the_memory_knows_the_batch(ot):
    method = unprojected(ot["pos_proto"])
    labels = torch.tensor([0, -1, -1])
    batch = Batch(ot["pos_feat"][:3].expand(2, -1, -1), labels, torch.tensor([7, 9, 8]))
    step = method.step(batch, FIRST)
    with torch.no_grad():
        method.known.weight.mul_(3)
        method.clusters.weight.mul_(0.2)
        for weight in method.projector.parameters():
            weight.zero_()  # what is remembered was seen by the step, before the update
    method.after_step(batch, step, FIRST)
    for weight in (method.known.weight, method.clusters.weight):
        torch.testing.assert_close(weight.norm(dim=1), torch.ones(len(weight)))
    assert method.queue.ids[:3].tolist() == [8, 9, -1]
    torch.testing.assert_close(method.queue.rows[:2], ot["pos_feat"][[2, 1]])


OLD, NEW, EACH = 4, 3, 30


def scattered(seed=0):
    """Return classes on a sphere (OLD + NEW, 24), images of them (n, 24), and their classes."""
    generator = torch.Generator().manual_seed(seed)
    classes = torch.linalg.qr(torch.randn(24, 24, generator=generator)).Q[: OLD + NEW]
    truth = torch.arange((OLD + NEW) * EACH) % (OLD + NEW)
    noise = 0.08 * torch.randn(len(truth), 24, generator=generator)
    return classes, F.normalize(classes[truth] + noise, dim=1), truth


def predicted(**config):
    """Predict the scattered images; the last third of them are not in the training pool."""
    classes, features, truth = scattered()
    method = unprojected(classes[:OLD], num_new=NEW, **config)
    rows = torch.arange(len(features))
    labelled = rows[(truth < OLD) & (rows < 20)]
    unlabelled = rows[20 : 2 * len(rows) // 3]
    labels = torch.full_like(truth, -1).index_copy(0, labelled, truth[labelled])
    store = PoolFeatures(features, {}, labels, labelled, unlabelled, rows[20:])
    with torch.no_grad():
        return method.predict(store, FitContext(lambda: store, seeded)), store, truth[20:]


@pytest.mark.parametrize("config", [{}, {"transport_rows": 45}, {"stop": "pot"}])
def test_old_classes_are_recognised_and_new_ones_clustered(config):
    found, _, truth = predicted(**config)
    old = truth < OLD
    assert torch.equal(found[old], truth[old])
    pairs = torch.stack([truth[~old], found[~old]]).unique(dim=1)
    assert pairs[0].tolist() == list(range(OLD, OLD + NEW))
    assert sorted(pairs[1].tolist()) == list(range(OLD, OLD + NEW))


def test_predictions_by_semi_supervised_k_means_are_those_of_the_shared_one():
    found, store, _ = predicted(prediction="sskm")
    rows, known = store.features[store.unlabelled], store.features[store.labelled]
    clusters = semi_supervised_kmeans(
        rows, known, store.labels[store.labelled], OLD + NEW, n_init=5, max_iter=20
    )
    assert torch.equal(found, assign(store.features[store.queries], clusters.centers))


def test_images_of_old_classes_alone_need_no_clusters():
    classes, features, truth = scattered()
    method = unprojected(classes[:OLD], num_new=NEW)
    rows = torch.arange(len(features))
    old = rows[truth < OLD]
    sure = torch.ones(len(rows), dtype=torch.bool)
    detect = sys.modules[type(method).__module__].Detection
    method._detect = lambda n, generator, tolerance: detect(
        (n @ classes[:OLD].T).argmax(1), sure[: len(n)], sure[: len(n)], torch.ones(OLD)
    )
    store = PoolFeatures(features, {}, torch.full_like(truth, -1), rows[:0], old, old)
    with torch.no_grad():
        found = method.predict(store, FitContext(lambda: store, seeded))
    assert torch.equal(found, truth[old])
