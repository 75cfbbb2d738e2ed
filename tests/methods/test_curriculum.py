from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.paths import GOLDEN as _GOLDEN

from gcdbench.core import registry
from gcdbench.core.config import build
from gcdbench.core.method_spec import MethodSpec
from gcdbench.training.conformance import CHECKS, Bench, tiny_backbone
from gcdbench.training.method import Clock, FitContext, PoolFeatures, Task, balanced_weights, seeded
from gcdbench.training.weights import trained_state

GOLDEN = _GOLDEN / "hilo_golden.npz"
SMALL = {"simgcd": {"hidden_dim": 16, "projection_dim": 8}}
PRESETS = {"toy_ssbc": "ssb-c", "toy_domainnet": "domainnet"}


class Model:
    def __init__(self):
        self.backbone = tiny_backbone()


def make(labels, **values):
    cls = registry.load("technique", "curriculum")
    task = Task(4, 2, labels, epochs=200, steps_per_epoch=1, seed=0)
    return cls(build(cls.Config, values, "curriculum"), task, Model())


def clock(epoch, epochs=200):
    return Clock(epoch, epoch, epochs, 1, 0)


def toy(**values):
    """Return the reference's toy pool: 3 labelled images, 6 of D^a, 11 of D^b."""
    technique = make(torch.tensor([0] * 3 + [-1] * 17), **values)
    technique.shifted[9:] = True
    return technique


def weights_at(technique, epoch, epochs=200):
    before = balanced_weights(technique.task.labels)
    return technique.weights(before, clock(epoch, epochs), None)


@pytest.mark.parametrize("epoch", [0, 80, 81, 199])
@pytest.mark.parametrize("name", PRESETS)
def test_the_weights_equal_the_paper_s_rule(name, epoch):
    with np.load(GOLDEN) as arrays:
        expected = torch.from_numpy(arrays[f"curriculum/{name}_epoch{epoch}"])
    torch.testing.assert_close(weights_at(toy(preset=PRESETS[name]), epoch), expected)


def test_the_released_order_is_reversed():
    released = toy(preset="released")
    assert (weights_at(released, 80)[9:] == 0.05).all()
    assert (weights_at(released, 81)[9:] == 0).all()


def test_the_switch_scales_with_the_length_of_the_run():
    late = [bool(weights_at(toy(), epoch, epochs=10)[-1] > 0) for epoch in range(10)]
    assert late == [False] * 5 + [True] * 5


def test_near_images_are_drawn_as_often_as_labelled_ones():
    weights = weights_at(toy(), 0)
    assert weights[:3].sum() == pytest.approx(float(weights[3:9].sum()))


def services_with(features, labels):
    """Serve features of images that lie in the store in another order than in the pool."""
    n = len(labels)
    place = torch.randperm(n, generator=torch.Generator().manual_seed(3))
    taps, hidden = torch.empty_like(features), labels < 0
    taps[place] = features
    store_labels = torch.empty_like(labels)
    store_labels[place] = labels
    store = PoolFeatures(taps, {1: taps}, store_labels, place[~hidden], place[hidden], place)
    return FitContext(lambda: store, lambda *purpose: seeded(0, *purpose))


def test_the_other_domain_is_found_by_clustering_early_features():
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([1, -1, -1, 0, -1, -1, 1, -1, -1, -1])
    shifted = torch.tensor([0, 0, 1, 0, 1, 0, 0, 1, 1, 0]).bool()
    centre = torch.where(
        shifted[:, None], torch.tensor([1.0, -1, 0, 0]), torch.tensor([1.0, 1, 0, 0])
    )
    features = centre + 0.1 * torch.randn(10, 4, generator=generator)
    technique = make(labels)
    technique.begin_fit(technique.task, services_with(features, labels))
    assert torch.equal(technique.shifted, shifted)


def test_clusters_are_state_that_a_checkpoint_keeps():
    bench = Bench(MethodSpec.parse("simgcd+curriculum"), SMALL)
    bench.begin()
    assert torch.equal(
        trained_state(bench.model)["_techniques.curriculum.shifted"],
        bench.model.techniques["curriculum"].shifted,
    )
    assert bench.model.techniques["curriculum"].shifted.any()


@pytest.mark.parametrize("labels", [torch.full((6,), -1), torch.zeros(6, dtype=torch.long)])
def test_a_pool_of_one_kind_is_left_as_it_was(labels):
    technique = make(labels)
    technique.begin_fit(technique.task, None)
    torch.testing.assert_close(weights_at(technique, 0), balanced_weights(labels))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_it_keeps_the_contract_over_another_method(check):
    check(lambda: Bench(MethodSpec.parse("simgcd+curriculum"), SMALL))
