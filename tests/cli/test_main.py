from __future__ import annotations

import json
import re
import subprocess
import sys

import pandas as pd
import pytest

import gcdbench.__main__ as entry
from gcdbench.cli import completion
from gcdbench.cli.main import _parser, main

QUICK = ["--suite", "drawshift", "--quick", "--datasets", "line+solid", "--methods", "simgcd"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--suite", "drawshift", "--methods", "simgdc"], "did you mean 'simgcd'"),
        (["run", "--suite", "drawshfit"], "did you mean 'drawshift'"),
        (["run", "--suite", "drawshift", "--datasets", "line"], "unknown dataset 'line'"),
        (["run", "--suite", "none.yaml"], "cannot read none.yaml"),
        (["run", "--suite", "drawshift", "--set", "train.lrr=1"], "did you mean 'lr'"),
        (["run", "--suite", "drawshift", "--set", "train.lr=fast"], "train.lr: expected a number"),
        (["run", "--suite", "drawshift", "--set", "train.lr=-1"], "lr must be above 0"),
        (["run", "--suite", "drawshift", "--set", "lr=1"], "write section.key=value"),
        (["run", "--suite", "drawshift", "--set", "orca.x=1"], "unknown section 'orca'"),
        (["run", "--suite", "drawshift", "--methods", "simgcd+simgcd"], "unknown technique"),
        (["run", "--suite", "drawshift", "--seeds", "one"], "expected a whole number"),
        (["run", "--suite", "drawshift", "--plugin", "none.py"], "--plugin none.py: no such file"),
        (["run", "--suite", "drawshift", "--set", "backbone.weights=no.pth"], "no file no.pth"),
        (
            ["plan", "--suite", "drawshift", "--set", "train.momentum=1.5"],
            "momentum must be at",
        ),
        (
            ["plan", "--suite", "drawshift", "--set", "train.weight_decay=-1"],
            "weight_decay must",
        ),
        (
            ["plan", "--suite", "drawshift", "--set", "train.lr=.inf"],
            "lr must be above 0 and",
        ),
        (["plan", "--suite", "drawshift", "--set", "train.warmup_epochs=-1"], "warmup_epochs must"),
        (["run", "--suite", "drawshift", "--cache-gb", "nan"], "--cache-gb: expected a finite num"),
        (["run", "--suite", "drawshift", "--cache-gb", "inf"], "--cache-gb: expected a finite num"),
        (["run", "--suite", "drawshift", "--cache-gb", "-1"], "--cache-gb: expected a finite numb"),
        (["run", "--suite", "drawshift", "--cache-gb", "x"], "--cache-gb: expected a number, got"),
        (["run", "--suite", "drawshift", "--workers", "-1"], "--workers: expected at least 0"),
        (["run", "--suite", "drawshift", "--jobs", "x"], "--jobs: expected a whole number"),
        (["status", "--suite", "drawshift", "--watch", "-1"], "--watch: expected a finite number"),
        (["status", "--suite", "drawshift", "--watch", "nan"], "--watch: expected a finite number"),
        (["status", "--suite", "drawshift", "--watch", "0"], "--watch: expected a number above 0"),
        (["plan", "--suite", "drawshift", "--results", __file__], "is no folder"),
        (["status", "--suite", "drawshift", "--results", __file__], "is no folder"),
        (["reproduce", "--list", "--results", __file__], "is no folder"),
        (["results", "verify", "nowhere"], "results verify: no folder or pack nowhere"),
        (["results", "verify", __file__], "cannot be read as a pack"),
        (["list", "nothing"], "unknown what 'nothing'"),
        (["fly"], "unknown verb 'fly'"),
        ([], "required"),
    ],
)
def test_a_wrong_request_gets_one_sentence_and_exit_code_2(arguments, sentence, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert out == ""


def test_a_results_folder_that_cannot_be_written_to_is_refused_at_once(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["run", *QUICK, "--results", str(tmp_path / "file" / "runs")]) == 2
    assert "cannot be written to" in capsys.readouterr().err


def test_a_device_without_numbers_is_refused(tmp_path, capsys):
    assert main(["run", *QUICK, "--results", str(tmp_path), "--device", "meta"]) == 2
    assert "--device meta: not available" in capsys.readouterr().err


def test_a_list_of_threads_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")
    assert main(["run", *QUICK, "--results", str(tmp_path), "--jobs", "2"]) == 2
    assert "OMP_NUM_THREADS=2,1: expected one whole number" in capsys.readouterr().err


def test_a_plan_without_data_has_costs_and_no_keys_and_a_run_is_refused(tmp_path, capsys):
    where = ["--results", str(tmp_path / "runs"), "--data-root", str(tmp_path), "--seeds", "0", "1"]
    cells = ["--suite", "ssb-c", "--datasets", "cub-c", "--methods", "simgcd", *where]
    assert main(["plan", *cells, "--json"]) == 0
    out, err = capsys.readouterr()
    assert [(row["key"], row["done"]) for row in json.loads(out)] == [(None, False)] * 2
    assert all(row["images"] > 1000 for row in json.loads(out))
    assert err.count("data not there: ") == 1
    assert main(["plan", *cells]) == 0
    assert "2 cells, 0 done; " in capsys.readouterr().out
    assert main(["run", *cells]) == 2


def test_ctrl_c_while_the_command_line_is_imported_is_one_sentence(monkeypatch, capsys):
    class Interrupting:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "gcdbench.cli.main":
                raise KeyboardInterrupt

    monkeypatch.setattr(sys, "meta_path", [Interrupting, *sys.meta_path])
    monkeypatch.delitem(sys.modules, "gcdbench.cli.main")
    assert entry.main() == 130
    said = "gcdbench: interrupted; run the same command again to continue\n"
    assert capsys.readouterr().err == said


def test_a_leaderboard_without_records_says_how_to_make_them(tmp_path, capsys):
    assert main(["leaderboard", "--suite", "drawshift", "--results", str(tmp_path)]) == 2
    assert "gcdbench run --suite drawshift" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["methods", "techniques", "datasets", "suites", "backbones"])
def test_listings_are_for_people_and_for_programs(what, capsys):
    assert main(["list", what]) == 0
    people = capsys.readouterr().out.splitlines()
    assert main(["list", what, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == len(people) > 0
    assert all(row["summary"] for row in rows)


def test_a_run_writes_the_leaderboard_and_a_second_one_trains_nothing(tmp_path, capsys, caplog):
    arguments = ["run", *QUICK, "--results", str(tmp_path)]
    assert main(arguments) == 0
    assert "SimGCD" in capsys.readouterr().out
    table = pd.read_csv(tmp_path / "leaderboard" / "drawshift-quick.csv")
    assert {"line", "solid"} <= set(table["set"])
    assert {"All", "Old", "New"} == set(table["split"])
    assert (tmp_path / "leaderboard" / "drawshift-quick-bars.png").stat().st_size > 5000
    records = list(tmp_path.glob("*/*/*/record.json"))
    before = [path.stat().st_mtime_ns for path in records]

    assert main(["plan", *QUICK, "--results", str(tmp_path), "--json"]) == 0
    assert [row["done"] for row in json.loads(capsys.readouterr().out)] == [True]
    assert main(arguments) == 0
    assert "nothing was trained" in capsys.readouterr().err
    assert [path.stat().st_mtime_ns for path in records] == before
    assert len(records) == 1


def test_the_help_fits_a_screen(capsys):
    with pytest.raises(SystemExit) as done:
        main(["--help"])
    assert done.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["rnu"], "unknown verb 'rnu'; did you mean 'run'?"),
        (["list", "metods"], "did you mean 'methods'?"),
        (["run", "--suite", "drawshift", "--metods", "gcd"], "did you mean --methods?"),
        (["data", "verfy"], "did you mean 'verify'?"),
        (["show", "method", "hlio"], "did you mean 'hilo'?"),
        (["check", "hiloo"], "did you mean 'hilo'?"),
        (["run", "--suite", "drawshift", "--datasets", "line+solidd"], "did you mean 'line+solid'"),
        (["leaderboard", "--suite", "drawshift", "--format", "latx"], "did you mean 'latex'?"),
    ],
)
def test_a_misspelt_word_gets_the_nearest_one(words, sentence, capsys):
    assert main(words) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["list", what] for what in ("methods", "suites", "datasets")]
    + [["--help"], ["plot", "--help"]],
)
def test_listing_imports_nothing_heavy(words):
    code = (
        "import sys\n"
        "from gcdbench.cli.main import main\n"
        "try:\n"
        f"    main({words!r})\n"
        "except SystemExit:\n"
        "    pass\n"
        "heavy = {'torch', 'pandas', 'matplotlib', 'scipy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_every_verb_shows_examples_and_they_are_right():
    parser = _parser()
    for name, sub in completion.verbs(parser).choices.items():
        shown = re.findall(r"^  gcdbench (.*?)(?:  .*)?$", sub.format_help(), re.M)
        if name not in ("data", "plot"):
            assert shown, f"{name} has no examples"
        for line in shown:
            assert parser.parse_args(line.split()).verb, line
