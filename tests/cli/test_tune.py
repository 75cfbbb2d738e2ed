"""The verbs tune and reproduce selection, on invented records; the slow tests train."""

from __future__ import annotations

import csv
import json
from argparse import Namespace
from dataclasses import replace

import numpy as np
import pytest
from helpers.tuned_records import write

from gcdbench.cli.main import main
from gcdbench.cli.tuning import study
from gcdbench.data.tuning.folds import hide_classes
from gcdbench.experiment import heartbeat, plan, records
from gcdbench.experiment.plan import Request
from gcdbench.experiment.tuning.samplers import flat_settings
from gcdbench.experiment.tuning.search import Search

TUNE = [
    "tune",
    "--suite",
    "drawshift",
    "--methods",
    "simgcd",
    "--datasets",
    "line+solid",
    "--quick",
]
STUDY = ["reproduce", "selection", "--scale", "embedded", "--quick"]


def searches(budget=2, seeds=(0, 1)):
    request = Request("drawshift", quick=True)
    return [Search(request, "simgcd", "line+solid", seed, budget) for seed in seeds]


@pytest.fixture
def recorded(tmp_path):
    """Write the draws of two searches, and the default and tuned cells of three seeds."""
    for one in searches():
        for number, draw in enumerate(one.draws(tmp_path)):
            write(tmp_path, draw.cells[0], seed=10 * one.seed + number)
        draws = one.draws(tmp_path)
        for settings in ({}, one.winner(draws).settings):
            for seed, cell in enumerate(one.final_cells(settings, (0, 1, 2))):
                if not records.is_done(tmp_path, cell):
                    write(tmp_path, cell, seed=100 + 10 * one.seed + seed + bool(settings))
    return tmp_path


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--folds", "9"], "there are 4"),
        (["--budget", "0"], "at least 1"),
        (["--criterion", "accuracy"], "unknown --criterion"),
        (["--show"], "no draw is recorded yet"),
        (["--set", "simgcd.sup_wait=1"], "sup_wait"),
        (["--datasets", "lines"], "unknown dataset"),
    ],
)
def test_a_wrong_request_is_one_sentence(tmp_path, capsys, more, reason):
    assert main([*TUNE, "--results", str(tmp_path), *more]) == 2
    text = capsys.readouterr().err.splitlines()[-1]
    assert text.startswith("gcdbench: ")
    assert reason in text


def test_a_winner_needs_three_seeds(tmp_path, capsys):
    words = [word for word in TUNE if word != "--quick"]
    assert main([*words, "--results", str(tmp_path), "--seeds", "0", "1"]) == 2
    assert "at least 3 seeds" in capsys.readouterr().err


def test_what_is_recorded_is_shown_and_nothing_is_trained(recorded, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*TUNE, "--results", str(recorded), "--budget", "2", "--show"]) == 0
    text = capsys.readouterr().out
    assert text.count("line + solid  SimGCD") == 4  # two searches, in two parts
    assert max(map(len, text.splitlines())) <= 80
    assert "A smoke test, not a result" in text
    assert "SimGCD on line + solid, search 1: draw" in text
    written = (recorded / "tune" / "drawshift-quick.json").read_text()
    rows = json.loads(written, parse_constant=pytest.fail)  # NaN is no JSON
    assert [row["search_seed"] for row in rows] == [0, 1]
    assert [row["budget"] for row in rows] == [2, 2]
    with (recorded / "tune" / "drawshift-quick-draws.csv").open() as file:
        draws = list(csv.DictReader(file))
    assert [row["draw"] for row in draws] == ["0", "1", "0", "1"]
    assert [row["chosen"] for row in draws].count("True") == 2
    for half in (draws[:2], draws[2:]):
        best = max(half, key=lambda row: float(row["hidden"]))
        assert best["chosen"] == "True"


def test_a_finished_search_trains_nothing(recorded, capsys, caplog):
    with caplog.at_level("INFO"):
        assert main([*TUNE, "--results", str(recorded), "--budget", "2"]) == 0
    assert "draws are to be trained" not in caplog.text
    assert "nothing was trained" in capsys.readouterr().err + caplog.text


def test_the_leaderboard_shows_tuned_settings_afterwards(recorded, capsys):
    main([*TUNE, "--results", str(recorded), "--budget", "2", "--show"])
    capsys.readouterr()
    words = ["--methods", "simgcd", "--datasets", "line+solid", "--quick", "--seeds", "0", "1", "2"]
    words += ["--format", "md", "--results", str(recorded)]
    assert main(["leaderboard", "--suite", "drawshift", *words]) == 0
    assert "## Tuned settings" in capsys.readouterr().out


def test_the_study_needs_its_scale(capsys):
    assert main(["reproduce", "selection"]) == 2
    assert "--scale embedded" in capsys.readouterr().err


def study_arguments(**given):
    usual = {"assignments": [], "quick": True, "data_root": None, "datasets": ["line+solid"]}
    return Namespace(**{**usual, "methods": ["simgcd", "gcd"], "budget": 3, **given})


def test_the_study_counts_complete_pairs_only(tmp_path, capsys):
    first, second = study.plan_study(study_arguments())
    for number, draw in enumerate(first.draws(tmp_path)):
        for cell in study._cells(first, draw):
            write(tmp_path, cell, seed=number)
    assert [one.method for one in study.trials([first, second], tmp_path)] == ["simgcd"]
    last = study._cells(second, second.draws(tmp_path)[2])
    for draw in second.draws(tmp_path)[:2]:
        for cell in study._cells(second, draw):
            write(tmp_path, cell, seed=7 + draw.number)
    heartbeat.note_failure(records.cell_folder(tmp_path, last[0]), "Diverged: the loss is nan")
    found = study.trials([first, second], tmp_path)
    assert [(one.method, len(one.target), one.failed) for one in found] == [
        ("simgcd", 3, 0),
        ("gcd", 2, 1),
    ]
    words = ["--budget", "3", "--methods", "simgcd", "gcd", "--datasets", "line+solid", "--show"]
    assert main([*STUDY, *words, "--results", str(tmp_path)]) == 0
    assert "2 of 2 method-dataset pairs complete" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "reproduce").iterdir()}
    ends = (".md", ".csv", ".png", ".pdf", "-draws.csv")
    assert names == {f"selection-embedded-quick{end}" for end in ends}
    with (tmp_path / "reproduce" / "selection-embedded-quick-draws.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["simgcd"] * 3 + ["gcd"] * 2
    assert [float(row["target"]) for row in rows[3:]] == pytest.approx(found[1].target, abs=1e-3)
    assert json.loads(rows[0]["settings"]) == {}
    assert json.loads(rows[1]["settings"]) == flat_settings(first.draws(tmp_path)[1].settings)


@pytest.mark.slow
def test_trained_draws_are_chosen_alike_if_hidden_labels_are_shuffled(tmp_path, monkeypatch):
    def shuffled(problem, fold):
        labels = problem.labels.copy()
        hidden = np.setdiff1d(np.arange(len(labels)), problem.labelled)
        labels[hidden] = np.random.RandomState(1).permutation(labels[hidden])
        return hide_classes(replace(problem, labels=labels), fold)

    found = []
    for name in ("true", "shuffled"):
        plan._problem.cache_clear()
        if name == "shuffled":
            monkeypatch.setattr(plan, "_fold_of", shuffled)
        results = tmp_path / name
        words = ["--budget", "3", "--tune-seeds", "0", "--seeds", "0", "--results", str(results)]
        assert main([*TUNE, *words]) == 0
        (one,) = searches(budget=3, seeds=(0,))
        draws = one.draws(results)
        found.append(([draw.values for draw in draws], one.winner(draws).number))
    plan._problem.cache_clear()
    (values, winner), (others, other) = found
    assert winner == other
    for before, after in zip(values, others, strict=True):
        for name, value in before.items():
            assert (value == after[name]) == (name != "oracle"), name
