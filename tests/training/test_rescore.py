"""Scores are computed again from stored predictions, and only what differs is written."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from helpers.synthetic_records import record_of, set_scores

from gcdbench.cli.main import main
from gcdbench.experiment import heartbeat, records
from gcdbench.experiment.key import key_of, score_version
from gcdbench.experiment.plan import Request, make_cells
from gcdbench.experiment.record import SetScores, part
from gcdbench.training.scoring.rescore import rescore
from gcdbench.training.scoring.scores import score_predictions


@pytest.fixture(scope="module")
def cell():
    return make_cells(Request("drawshift", ("gcd",), ("line+solid",), (0,), quick=True))[0]


@pytest.fixture(scope="module")
def right(cell):
    """Return predictions and the record that belongs to them."""
    problem, rng = cell.problem(), np.random.RandomState(0)
    preds = {
        name: rng.randint(problem.num_classes, size=len(evaluated.rows)).astype(np.int32)
        for name, evaluated in problem.sets.items()
    }
    found = score_predictions(preds, problem)
    return preds, record_of(
        cell,
        scores=score_version(),
        sets={name: part(SetScores, one) for name, one in found.sets.items()},
        summary={name: part(SetScores, one) for name, one in found.summary.items()},
    )


@pytest.fixture
def write(tmp_path, cell, right):
    """Return a function that writes a changed record and returns its path."""

    def written(**changes):
        preds, record = right
        folder = records.cell_folder(tmp_path, cell)
        return records.write_record(folder, replace(record, **changes), preds)

    return written


def test_a_record_with_the_present_scores_is_not_touched(write, tmp_path):
    path = write()
    before, time = path.read_bytes(), path.stat().st_mtime_ns
    assert [one.kind for one in rescore(tmp_path)] == ["unchanged"]
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, time)


def test_a_record_of_another_version_gets_the_present_one_and_keeps_its_scores(write, tmp_path):
    path = write(scores="older")
    before = records.read_record(path)
    (one,) = rescore(tmp_path)
    assert (one.kind, one.differences) == ("rescored", [])
    assert records.read_record(path) == replace(before, scores=score_version())
    assert records.invalid(path, records.read_record(path)) == ""
    assert [one.kind for one in rescore(tmp_path)] == ["unchanged"]


def test_wrong_scores_are_replaced_and_named(write, tmp_path, right):
    sets = {**right[1].sets, "line": replace(right[1].sets["line"], all=0.123)}
    summary = {"others": right[1].summary["others"], "old mean": set_scores("", 0.5)}
    path = write(sets=sets, summary=summary)
    (one,) = rescore(tmp_path)
    all_ = right[1].sets["line"].all
    assert one.differences == [
        f"line all {all_} instead of 0.123",
        "old mean is gone",
        "pooled is new",
    ]
    assert records.read_record(path).sets == right[1].sets
    assert records.read_record(path).summary == right[1].summary


def test_a_score_that_is_new_reaches_old_records(write, tmp_path, right):
    line = right[1].sets["line"]
    rates = {name: rate for name, rate in line.rates.items() if name != "ari"}
    write(sets={**right[1].sets, "line": replace(line, rates=rates)})
    (one,) = rescore(tmp_path)
    assert one.differences == [f"line ari {line.rates['ari']} instead of None"]


@pytest.mark.parametrize(
    ("settings", "prints", "reason"),
    [
        ({"source": {"cub": {}}}, {}, "--data-root"),
        ({"source": {"drawshift": {"colour": 1}}}, {}, "colour"),
        ({}, {"problem": "another"}, "the images or labels of line+solid are not those"),
    ],
    ids=["data not there", "setting not known", "other labels"],
)
def test_what_cannot_be_built_here_is_a_reason(tmp_path, right, settings, prints, reason):
    preds, record = right
    settings, prints = {**record.settings, **settings}, {**record.fingerprints, **prints}
    record = replace(record, settings=settings, fingerprints=prints, key=key_of(settings, prints))
    folder = tmp_path / record.dataset / record.method / f"seed0-{record.key}"
    records.write_record(folder, record, preds)
    (one,) = rescore(tmp_path)
    assert one.kind == "impossible"
    assert reason in one.reason


def test_a_record_in_the_wrong_place_is_not_scored(write, tmp_path):
    write(key="0" * 16)
    (one,) = rescore(tmp_path)
    assert one.reason.startswith("does not belong there")


def test_predictions_that_do_not_fit_are_a_reason(tmp_path, cell, right):
    folder = records.cell_folder(tmp_path, cell)
    records.write_record(folder, right[1], {name: one[1:] for name, one in right[0].items()})
    (one,) = rescore(tmp_path)
    assert one.reason == "has predictions that do not fit its evaluation sets"


def test_a_cell_that_is_being_trained_is_left_alone(write, tmp_path):
    path = write(scores="older")
    before = path.read_bytes()
    with heartbeat.locked(path.parent):
        (one,) = rescore(tmp_path)
    assert "is being trained right now" in one.reason
    assert path.read_bytes() == before


def test_checking_writes_nothing_and_fails_if_a_score_differs(write, tmp_path, right, capsys):
    command = ["results", "rescore", str(tmp_path), "--check"]
    path = write(scores="older")
    assert main(command) == 0
    text = "0 unchanged, 1 would be rescored (0 with other scores), 0 cannot be rescored\n"
    assert capsys.readouterr().out == text
    path = write(sets={**right[1].sets, "line": replace(right[1].sets["line"], old=0.5)})
    before = path.read_bytes()
    assert main(command) == 1
    assert path.read_bytes() == before
    said = capsys.readouterr()
    assert "(1 with other scores)" in said.out
    assert f"line old {right[1].sets['line'].old} instead of 0.5" in said.err
    assert main(command[:-1]) == 0
    assert main(command) == 0


def test_a_folder_that_is_not_there_is_named(tmp_path, capsys):
    assert main(["results", "rescore", str(tmp_path / "nowhere")]) == 2
    assert "no folder" in capsys.readouterr().err


def test_rescoring_does_not_import_torch(write, tmp_path):
    write(scores="older")
    code = (
        "import sys; from gcdbench.cli.main import main; "
        f"code = main(['results', 'rescore', {str(tmp_path)!r}]); "
        "sys.exit(code or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0 unchanged, 1 rescored")
