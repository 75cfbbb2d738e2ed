from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from helpers.paths import GOLDEN
from torch import nn

from gcdbench.core import registry
from gcdbench.nn.backbone import Encoded
from gcdbench.training.method import Batch, Clock, FitContext, PoolFeatures, Task, seeded

CLASSES, OLD, WIDTH, ROWS, LABELLED = 8, 3, 16, 12, 6
CLOCK = Clock(epoch=0, step=0, epochs=1, steps_per_epoch=1, seed=0)


class Given(nn.Module):
    """A backbone whose images are their features."""

    dim = WIDTH

    def forward(self, images):
        return Encoded(images)


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "base_orca.npz") as arrays:
        return {name: torch.from_numpy(np.asarray(arrays[name])) for name in arrays.files}


@pytest.fixture
def batch(golden):
    labels = torch.cat([golden["target"], torch.full((ROWS - LABELLED,), -1)])
    return Batch(torch.stack([golden["feat"], golden["feat2"]]), labels, torch.arange(ROWS))


def orca(golden, **config):
    """Build the method around the original's classifier."""
    cls = registry.load("method", "orca")
    labels = torch.cat([golden["target"], torch.full((ROWS - LABELLED,), -1)])
    method = cls(cls.Config(**config), Task(CLASSES, OLD, labels, 1, 1, seed=0), Given())
    method.classifier.load_state_dict({"weight": golden["head_weight"].T})
    return method


def services(golden, sweeps=None):
    """Serve the features of the first view; count the sweeps in a list."""
    rows = torch.arange(ROWS)

    def sweep():
        if sweeps is not None:
            sweeps.append(1)
        labels = torch.cat([golden["target"], torch.full((ROWS - LABELLED,), -1)])
        return PoolFeatures(golden["feat"], {}, labels, rows[:LABELLED], rows[LABELLED:], rows)

    return FitContext(sweep, seeded)


@pytest.mark.parametrize("u", ["0.0", "0.1", "0.3", "0.5", "0.9"])
def test_a_step_matches_the_original(golden, batch, u, monkeypatch):
    method = orca(golden)
    method.uncertainty.fill_(float(u))
    drawn = lambda *_, **__: golden["pos_pairs"]  # noqa: E731
    monkeypatch.setattr(sys.modules[type(method).__module__], "positive_partners", drawn)
    step = method.step(batch, CLOCK)
    # the released code leaves out the constant of the divergence from the uniform distribution
    torch.testing.assert_close(
        step.loss - math.log(CLASSES), golden[f"total_u{u}"], rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(step.terms["pairs"], golden["bce_loss"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        step.logits, torch.cat([golden["out"], golden["out2"]]), rtol=1e-5, atol=1e-5
    )


def test_the_uncertainty_is_that_of_the_unlabelled_images_before_the_epoch(golden):
    method = orca(golden)
    method.begin_epoch(CLOCK, services(golden))
    torch.testing.assert_close(method.uncertainty, golden["uncertainty_from_unlabelled"])


def test_measured_in_training_the_uncertainty_needs_one_sweep(golden, batch):
    method, sweeps = orca(golden, measure="training"), []
    method.begin_epoch(CLOCK, services(golden, sweeps))
    torch.testing.assert_close(method.uncertainty, golden["uncertainty_from_unlabelled"])
    for _ in range(3):
        method.step(batch, CLOCK)
    method.uncertainty.zero_()
    method.begin_epoch(CLOCK, services(golden, sweeps))
    # the batches showed the same images as the sweep
    torch.testing.assert_close(method.uncertainty, golden["uncertainty_from_unlabelled"])
    assert len(sweeps) == 1


def test_partners_follow_the_images_and_not_the_order_of_the_batch(golden):
    features = golden["feat"]
    labels = torch.tensor([0] * 8 + [-1] * 4)
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(1))
    method = orca(golden)

    def partners(rows):
        batch = Batch(features[rows].expand(2, -1, -1), labels[rows], rows)
        return rows[method._partners(features[rows], batch, CLOCK)]

    straight, shuffled = partners(torch.arange(ROWS)), partners(order)
    assert torch.equal(straight[order], shuffled)
    assert not torch.equal(straight[:8], straight[:8].sort().values)


def test_every_step_draws_other_partners(golden):
    labels = torch.zeros(ROWS, dtype=torch.long)
    batch = Batch(golden["feat"].expand(2, -1, -1), labels, torch.arange(ROWS))
    method = orca(golden)
    drawn = [
        method._partners(golden["feat"], batch, Clock(0, step, 1, 2, seed=0)) for step in range(2)
    ]
    assert not torch.equal(*drawn)


def test_the_margin_and_the_running_confidence_are_saved(golden, batch):
    method, other = orca(golden), orca(golden)
    method.begin_epoch(CLOCK, services(golden))
    method.step(batch, CLOCK)
    other.load_state_dict(method.state_dict())
    assert torch.equal(other.uncertainty, method.uncertainty)
    assert other.confidence[1] == ROWS - LABELLED


def test_prototypes_start_with_length_one():
    cls = registry.load("method", "orca")
    task = Task(CLASSES, OLD, torch.zeros(1, dtype=torch.long), 1, 1, seed=0)
    method = cls(cls.Config(), task, Given())
    torch.testing.assert_close(method.classifier.weight.norm(dim=1), torch.ones(CLASSES))


def test_soft_targets_share_the_margin(golden, batch):
    method = orca(golden)
    method.uncertainty.fill_(0.3)
    targets = nn.functional.one_hot(batch.labels.clamp(min=0), CLASSES).float()
    mixed = Batch(batch.views, batch.labels, batch.index, targets)
    margin = method.step(mixed, CLOCK).terms["margin"]
    torch.testing.assert_close(margin, golden["margin_ce_u0.3"], rtol=1e-5, atol=1e-5)
