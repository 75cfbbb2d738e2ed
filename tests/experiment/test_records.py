"""Records: whole or absent, checked when read, never overwritten without a copy."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

from gcdbench.core.files import write_atomically
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.experiment.key import key_of

PREDICTIONS = {"ink": np.arange(5, dtype=np.int32), "chalk": np.zeros(3, dtype=np.int32)}


KEY = key_of({}, {})


def content(key: str = KEY, **more) -> dict:
    facts = {"key": key, "dataset": "toy", "method": "m", "seed": 0, "sets": {"ink": {"all": 0.5}}}
    return {**facts, "settings": {}, "fingerprints": {}, "timing": {}, "provenance": {}, **more}


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
    assert {key: found[key] for key in content()} == content()


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
        records.write_record(folder, content(run=number), {"ink": np.full(5, number)})
    assert (folder / "previous-1/record.json").read_bytes() == old
    kept = records.read_record(folder / "previous-2/record.json")
    assert kept["run"] == 1
    assert records.wrong_predictions(folder / "previous-2", kept) == ""
    assert records.read_record(folder / "record.json")["run"] == 2
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
        records.write_record(folder, content(run=1), {"ink": np.ones(5)})
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
    record = {
        "settings": {"train": {"lr": 0.1, "epochs": 2}},
        "fingerprints": {"code": "a", "problem": "p"},
    }
    now = cell(
        settings=lambda: {"train": {"lr": 0.05, "epochs": 2}},
        fingerprints=lambda: {"code": "b", "problem": "p"},
    )
    assert records.differences(record, now) == "code changed, train.lr 0.1 instead of 0.05"


def test_times_and_machines_do_not_count_as_numbers():
    one = content(timing={"wall_seconds": 1.0}, provenance={"platform": "a"}, sha256="x")
    two = content(timing={"wall_seconds": 2.0}, provenance={"platform": "b"}, sha256="y")
    assert records.same_numbers(one, two)
    assert not records.same_numbers(one, {**two, "curve": []})


def test_a_results_folder_below_a_file_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--results .*file/results: cannot be written to \("):
        records.check_writable(tmp_path / "file/results")


def test_numbers_that_are_not_finite_cannot_enter_a_record(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        records.write_record(tmp_path, content(curve=[float("nan")]), PREDICTIONS)
    assert not (tmp_path / "record.json").exists()


def test_a_record_is_readable_json_with_sorted_keys(folder):
    text = (folder / "record.json").read_text()
    keys = list(json.loads(text))
    assert keys == sorted(keys)
    assert text.endswith("}\n")
