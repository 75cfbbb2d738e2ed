"""The index of records is only a cache: whatever it holds, the files decide."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import replace

import pytest
from helpers.synthetic_records import record_of, set_scores

from gcdbench.experiment import index as index_module
from gcdbench.experiment import records
from gcdbench.experiment.index import Done, Index
from gcdbench.experiment.plan import Request, make_cells
from gcdbench.experiment.record import CurvePoint, LazyCurve, SearchFacts, SplitAccuracies
from gcdbench.experiment.verdict import Verdict

SEARCH = SearchFacts(
    "nmi", 8, "random", 0, (0, 1), 3, 0.5, 1, 60.0, {"train": {"lr": 0.05}}, ("k",)
)
CURVE = (
    CurvePoint(0, 0.1, {"loss": 1.5}, {"line": SplitAccuracies(0.5, None, 0.5)}, {"spread": 2.0}),
    CurvePoint(1, 0.05, {"loss": None}),
)


@pytest.fixture(scope="module")
def cells():
    return make_cells(Request("drawshift", ("gcd",), ("line+solid",), (0, 1, 2), quick=True))


@pytest.fixture
def results(tmp_path, cells, monkeypatch):
    """Return a folder with three records that have been as they are for a minute."""
    monkeypatch.setenv("GCDBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(index_module, "FEWEST", 1)
    monkeypatch.setattr(index_module, "SETTLED_SECONDS", -1.0)
    for cell in cells:
        sets = {"line": set_scores("source", 0.5, rates={"nmi": 0.25, "ari": None})}
        more = {"summary": {"pooled": set_scores("", 0.5)}, "curve": CURVE, "searches": (SEARCH,)}
        made = record_of(cell, sets=sets, **more)
        records.write_record(records.cell_folder(tmp_path / "runs", cell), made, {})
    return tmp_path / "runs"


def reads(results, monkeypatch):
    """Return what an index finds, and how many files it had to read."""
    count = []
    parse = records.parse
    monkeypatch.setattr(records, "parse", lambda path: count.append(path) or parse(path))
    with Index(results) as index:
        found = dict(index.all())
    monkeypatch.setattr(records, "parse", parse)
    return found, len(count)


def test_an_index_gives_the_records_that_the_files_hold(results, monkeypatch):
    expected = dict(records.read_all(results))
    assert reads(results, monkeypatch) == (expected, 3)
    assert reads(results, monkeypatch) == (expected, 0)
    first = next(iter(expected.values()))
    assert first.curve == CURVE
    assert first.searches == (SEARCH,)
    assert first.sets["line"].rates == {"nmi": 0.25, "ari": None}


@pytest.mark.parametrize("keep_times", [True, False])
def test_a_record_that_was_replaced_is_read_again(results, cells, monkeypatch, keep_times):
    reads(results, monkeypatch)
    path = records.cell_folder(results, cells[1]) / records.RECORD
    times = path.stat()
    old = records.read_record(path)
    records.rewrite(path, replace(old, sets={"line": set_scores("source", 0.75)}))
    if keep_times:
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    found, count = reads(results, monkeypatch)
    assert count == 1
    assert found[path].sets["line"].all == 0.75


def test_a_record_overwritten_in_place_with_the_same_size_and_time_is_read_again(
    results, cells, monkeypatch
):
    reads(results, monkeypatch)
    path = records.cell_folder(results, cells[0]) / records.RECORD
    times, text = path.stat(), path.read_text()
    time.sleep(0.02)  # the clock of a file system ticks every few milliseconds
    path.write_text(text.replace('"all": 0.5', '"all": 0.9'))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_size == times.st_size
    found, _ = reads(results, monkeypatch)
    assert "checksum" in found[path].reason


def test_what_is_gone_is_forgotten(results, cells, monkeypatch):
    reads(results, monkeypatch)
    shutil.rmtree(records.cell_folder(results, cells[2]))
    found, count = reads(results, monkeypatch)
    assert (len(found), count) == (2, 0)


@pytest.mark.parametrize("damage", [b"", b"junk", b"\0" * 4096, b"0" * 64 + b"\nx\n[]\na\tb"])
def test_a_damaged_index_is_not_used(results, monkeypatch, damage):
    expected, _ = reads(results, monkeypatch)
    (path,) = (results.parent / "cache").iterdir()
    path.write_bytes(damage)
    assert reads(results, monkeypatch) == (expected, 3)


def test_an_index_that_was_changed_by_hand_is_not_used(results, monkeypatch):
    expected, _ = reads(results, monkeypatch)
    (path,) = (results.parent / "cache").iterdir()
    path.write_bytes(path.read_bytes().replace(b"0.5", b"0.9"))
    assert reads(results, monkeypatch) == (expected, 3)


def test_an_index_in_the_results_folder_is_not_looked_at(results, monkeypatch):
    reads(results, monkeypatch)
    (path,) = (results.parent / "cache").iterdir()
    shutil.copy(path, results / path.name)
    path.unlink()
    assert reads(results, monkeypatch)[1] == 3


def test_a_cache_that_cannot_be_written_does_no_harm(results, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GCDBENCH_CACHE", str(tmp_path / "file" / "below"))
    assert reads(results, monkeypatch)[1] == 3


def test_a_record_that_has_just_changed_is_not_kept(results, monkeypatch):
    monkeypatch.setattr(index_module, "SETTLED_SECONDS", 1000.0)
    reads(results, monkeypatch)
    assert reads(results, monkeypatch)[1] == 3


def test_few_records_leave_no_file(results, monkeypatch, tmp_path):
    monkeypatch.setattr(index_module, "FEWEST", 4)
    reads(results, monkeypatch)
    assert not (tmp_path / "cache").exists()


def test_a_cell_is_done_as_long_as_its_predictions_are_there(results, cells):
    folder = records.cell_folder(results, cells[0])
    for _ in range(2):
        with Index(results) as index:
            assert index.done(cells[0]) == Done(61.5, "")
    (folder / records.PREDICTIONS).write_bytes(b"other")
    with Index(results) as index:
        assert "checksum" in index.done(cells[0]).reason
    (folder / records.RECORD).unlink()
    assert Index(results).done(cells[0]) is None


def test_a_verdict_is_asked_for_again_if_predictions_or_labels_change(results, cells):
    path, asked = records.cell_folder(results, cells[0]) / records.RECORD, []

    def judge():
        asked.append(1)
        return Verdict("recomputed")

    def ask(basis):
        with Index(results) as index:
            index.read(path)
            assert index.verdict(path, basis, judge).kind == "recomputed"
        return len(asked)

    assert [ask("a"), ask("a"), ask("b"), ask("b")] == [1, 1, 2, 2]
    (path.parent / records.PREDICTIONS).touch()
    assert ask("b") == 3


def test_wrong_scores_are_never_kept(results, cells):
    path = records.cell_folder(results, cells[0]) / records.RECORD
    with Index(results) as index:
        index.read(path)
        index.verdict(path, "a", lambda: Verdict("wrong", "x"))
    with Index(results) as index:
        assert index.verdict(path, "a", lambda: Verdict("wrong", "y")).reason == "y"


def test_a_lazy_curve_is_a_sequence():
    curve = LazyCurve('[{"epoch": 0, "lr": 0.1, "terms": {"loss": 1.0}}]')
    assert len(curve) == 1
    assert curve == (CurvePoint(0, 0.1, {"loss": 1.0}),)
    assert curve[-1] == next(iter(curve))
    assert curve != ()
