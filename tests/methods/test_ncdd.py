from __future__ import annotations

import math

import torch
from helpers.bench import small_config

from gcdbench.core import registry
from gcdbench.core.method_spec import MethodSpec
from gcdbench.training.conformance import Bench


def made(**values):
    config = small_config("method", "ncdd") | values
    bench = Bench(MethodSpec.parse("ncdd"), {"ncdd": config})
    bench.begin()
    return bench


def test_the_information_of_unlabelled_images_is_what_is_maximised():
    bench = made(marginal_weight=1.0, sup_weight=0.0)
    step = bench.loss()
    hidden = (bench.labels[bench.mixed_rows()] < 0).repeat(2)
    p = step.logits[hidden].softmax(1).double()
    information = (p * (p / p.mean(0)).log()).sum(1).mean()
    found = step.terms["certainty"] + step.terms["spread"]
    torch.testing.assert_close(found.double(), math.log(6) - information, rtol=1e-4, atol=1e-5)


def test_labelled_images_have_no_part_in_the_information():
    bench = made()
    terms = bench.loss((bench.labels >= 0).nonzero().squeeze(1)[:8]).terms
    assert terms["certainty"] == terms["spread"] == 0
    assert terms["classify"] > 0


def test_it_says_that_it_is_a_re_creation():
    info = registry.get("method", "ncdd")
    assert "re-creation" in info.summary
    assert all(note.startswith("ours") or ", ours" in note for note in info.notes.values())
