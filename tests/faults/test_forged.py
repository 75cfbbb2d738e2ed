"""Scores that predictions do not give are found, and do not reach a leaderboard."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from helpers.synthetic_records import record_of

from gcdbench.cli.main import main
from gcdbench.experiment import records
from gcdbench.experiment.key import key_of, score_version
from gcdbench.experiment.plan import Request, make_cells
from gcdbench.experiment.record import SetScores, part
from gcdbench.experiment.verdict import contradiction
from gcdbench.training.scoring.rescore import judge
from gcdbench.training.scoring.scores import score_predictions

pytestmark = pytest.mark.faults
FLAGS = ["--suite", "drawshift", "--datasets", "line+solid", "--quick", "--seeds", "0"]


@pytest.fixture(scope="module")
def cells():
    request = Request("drawshift", ("gcd", "simgcd"), ("line+solid",), (0,), quick=True)
    return make_cells(request)


@pytest.fixture
def honest(tmp_path, cells):
    """Return the paths of two records whose predictions give their scores; gcd is better."""
    paths = []
    for cell, rate in zip(cells, (0.7, 0.5), strict=True):
        problem, rng = cell.problem(), np.random.RandomState(cell.seed)
        preds = {}
        for name, evaluated in problem.sets.items():
            labels = problem.labels[evaluated.rows]
            guess = rng.randint(problem.num_classes, size=len(labels))
            preds[name] = np.where(rng.rand(len(labels)) < rate, labels, guess)
        found = score_predictions(preds, problem)
        made = record_of(
            cell,
            scores=score_version(),
            sets={name: part(SetScores, one) for name, one in found.sets.items()},
            summary={name: part(SetScores, one) for name, one in found.summary.items()},
        )
        folder = records.cell_folder(tmp_path / "runs", cell)
        paths.append(records.write_record(folder, made, preds))
    return paths


def forge(path, **changes):
    """Change a record and compute its checksum again."""
    records.rewrite(path, replace(records.read_record(path), **changes))


def all_at(record, value):
    one = {"all": value, "old": value, "new": value}
    return {
        "sets": {name: replace(s, **one) for name, s in record.sets.items()},
        "summary": {name: replace(s, **one) for name, s in record.summary.items()},
    }


def verify(path, capsys):
    code = main(["results", "verify", str(path.parents[3])])
    return code, capsys.readouterr()


def test_honest_scores_are_recomputed(honest, capsys):
    code, said = verify(honest[0], capsys)
    assert code == 0
    assert said.out.count(": recomputed") == 2
    assert "2 valid records (2 recomputed, 0 only internally consistent), 0 invalid" in said.out


@pytest.mark.parametrize("value", [1.0, 0.75])
def test_forged_accuracies_are_found(honest, capsys, value):
    path = honest[1]
    forge(path, **all_at(records.read_record(path), value))
    code, said = verify(path, capsys)
    assert code == 1
    assert "1 valid record (1 recomputed" in said.out
    assert "has scores that its predictions do not give" in said.err
    assert str(path) in said.err


@pytest.mark.parametrize("rate", ["nmi", "old_to_new"])
def test_forged_rates_are_found(honest, rate):
    record = records.read_record(honest[1])
    sets = {n: replace(s, rates={**s.rates, rate: 0.0}) for n, s in record.sets.items()}
    forge(honest[1], sets=sets)
    assert judge(honest[1], records.read_record(honest[1])).kind == "wrong"


def test_sets_that_change_roles_are_found(honest):
    record = records.read_record(honest[0])
    (first, one), (second, other) = list(record.sets.items())[:2]
    swapped = {first: replace(one, role=other.role), second: replace(other, role=one.role)}
    forge(honest[0], sets={**record.sets, **swapped})
    assert "instead of" in judge(honest[0], records.read_record(honest[0])).reason


def test_scores_of_other_code_may_differ_in_more_than_accuracies(honest):
    record = records.read_record(honest[0])
    sets = {n: replace(s, rates={**s.rates, "nmi": 0.0}) for n, s in record.sets.items()}
    forge(honest[0], sets=sets, scores="older")
    assert judge(honest[0], records.read_record(honest[0])).kind == "recomputed"
    forge(honest[0], **all_at(record, 1.0), scores="older")
    assert judge(honest[0], records.read_record(honest[0])).kind == "wrong"


def of_other_labels(path, **changes):
    """Turn a record into one of a split that is not here; return its new path."""
    record = records.read_record(path)
    prints = {**record.fingerprints, "problem": "another split"}
    key = key_of(record.settings, prints)
    made = replace(record, fingerprints=prints, key=key, **changes)
    folder = path.parent.rename(path.parent.with_name(f"seed{record.seed}-{key}"))
    records.rewrite(folder / records.RECORD, made)
    return folder / records.RECORD


def test_without_the_labels_a_record_is_only_internally_consistent(honest, capsys):
    path = of_other_labels(honest[0])
    code, said = verify(path, capsys)
    assert code == 0
    assert "only internally consistent (the images or labels of line+solid" in said.out
    assert "(1 recomputed, 1 only internally consistent)" in said.out


@pytest.mark.parametrize("value", [0.999, 1.5, -0.1])
def test_without_the_labels_impossible_scores_are_still_found(honest, value):
    """0.999 of 128 images is no number of images."""
    path = of_other_labels(honest[0], **all_at(records.read_record(honest[0]), value))
    verdict = judge(path, records.read_record(path))
    assert verdict.kind == "wrong"
    assert "impossible" in verdict.reason


def test_all_must_be_old_and_new(honest):
    record = records.read_record(honest[0])
    one = record.sets["line"]
    wrong = replace(one, all=one.all + 1 / one.n)
    found = records.read_predictions(honest[0].parent, record)
    assert contradiction(record, found) == ""
    sets = {**record.sets, "line": wrong}
    assert "all is not old and new" in contradiction(replace(record, sets=sets), found)
    assert "do not fit" in contradiction(record, {"line": found["line"]})


def test_a_mean_must_be_that_of_its_sets(honest):
    record = records.read_record(honest[0])
    one = record.sets["line"]
    sets = {"fog/1": one, "fog/2": one}
    found = {name: np.zeros(one.n, int) for name in sets}
    right = replace(record, sets=sets, summary={"fog": one, "corrupted": one})
    assert contradiction(right, found) == ""
    wrong = replace(right, summary={"fog": one, "corrupted": replace(one, all=one.all / 2)})
    assert "mean 'corrupted'" in contradiction(wrong, found)


def test_a_forged_record_does_not_lead_the_leaderboard(honest, capsys):
    forge(honest[1], **all_at(records.read_record(honest[1]), 1.0))
    results = str(honest[1].parents[3])
    for verb in ("leaderboard", "report"):
        assert main([verb, *FLAGS, "--methods", "gcd", "simgcd", "--results", results]) == 0
        assert "has scores that its predictions do not give" in capsys.readouterr().err
    table = honest[1].parents[3] / "leaderboard" / "drawshift-quick.csv"
    assert means_of("simgcd", table) == {""}


def means_of(method, path):
    rows = [line.split(",") for line in path.read_text().splitlines()]
    return {row[rows[0].index("mean")] for row in rows[1:] if method in row}


def test_a_forged_record_does_not_reach_a_site(honest, tmp_path, capsys):
    path = honest[1]  # of --quick: the site's cells have more images, and the newest record counts
    forge(path, **all_at(records.read_record(path), 1.0))
    words = ["site", "--suites", "drawshift", "--as-recorded", "--results", str(path.parents[3])]
    assert main([*words, "--out", str(tmp_path / "site")]) == 0
    assert "simgcd/seed0-" in capsys.readouterr().err
    assert means_of("simgcd", tmp_path / "site" / "suites" / "drawshift.csv") == {""}
    assert means_of("gcd", tmp_path / "site" / "suites" / "drawshift.csv") != {""}


def test_the_leaderboard_marks_what_was_not_recomputed(honest, capsys):
    of_other_labels(honest[0])
    results = str(honest[1].parents[3])
    command = [*FLAGS, "--methods", "gcd", "simgcd", "--results", results, "--as-recorded"]
    assert main(["leaderboard", *command]) == 0
    said = " ".join(capsys.readouterr().out.split())  # lines are as wide as the terminal
    assert "GCD ‡" in said
    assert "SimGCD ‡" not in said
    assert "‡ The scores of 1 of 2 cells (on line+solid) could not be recomputed" in said


@pytest.mark.parametrize(
    "arrays",
    [
        {"line": np.zeros((128, 2), int)},
        {"line": np.full(128, np.nan)},
        {"line": np.array(["a"] * 128)},
        {"line": np.full(128, 1 << 40)},
        {"line": np.full(128, -1)},
        {},
    ],
)
def test_predictions_of_another_form_are_named(honest, arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    refile(honest[0], buffer.getvalue())
    assert judge(honest[0], records.read_record(honest[0])).kind == "wrong"


@pytest.mark.parametrize(
    "data", [b"", b"junk", b"PK\x03\x04 no archive", b"PK\x05\x06" + 18 * b"\0"]
)
def test_predictions_that_are_no_archive_are_named(honest, capsys, data):
    refile(honest[0], data)
    code, said = verify(honest[0], capsys)
    assert code == 1
    assert "predictions that" in said.err
    flags = [*FLAGS, "--methods", "gcd", "simgcd", "--results", str(honest[0].parents[3])]
    assert main(["report", *flags]) == 0


def refile(path, data):
    """Replace the predictions of a record, and their checksum in it."""
    record = records.read_record(path)
    (path.parent / records.PREDICTIONS).write_bytes(data)
    digest = records.hashlib.sha256(data).hexdigest()
    records.rewrite(path, replace(record, predictions_sha256=digest))
