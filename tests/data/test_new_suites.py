"""Every suite of cross-domain discovery is listed and runs end to end on a small tree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import more_trees
from helpers.data_verbs import call

from gcdbench.cli.main import main
from gcdbench.core.suites import Suite, suites

SUITES = (
    *("pacs", "office-home", "terra-incognita", "vlcs", "domainnet-dg"),
    *("cifar100", "cifar100-c", "herbarium-19", "clevr-4"),
)


def tree(suite: str, root: Path, trees) -> None:
    name = suite.replace("-", "_")
    if name in more_trees.DOMAINS:
        more_trees.domain_folders(root, name)
    elif suite == "domainnet-dg":
        trees.domainnet(classes=90, each=3)
    elif suite.startswith("cifar100"):
        more_trees.cifar100(root, each=10 if suite.endswith("-c") else 2)
    elif suite == "herbarium-19":
        more_trees.herbarium19(root, each=1)
    else:
        more_trees.clevr4(root)


def test_the_new_suites_are_listed(capsys):
    assert set(SUITES) <= set(suites())
    assert main(["list", "suites"]) == 0
    text = capsys.readouterr().out
    assert all(f"{suite} " in text for suite in SUITES)


@pytest.mark.parametrize("suite", SUITES)
def test_info_and_stats_know_the_datasets_of_a_new_suite(suite, trees, capsys):
    tree(suite, trees.root, trees)
    datasets = Suite.load(suite).datasets
    source = next(iter(datasets.values()))["source"]
    assert call("info", source, "--data-root", trees.root) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{source}: ")
    assert "on disk   no" not in text
    if source == "folder":
        assert call("info", suite, "--data-root", trees.root) == 0
        text = capsys.readouterr().out
        assert "https://" in text
        assert "on disk   " in text
        assert "on disk   no" not in text
    assert call("stats", "--suite", suite, "--json", "--data-root", trees.root) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["dataset"] for row in rows] == list(datasets)
    assert all(row["labelled_images"] and row["unlabelled_images"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_a_new_suite_runs_quickly_from_end_to_end(suite, trees, tmp_path, capsys):
    tree(suite, trees.root, trees)
    first = next(iter(Suite.load(suite).datasets))
    arguments = ["run", "--suite", suite, "--quick", "--methods", "simgcd", "--seeds", "0"]
    arguments += ["--datasets", first, "--data-root", str(trees.root)]
    arguments += ["--set", "backbone.name=embedded", "--set", "simgcd.hidden_dim=64"]
    assert main([*arguments, "--results", str(tmp_path / "results")]) == 0
    (path,) = (tmp_path / "results").rglob("record.json")
    record = json.loads(path.read_text())
    assert record["dataset"] == first
    assert all(0 <= one["all"] <= 1 for one in record["sets"].values())
    assert "| 1 | SimGCD |" in capsys.readouterr().out
