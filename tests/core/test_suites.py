"""The suites on real data: their settings are valid, and they score what the paper scores."""

from __future__ import annotations

import json

import pytest

from gcdbench.cli.main import main
from gcdbench.core.method_spec import MethodSpec
from gcdbench.core.suites import Suite, suites
from gcdbench.data.corruptions import CORRUPTIONS
from gcdbench.experiment.plan import Request, make_cells

OTHERS = ("painting", "sketch", "quickdraw", "clipart", "infograph")


def cells(suite: str, root=None, **request):
    return make_cells(Request(suite, data_root=root, **request))


@pytest.mark.parametrize("name", suites())
def test_a_suite_says_what_it_is_and_names_methods_that_exist(name):
    suite = Suite.load(name)
    assert suite.description
    assert [MethodSpec.parse(text) for text in suite.data["default_methods"]]


@pytest.mark.parametrize("name", suites())
@pytest.mark.parametrize("quick", [False, True])
def test_the_settings_of_a_suite_are_valid(name, quick):
    assert cells(name, quick=quick)


def test_ssb_c_scores_the_original_and_each_corruption_at_each_severity(miniature):
    for cell in cells("ssb-c", miniature, seeds=(0,), methods=("simgcd",)):
        sets = cell.problem().sets
        assert sets["original"].role == "source"
        shifted = {name for name, one in sets.items() if one.role == "shifted"}
        assert shifted == {f"{c}/{s}" for c in CORRUPTIONS for s in range(1, 6)}
        assert len(sets) == 46


def test_ssb_has_no_shift(miniature):
    for cell in cells("ssb", miniature, seeds=(0,), methods=("simgcd",)):
        assert list(cell.problem().sets) == ["original"]


def test_ssb_follows_the_released_weights_of_the_entropy():
    found = {
        c.dataset: c.method_config["entropy_weight"] for c in cells("ssb", methods=("simgcd",))
    }
    assert found == {"cub": 2.0, "scars": 1.0, "fgvc": 1.0}


def test_domainnet_has_five_pairs_with_four_unseen_domains_each(trees):
    trees.domainnet()
    found = cells("domainnet", trees.root, seeds=(0,), methods=("simgcd",))
    assert [cell.dataset for cell in found] == [f"real+{domain}" for domain in OTHERS]
    for cell in found:
        roles = {name: one.role for name, one in cell.problem().sets.items()}
        assert roles.pop("real") == "source"
        assert roles.pop(cell.dataset.removeprefix("real+")) == "shifted"
        assert set(roles.values()) == {"unseen"}
        assert len(roles) == 4
        assert cell.problem().augment == "jitter"


def test_domainnet_all_trains_on_a_fifth_of_every_other_domain(trees):
    trees.domainnet()
    (cell,) = cells("domainnet-all", trees.root, seeds=(0,), methods=("simgcd",))
    problem = cell.problem()
    assert {n for n, one in problem.sets.items() if one.role == "shifted"} == set(OTHERS)
    assert len(problem.unlabelled) == len(problem.sets["real"].rows) + 5 * 8 * 2


def test_another_labelled_share_is_another_cell(miniature, tmp_path):
    text = "datasets: {cub: {source: cub, config: {shift: none, labelled_share: %s}}}\n"
    keys = set()
    for share in ("0.5", "0.25"):
        path = tmp_path / "mine.yaml"
        path.write_text(text % share)
        (cell,) = cells(str(path), miniature, seeds=(0,), methods=("simgcd",))
        keys.add(cell.fingerprints()["problem"])
    assert len(keys) == 2


@pytest.mark.parametrize("suite", ["ssb-c", "domainnet", "imagenet-100", "cifar10-c"])
def test_without_data_a_run_says_in_one_sentence_what_is_missing(
    suite, tmp_path, capsys, monkeypatch
):
    monkeypatch.delenv("GCDBENCH_DATA", raising=False)
    results = tmp_path / "results"
    arguments = ["run", "--suite", suite, "--results", str(results), "--methods", "simgcd"]
    assert main(arguments) == 2
    message = capsys.readouterr().err.strip().splitlines()
    assert len(message) == 1
    assert "--data-root or GCDBENCH_DATA" in message[0]
    assert main([*arguments, "--data-root", str(tmp_path)]) == 2
    message = capsys.readouterr().err.strip().splitlines()
    assert len(message) == 1
    assert f"is not there: expected {tmp_path}" in message[0]
    assert not list(results.rglob("seed*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("suite", "dataset"),
    [("ssb-c", "cub-c"), ("ssb-c", "scars-c"), ("ssb-c", "fgvc-c"), ("drawshift-c", "line-c")],
)
def test_a_miniature_goes_end_to_end_through_all_variants(miniature, tmp_path, suite, dataset):
    arguments = ["run", "--suite", suite, "--datasets", dataset, "--methods", "simgcd"]
    arguments += ["--data-root", str(miniature), "--results", str(tmp_path), "--seeds", "0"]
    assert main([*arguments, "--quick", "--set", "backbone.name=embedded"]) == 0
    (path,) = tmp_path.rglob("record.json")
    record = json.loads(path.read_text())
    assert len(record["sets"]) == 46
    mean = sum(s["all"] for n, s in record["sets"].items() if "/" in n) / 45
    assert record["summary"]["corrupted"]["all"] == pytest.approx(mean)
