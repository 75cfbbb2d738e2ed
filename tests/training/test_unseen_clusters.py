"""Unseen domains can have clusters of their own."""

from __future__ import annotations

import json

import pytest

from gcdbench.cli.main import main

SUITE = """
extends: drawshift
datasets:
  line:
    source: drawshift
    config: {{shifted: [solid], unseen: {unseen}, protocol: domain-generalisation}}
"""


@pytest.mark.slow
def test_an_unseen_domain_is_clustered_by_the_training_or_on_its_own(tmp_path, capsys):
    sets = {}
    for unseen in ("trained", "own"):
        suite = tmp_path / f"{unseen}.yaml"
        suite.write_text(SUITE.format(unseen=unseen))
        words = ["run", "--suite", str(suite), "--methods", "simgcd", "--seeds", "0", "--quick"]
        words += ["--set", "train.draws_per_epoch=32", "--results", str(tmp_path / unseen)]
        assert main(words) == 0
        (path,) = (tmp_path / unseen).rglob("record.json")
        record = json.loads(path.read_text())
        assert {n: s["role"] for n, s in record["sets"].items()} == {
            "line": "source",
            "solid": "unseen",
            "color": "unseen",
            "quickdraw": "unseen",
        }
        sets[unseen] = record["sets"]
    assert sets["own"]["line"] == sets["trained"]["line"]
    assert sets["own"]["solid"]["all"] != sets["trained"]["solid"]["all"]
