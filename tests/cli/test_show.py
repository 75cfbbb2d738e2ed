"""What ``gcdbench show`` says."""

from __future__ import annotations

import re

from gcdbench.cli import show as describe
from gcdbench.cli.main import main
from gcdbench.core.registry import available, get
from gcdbench.report import paper_numbers


def test_a_method_is_shown_with_settings_sources_and_the_papers_numbers(capsys):
    assert main(["show", "method", "hilo"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"num_domains +2 +released; only one domain is known", text)
    assert re.search(
        r"CUB-C +Original 56\.8 / 54\.0 / 60\.3 +Corrupted 52\.0 / 53\.6 / 50\.5", text
    )
    assert "Real+Painting" in text
    assert "add --suite NAME" in text
    assert f"({len(get('method', 'hilo').path.read_text().splitlines())} lines)" in text


def test_every_method_technique_and_dataset_can_be_shown(capsys):
    for kind in ("method", "technique", "dataset"):
        for name in available(kind):
            assert main(["show", kind, name]) == 0
    assert "unknown" not in capsys.readouterr().err


def test_a_method_that_the_paper_does_not_have_has_no_numbers_of_it():
    assert describe.paper_results("somebody_elses") == ""


def test_impossible_triples_are_marked():
    rows = [*paper_numbers.triples("ssb_c"), *paper_numbers.triples("domainnet")]
    known = {paper_numbers.title(name): name for name in paper_numbers.order()}
    expected = dict.fromkeys(known.values(), 0)
    for row in rows:
        if row.impossible and row.variant == "" and row.method in known:
            expected[known[row.method]] += 1
    assert sum(expected.values()) > 0
    shown = {
        name: describe.paper_results(name).partition("triple):")[2].count("!") for name in expected
    }
    assert shown == expected


def test_size_and_cost_are_counted_on_a_suite(capsys, tmp_path):
    words = ["show", "method", "gcd", "--suite", "drawshift", "--results", str(tmp_path)]
    assert main(words) == 0
    text = capsys.readouterr().out
    size = re.search(r"size  ([\d.]+) M trained parameters \(([\d.]+) M .*, ([\d.]+) M in", text)
    trained, backbone, heads = map(float, size.groups())
    assert abs(trained - backbone - heads) < 0.011
    assert 0 < backbone < trained
    assert re.search(r"cost  \d+ k images in 15 epochs, [\d.]+e12 FLOPs, \? on one A100", text)
