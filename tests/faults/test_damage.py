"""Files that are not what was written: never trusted, never executed, and trained again."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import signal

import pytest
from helpers.faults import dies_at_step, ended, fork

from gcdbench.experiment import heartbeat, records
from gcdbench.runner import cell as cell_module
from gcdbench.runner import checkpoint
from gcdbench.runner.status import states

pytestmark = pytest.mark.faults


@pytest.fixture
def interrupted(toy):
    """Return a cell that was killed in its sixth step, with checkpoints after the fifth."""
    cell = toy.cell()

    def run() -> None:
        dies_at_step(5)
        toy.run([cell])

    assert ended(fork(run)) == -signal.SIGKILL
    return cell


def flip_a_bit(path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def start_of(toy, cell) -> int:
    """Return the number of restarts that the record counts."""
    return records.read_done(toy.results, cell).timing.restarts


def test_a_flipped_bit_in_the_newest_checkpoint(toy, undisturbed, interrupted, caplog):
    newest, _ = checkpoint.files(records.cell_folder(toy.results, interrupted))
    flip_a_bit(newest)
    assert undisturbed.met(toy, interrupted)
    assert f"{newest} is skipped: it does not match its checksum" in caplog.text
    assert start_of(toy, interrupted) == 1  # it went on from the older one


def test_both_checkpoints_are_damaged(toy, undisturbed, interrupted):
    newest, older = checkpoint.files(records.cell_folder(toy.results, interrupted))
    flip_a_bit(newest)
    older.write_bytes(older.read_bytes()[:1000])
    assert undisturbed.met(toy, interrupted)
    assert start_of(toy, interrupted) == 0


def test_a_checkpoint_of_another_cell_in_the_wrong_folder(toy, undisturbed, interrupted):
    other = toy.cell(train={"lr": 0.02})
    folder = records.cell_folder(toy.results, other)
    folder.mkdir(parents=True)
    for path in checkpoint.files(records.cell_folder(toy.results, interrupted)):
        shutil.copy(path, folder)
    assert undisturbed.met(toy, other)
    assert start_of(toy, other) == 0


class Mischief:
    def __reduce__(self):
        return os.mkdir, (os.environ["MISCHIEF"],)


def test_a_malicious_pickle_as_checkpoint(toy, undisturbed, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MISCHIEF", str(tmp_path / "harm"))
    cell = toy.cell()
    payload = pickle.dumps({"key": cell.key, "model": Mischief()})
    seal = hashlib.sha256(payload).hexdigest().encode()
    folder = records.cell_folder(toy.results, cell)
    folder.mkdir(parents=True)
    (folder / "checkpoint-00000008.pt").write_bytes(checkpoint.MAGIC + seal + b"\n" + payload)
    assert undisturbed.met(toy, cell)
    assert not (tmp_path / "harm").exists()
    assert "is skipped" in caplog.text


@pytest.mark.parametrize("length", [0, 500])
def test_a_truncated_record(toy, undisturbed, length):
    cell = toy.cell()
    toy.run([cell])
    path = records.cell_folder(toy.results, cell) / "record.json"
    path.write_bytes(path.read_bytes()[:length])
    (state,) = states([cell], toy.results)
    assert state.kind == "damaged"
    assert undisturbed.met(toy, cell)
    assert (path.parent / "previous-1/record.json").stat().st_size == length


def test_a_flipped_bit_in_the_predictions(toy, undisturbed):
    cell = toy.cell()
    toy.run([cell])
    flip_a_bit(records.cell_folder(toy.results, cell) / "predictions.npz")
    assert not records.is_done(toy.results, cell)
    assert undisturbed.met(toy, cell)


@pytest.mark.parametrize("name", [heartbeat.PROGRESS, heartbeat.FAILURE, heartbeat.JOB])
@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '{"host": 1}'])
def test_notes_that_cannot_be_read_are_no_notes(toy, name, text):
    cell = toy.cell()
    folder = records.cell_folder(toy.results, cell)
    folder.mkdir(parents=True)
    (folder / name).write_text(text)
    (state,) = states([cell], toy.results)
    assert state.kind == "waiting"


def test_a_folder_that_vanishes_under_a_run_fails_its_cell_only(toy, undisturbed, monkeypatch):
    cells = toy.cells("simgcd", "gcd", datasets=("toy",))
    on_epoch = cell_module.CellRun._on_epoch

    def vanish(self, progress):
        if self.cell is cells[0]:
            shutil.rmtree(self.folder)
        on_epoch(self, progress)

    with monkeypatch.context() as patch:
        patch.setattr(cell_module.CellRun, "_on_epoch", vanish)
        outcome = toy.run(cells)
    ((cell, message),) = outcome.failed
    assert cell is cells[0]
    assert "No such file or directory" in message
    assert undisturbed.met(toy, *cells)
