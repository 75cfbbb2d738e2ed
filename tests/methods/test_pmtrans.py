from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers.bench import bench

from gcdbench.core.method_spec import MethodSpec


@pytest.fixture
def made():
    made = bench(MethodSpec.parse("simgcd+pmtrans"))
    made.begin()
    return made


def technique(made):
    (layer,) = made.model.techniques.values()
    return layer


def test_nothing_is_recalled_before_something_was_seen(made):
    hidden = (made.labels < 0).nonzero().squeeze(1)[:5]
    _, confidence = technique(made).recall(torch.randn(5, 48), hidden)
    assert confidence.tolist() == [0.0] * 5


def test_classes_are_the_votes_of_the_nearest_other_images(made):
    layer, generator = technique(made), torch.Generator().manual_seed(0)
    images = len(layer.seen)
    layer.seen[:] = torch.rand(images, generator=generator) < 0.7
    layer.features_seen[:] = F.normalize(torch.randn(images, 48, generator=generator), dim=1)
    layer.classes_seen[:] = torch.rand(images, 6, generator=generator)
    hidden = (made.labels < 0).nonzero().squeeze(1)
    features = layer.features_seen + 0.1 * torch.randn(images, 48, generator=generator)
    classes, confidence = layer.recall(features, hidden)
    for own in range(images):
        others = [i for i in range(images) if i != own and layer.seen[i]]
        cosine = F.cosine_similarity(features[own], layer.features_seen[others])
        nearest = [others[i] for i in cosine.argsort(descending=True)[:5]]
        votes = layer.classes_seen[nearest].mean(0)
        assert classes[own] == votes.argmax()
        torch.testing.assert_close(confidence[own], votes.max())


def test_the_memory_holds_the_unlabelled_images_of_the_steps_so_far(made):
    layer = technique(made)
    step = made.update()
    rows = made.mixed_rows()
    hidden = rows[made.labels[rows] < 0]
    assert set(layer.place[hidden].tolist()) == set(layer.seen.nonzero().squeeze(1).tolist())
    first = F.normalize(step.features[: len(rows)].detach(), dim=1)[made.labels[rows] < 0]
    torch.testing.assert_close(layer.features_seen[layer.place[hidden]], first)
    # p^2 over its sum in the batch: every class that is used at all is shared out once
    torch.testing.assert_close(layer.classes_seen.sum(0), torch.ones(6))


def test_the_shape_of_the_blend_is_learnt_and_the_weights_are_not(made):
    made.update()
    layer = technique(made)
    assert layer.raw_shape.grad.abs().min() > 0
    assert layer.raw_weights.grad is None


def test_unlabelled_images_alone_are_not_blended(made):
    rows = (made.labels < 0).nonzero().squeeze(1)[:8]
    terms = made.loss(rows).terms
    assert terms["pmtrans.features"] == 0
    assert "pmtrans.labels" not in terms
