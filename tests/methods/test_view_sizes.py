"""Techniques that mix images, with methods whose views are of several sizes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gcdbench.core import registry
from gcdbench.core.config import build
from gcdbench.errors import UserError
from gcdbench.experiment.plan import Request, make_cells
from gcdbench.training.conformance import Bench
from gcdbench.training.method import Batch, Clock, Task

PROBE = Path(__file__).parents[1] / "plugins" / "probe_crops.py"
CROPS = ["strong", "strong", "small", "small"]
CLOCK = Clock(epoch=0, step=0, epochs=2, steps_per_epoch=2, seed=0)
LABELS = torch.tensor([0, 1, -1, -1])


@pytest.fixture(autouse=True)
def probe(monkeypatch):
    monkeypatch.setattr(registry, "_plugins", {kind: {} for kind in registry.KINDS})
    registry.add_plugin(PROBE)


def mixed(technique: str, share: float, monkeypatch) -> tuple[Batch, Batch]:
    """Return a batch of two sizes before and after; neighbours are partners."""
    cls = registry.load("technique", technique)
    task = Task(4, 2, LABELS, epochs=2, steps_per_epoch=2, seed=0)
    place = f"gcdbench.methods.techniques.{technique}"
    swap = torch.tensor([1, 0, 3, 2])
    monkeypatch.setattr(f"{place}.partners_within", lambda *_, **__: swap)
    monkeypatch.setattr(f"{place}.draw_beta", lambda *_, **__: torch.tensor([share]))
    views = tuple(torch.rand(4, 3, side, side) for side in (8, 8, 4, 4))
    batch = Batch(views, LABELS, torch.arange(4))
    return batch, cls(build(cls.Config, {}, technique), task, None).mix(batch, CLOCK)


def test_mixup_blends_views_of_every_size(monkeypatch):
    batch, after = mixed("mixup", 0.75, monkeypatch)
    for before, view in zip(batch.views, after.views, strict=True):
        torch.testing.assert_close(view, 0.75 * before + 0.25 * before[[1, 0, 3, 2]])
    torch.testing.assert_close(after.targets[0], torch.tensor([0.75, 0.25, 0, 0]))


def test_cutmix_cuts_the_same_part_of_views_of_every_size(monkeypatch):
    centre = torch.full((2, 1), 0.5)
    monkeypatch.setattr("gcdbench.methods.techniques.cutmix.draw_uniform", lambda *_, **__: centre)
    batch, after = mixed("cutmix", 0.75, monkeypatch)  # half of each side is cut
    for before, view in zip(batch.views, after.views, strict=True):
        expected, side = before.clone(), before.shape[-1]
        inside = slice(side // 4, 3 * side // 4)
        expected[..., inside, inside] = before[[1, 0, 3, 2]][..., inside, inside]
        assert torch.equal(view, expected)
    torch.testing.assert_close(after.targets[1], torch.tensor([0.25, 0.75, 0, 0]))


@pytest.mark.parametrize("technique", ["mixup", "cutmix", "mixstyle", "efdm", "sfa"])
def test_a_step_with_crops_and_a_technique_can_be_trained(technique):
    bench = Bench.of(f"probe_crops+{technique}")
    assert len({view.shape[-1] for view in bench.batch(bench.mixed_rows()).views}) == 2
    bench.loss().loss.backward()
    assert bench.model.method.classifier.weight.grad.isfinite().all()


def test_blends_of_patches_are_refused_when_the_views_differ_in_size():
    def plan(**config):
        settings = {"uno": config}
        return make_cells(
            Request("drawshift", ("uno+pmtrans",), ("line+solid",), (0,), assignments=settings)
        )

    assert plan()
    sentence = r"pmtrans cannot be applied to uno with the views strong, strong, small, small: it"
    with pytest.raises(UserError, match=sentence):
        plan(views=CROPS)


def test_a_recording_of_several_sizes_is_refused():
    bench = Bench.of("probe_crops")
    views = bench.batch(bench.mixed_rows()).images
    with bench.model.backbone.recording(), pytest.raises(UserError, match="several sizes"):
        bench.model.backbone(views)
