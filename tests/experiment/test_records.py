"""Records: whole or absent, checked when read, never overwritten without a copy."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.synthetic_records import PROVENANCE, TIMING, make_record, set_scores

from gcdbench.core.files import write_atomically
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.experiment.record import CurvePoint, Record

PREDICTIONS = {"ink": np.arange(5, dtype=np.int32), "chalk": np.zeros(3, dtype=np.int32)}
KEY = make_record().key


def content(key: str = KEY, **more) -> Record:
    sets = {"ink": set_scores("source", 0.5, new=None, rates={"nmi": 0.25})}
    return make_record(**{"key": key, "sets": sets} | more)


def cell(key: str = KEY, **more) -> SimpleNamespace:
    facts = {"dataset": "toy", "spec": SimpleNamespace(text="m"), "seed": 0, "key": key}
    return SimpleNamespace(**{**facts, **more})


@pytest.fixture
def folder(tmp_path):
    """Return a cell's folder with a record in it."""
    place = records.cell_folder(tmp_path, cell())
    records.write_record(place, content(), PREDICTIONS)
    return place


def test_a_record_comes_back_as_it_was(folder):
    found = records.read_record(folder / "record.json")
    assert found.predictions_sha256
    assert replace(found, predictions_sha256="") == content()


def test_a_record_of_the_first_format_stays_readable_as_it_is(folder, tmp_path):
    path = folder / "record.json"
    old = json.loads(path.read_text())
    del old["scores"], old["sha256"]
    old |= {"format": 1, "provenance": {**old["provenance"], "side_by_side": False}}
    old["sha256"] = hashlib.sha256(json.dumps(old, sort_keys=True).encode()).hexdigest()
    expected = records.read_record(path)
    path.write_text(json.dumps(old))
    assert records.read_record(path) == expected
    assert records.is_done(tmp_path, cell())


def test_a_record_is_written_in_the_present_format_with_all_digits(tmp_path):
    third = {"ink": set_scores("source", 1 / 3, old=0.1 + 0.2)}
    path = records.write_record(tmp_path, content(sets=third), PREDICTIONS)
    assert json.loads(path.read_text())["format"] == 2
    assert records.read_record(path).sets == third


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sets": None}, "sets is missing"),
        ({"seed": "0"}, "seed is not a whole number"),
        ({"problem": {"num_classes": 3}}, "problem.num_old is missing"),
        ({"extra": 1}, "extra is not known"),
        (
            {"format": 3},
            "is of format 3, of a newer gcdbench; this one reads a record of format 1 or 2",
        ),
        ({"format": "2"}, "is not a record of format 1 or 2"),
        ({"format": True}, "is not a record of format 1 or 2"),
    ],
)
def test_json_that_is_no_record_is_damaged_with_a_sentence(folder, change, reason):
    path = folder / "record.json"
    changed = {**json.loads(path.read_text()), **change}
    del changed["sha256"]
    changed["sha256"] = hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(changed))
    found = records.read_record(path)
    assert isinstance(found, records.Damaged)
    assert reason in found.reason


def test_a_number_that_is_none_is_damage(folder):
    path = folder / "record.json"
    path.write_text(path.read_text().replace("0.25", "NaN"))
    found = records.read_record(path)
    assert isinstance(found, records.Damaged)
    assert found.reason == "cannot be read (NaN is not a number that a record can hold)"


def test_a_rewritten_record_is_no_newer_and_keeps_its_predictions(folder, tmp_path):
    path = folder / "record.json"
    os.utime(path, (1000, 1000))
    records.rewrite(path, replace(records.read_record(path), scores="new"))
    assert records.read_done(tmp_path, cell()).scores == "new"
    assert path.stat().st_mtime == 1000
    assert sorted(one.name for one in folder.iterdir()) == ["predictions.npz", "record.json"]


def test_predictions_come_back_unless_they_were_changed(folder):
    record = records.read_record(folder / "record.json")
    found = records.read_predictions(folder, record)
    assert found.keys() == PREDICTIONS.keys()
    assert all((found[name] == PREDICTIONS[name]).all() for name in found)
    (folder / "predictions.npz").write_bytes(b"x")
    reason = "has predictions that do not match their checksum"
    assert records.read_predictions(folder, record) == reason


def test_the_same_predictions_have_the_same_bytes(folder, tmp_path):
    records.write_record(tmp_path / "again", content(), PREDICTIONS)
    assert (tmp_path / "again/predictions.npz").read_bytes() == (
        folder / "predictions.npz"
    ).read_bytes()


def test_only_a_valid_record_makes_a_cell_done(folder, tmp_path):
    assert records.is_done(tmp_path, cell())
    assert not records.is_done(tmp_path, cell(key="other"))


@pytest.mark.parametrize("length", [0, 1, 100, -2])
def test_a_truncated_record_is_damaged(folder, tmp_path, length):
    path = folder / "record.json"
    path.write_bytes(path.read_bytes()[:length])
    assert isinstance(records.read_record(path), records.Damaged)
    assert not records.is_done(tmp_path, cell())


def test_a_number_changed_by_hand_is_found_out(folder):
    path = folder / "record.json"
    path.write_text(path.read_text().replace("0.5", "0.6"))
    found = records.read_record(path)
    assert isinstance(found, records.Damaged)
    assert found.reason == "does not match its checksum"


def test_a_record_of_another_cell_in_this_place_does_not_count(folder, tmp_path):
    records.write_record(folder, content(key="other"), PREDICTIONS)
    found = records.read_done(tmp_path, cell())
    assert isinstance(found, records.Damaged)
    assert found.reason == "belongs to another cell"


@pytest.mark.parametrize("harm", ["missing", "changed"])
def test_a_record_needs_the_predictions_behind_it(folder, tmp_path, harm):
    path = folder / "predictions.npz"
    path.unlink() if harm == "missing" else path.write_bytes(path.read_bytes()[:-1] + b"x")
    found = records.read_done(tmp_path, cell())
    assert isinstance(found, records.Damaged)
    assert "predictions" in found.reason


def test_a_record_from_before_the_given_time_does_not_count(folder, tmp_path):
    os.utime(folder / "record.json", (1000, 1000))
    assert records.is_done(tmp_path, cell(), since=999)
    assert not records.is_done(tmp_path, cell(), since=1001)


def test_a_new_record_leaves_the_old_one_beside_it(folder, tmp_path):
    old = (folder / "record.json").read_bytes()
    for number in (1, 2):
        records.write_record(folder, content(scores=str(number)), {"ink": np.full(5, number)})
    assert (folder / "previous-1/record.json").read_bytes() == old
    kept = records.read_record(folder / "previous-2/record.json")
    assert kept.scores == "1"
    assert records.wrong_predictions(folder / "previous-2", kept) == ""
    assert records.read_record(folder / "record.json").scores == "2"
    assert [path for path, _ in records.read_all(tmp_path)] == [folder / "record.json"]


@pytest.mark.parametrize("at", ["predictions.npz", "record.json"])
def test_an_error_while_writing_loses_nothing(folder, monkeypatch, at):
    old = records.read_record(folder / "record.json")
    write = write_atomically

    def fail(path, data):
        if path.name == at:
            raise OSError(28, "No space left on device")
        write(path, data)

    monkeypatch.setattr(records, "write_atomically", fail)
    with pytest.raises(OSError, match="No space"):
        records.write_record(folder, content(scores="1"), {"ink": np.ones(5)})
    assert records.read_record(folder / "previous-1/record.json") == old
    assert records.wrong_predictions(folder / "previous-1", old) == ""


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def fail(handle):
        raise OSError("power cut")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="power cut"):
        write_atomically(path, b"new and longer")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_killed_processes_left_is_cleaned_up(folder):
    (folder / ".record.json.abc123").write_text("half")
    before = sorted(folder.iterdir())[1:]
    records.clean_up(folder)
    assert sorted(folder.iterdir()) == before


def test_a_difference_names_the_setting_and_both_values():
    record = make_record(
        settings={"train": {"lr": 0.1, "epochs": 2}},
        fingerprints={"code": "a", "problem": "p"},
    )
    now = cell(
        settings=lambda: {**record.settings, "train": {"lr": 0.05, "epochs": 2}},
        fingerprints=lambda: {"code": "b", "problem": "p"},
    )
    assert records.differences(record, now) == "code changed, train.lr 0.1 instead of 0.05"


def test_times_and_machines_do_not_count_as_numbers():
    slower = replace(TIMING, wall_seconds=2.0)
    elsewhere = replace(PROVENANCE, platform="b")
    one, two = content(), content(timing=slower, provenance=elsewhere, scores="newer")
    assert records.same_numbers(one, two)
    assert not records.same_numbers(one, replace(two, curve=(CurvePoint(0, 0.1, {"a": 1.0}),)))
    assert not records.same_numbers(one, replace(two, sets={"ink": set_scores("source", 0.5)}))


def test_a_results_folder_below_a_file_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--results .*file/results: cannot be written to \("):
        records.check_writable(tmp_path / "file/results")


def test_numbers_that_are_not_finite_cannot_enter_a_record(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        records.write_record(
            tmp_path, content(curve=(CurvePoint(0, float("nan"), {}),)), PREDICTIONS
        )
    assert not (tmp_path / "record.json").exists()


def test_a_record_is_readable_json_with_sorted_keys(folder):
    text = (folder / "record.json").read_text()
    keys = list(json.loads(text))
    assert keys == sorted(keys)
    assert text.endswith("}\n")
