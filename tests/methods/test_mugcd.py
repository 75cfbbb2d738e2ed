"""muGCD, a re-creation: by hand, since there is no code to compare it with."""

from __future__ import annotations

import math

import pytest
import torch

from gcdbench.core.method_spec import MethodSpec
from gcdbench.training.conformance import Bench
from gcdbench.training.method import Clock

SMALL = {"hidden_dim": 16, "projection_dim": 8}


def bench(**config):
    made = Bench(MethodSpec.parse("mugcd"), {"mugcd": {**SMALL, **config}})
    made.begin()
    return made


def mugcd(**config):
    return bench(**config).model.method


def test_contrast_comes_first_then_the_teacher():
    method = mugcd(contrast_share=0.5)
    phases = [method.phase(Clock(epoch, epoch, 4, 1, 0)) for epoch in range(4)]
    assert [phase.name for phase in phases] == ["contrast", "contrast", "teach", "teach"]
    assert phases[0].train == ("backbone", "projector")
    assert phases[3].train == ("backbone", "classifier")


def test_each_phase_has_a_cosine_of_its_own():
    def rates(**config):
        method, share = mugcd(contrast_share=0.5, **config), [1, 0.853553, 0.5, 0.146447]
        return [share[e] * method.phase(Clock(e, e, 4, 1, 0)).lr for e in range(4)]

    assert rates() == pytest.approx([1, 0.5, 1, 0.5], rel=1e-5)
    assert rates(schedule="run") == pytest.approx([1, 0.853553, 0.5, 0.146447])


def test_the_teacher_starts_as_its_student_and_follows_it():
    method = mugcd()
    pairs = [
        *zip(method.teacher["head"].parameters(), method.classifier.parameters(), strict=True),
        *zip(method.teacher["backbone"].parameters(), method.backbone.parameters(), strict=True),
    ]
    with torch.no_grad():
        for mine, _ in pairs:
            mine.fill_(2.0)
    before = [theirs.clone() for _, theirs in pairs]
    method.follow(0.75)
    for (mine, theirs), was in zip(pairs, before, strict=True):
        assert torch.equal(theirs, was)
        torch.testing.assert_close(mine, 0.75 * 2.0 + 0.25 * was)
    method.begin_epoch(Clock(3, 9, 4, 3, 0), None)
    assert method.started
    for mine, theirs in pairs:
        torch.testing.assert_close(mine, theirs)


def test_the_momentum_rises_along_half_a_cosine():
    method = mugcd(contrast_share=0.5, momentum=0.6, last_momentum=1.0)
    found = [method.momentum(Clock(t // 10, t, 4, 10, 0)) for t in (20, 29, 39)]
    expected = [0.6, 1 - 0.4 * (1 + math.cos(math.pi * 9 / 19)) / 2, 1.0]
    assert found == pytest.approx(expected)


def test_the_student_of_strong_views_learns_what_the_teacher_says_of_weak_ones():
    made = bench(contrast_share=0.0)
    method, batch = made.model.method, made.batch(made.mixed_rows())
    with torch.no_grad():
        method.teacher["head"].weight.copy_(method.classifier.weight.flip(0))
    clock = Clock(0, 0, 4, 3, 0)
    step = method.step(batch, clock)
    weak, strong = method.encode(batch).cls.detach().chunk(2)
    target = (method.teacher["head"](weak) / 0.07).softmax(1)
    log_p = (method.classifier(strong) / 0.1).log_softmax(1)
    torch.testing.assert_close(step.terms["distil"], -0.65 * (target * log_p).sum(1).mean())
    rows = batch.labelled_rows
    own = -log_p[rows, batch.labels[rows]].mean()
    torch.testing.assert_close(step.terms["classify"], 0.35 * own)
    assert set(step.terms) == {"distil", "entropy", "classify"}
    step.loss.backward()
    assert all(p.grad is None for p in method.teacher.parameters())


def test_predictions_are_the_teachers_once_it_teaches():
    made = bench()
    method, batch = made.model.method, made.batch(made.mixed_rows())
    with torch.no_grad():
        method.teacher["head"].weight.neg_()
    features = torch.randn(3, method.backbone.dim)
    method.eval()
    torch.testing.assert_close(method.classify(features), method.classifier(features) / 0.1)
    method.started.fill_(True)
    torch.testing.assert_close(method.classify(features), -method.classifier(features) / 0.1)
    with torch.no_grad():
        for parameter in method.teacher["backbone"].parameters():
            parameter.mul_(1.5)
    teacher = method.teacher["backbone"](batch.images).cls
    torch.testing.assert_close(method.encode(batch).cls, teacher)
    method.train()
    assert not torch.allclose(method.encode(batch).cls, teacher)
