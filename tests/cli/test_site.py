from __future__ import annotations

import shutil

import pytest
from helpers.paths import ROOT

from gcdbench.cli.main import main

RECORDS = ROOT / "results" / "drawshift" / "records"


@pytest.fixture
def some_records(tmp_path):
    """Return a folder with two committed records of each of two seeds."""
    if not RECORDS.is_dir():
        pytest.skip("needs the source tree")
    for method in ("simgcd", "gcd"):
        for seed in (0, 1):
            (folder,) = (RECORDS / "line+solid" / method).glob(f"seed{seed}-*")
            shutil.copytree(folder, tmp_path / "runs" / "line+solid" / method / folder.name)
    return tmp_path / "runs"


def test_the_site_has_all_recorded_seeds(some_records, tmp_path, capsys):
    words = ["site", "--results", str(some_records), "--out", str(tmp_path / "site")]
    assert main([*words, "--suites", "drawshift", "--as-recorded"]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "site" / "index.html")
    rows = (tmp_path / "site" / "suites" / "drawshift.csv").read_text().splitlines()
    columns = rows[0].split(",")
    first = dict(zip(columns, rows[1].split(","), strict=True))
    assert first["seeds"] == "2"
    assert {p.stem for p in (tmp_path / "site" / "methods").glob("*.html")} == {"gcd", "simgcd"}
    assert (tmp_path / "site" / "references.bib").read_text().count("@misc{") == 2


def test_the_same_records_give_the_same_site(some_records, tmp_path):
    for name in ("one", "two"):
        words = ["site", "--results", str(some_records), "--out", str(tmp_path / name)]
        assert main([*words, "--suites", "drawshift", "--as-recorded"]) == 0
    files = [p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*.*")]
    assert all(
        (tmp_path / "one" / f).read_bytes() == (tmp_path / "two" / f).read_bytes() for f in files
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--results", "nowhere"], "nowhere: no such folder"),
        (["--results", "."], "no suite has a record"),
        (["--results", ".", "--suites", "drawshft"], "did you mean 'drawshift'"),
        (["--results", ".", "--suites", "drawshift"], "no records of suite drawshift"),
    ],
)
def test_mistakes_get_a_sentence(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["site", *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_suite_without_baselines_does_not_stop_the_others(some_records, tmp_path, capsys):
    words = ["site", "--results", str(some_records), "--as-recorded", "--out", str(tmp_path / "s")]
    baselines = RECORDS.parent / "baselines.csv"
    assert main([*words, "--baselines", str(baselines)]) == 0  # drawshift-search has none
    assert "raw pixels" in (tmp_path / "s" / "suites" / "drawshift.html").read_text()

    other = tmp_path / "other.csv"
    other.write_text(baselines.read_text().replace("\ndrawshift", "\nelsewhere"))
    capsys.readouterr()
    assert main([*words, "--baselines", str(other)]) == 2
    assert "other.csv: no row of drawshift" in capsys.readouterr().err
