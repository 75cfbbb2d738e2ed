"""Cells from settings to records: the same numbers, whatever happens on the way."""

from __future__ import annotations

import json
import time

import pytest
import torch
from runner_toy import EPOCHS, STEPS, Toy, make_toy

from gcdbench import records
from gcdbench.plan import Cell
from gcdbench.runner import cell as cell_module
from gcdbench.runner import checkpoint, journal
from gcdbench.runner.stop import Interrupted, Stop


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Toy:
    return make_toy(tmp_path_factory.mktemp("toy"), ("toy", "other"))


@pytest.fixture
def toy(made, request) -> Toy:
    """Return the toy suite with a results folder of the test's own."""
    return made.elsewhere(f"results-{request.node.name}")


def record(toy: Toy, cell: Cell) -> dict:
    found = records.read_done(toy.results, cell)
    assert isinstance(found, dict), found
    return found


class StopAfter(Stop):
    """Asks for a stop after a number of training steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    @property
    def asked(self) -> bool:
        return self.steps <= 0

    def count(self, moment) -> None:
        self.steps -= 1


def interrupt(toy: Toy, cell: Cell, monkeypatch, *, after: int) -> None:
    """Run a cell and stop it after some steps, as Ctrl-C does."""
    stop, on_step = StopAfter(after), cell_module.CellRun._on_step

    def counted(self, moment) -> None:
        stop.count(moment)
        on_step(self, moment)

    with monkeypatch.context() as patch:
        patch.setattr(cell_module.CellRun, "_on_step", counted)
        with pytest.raises(Interrupted):
            toy.run([cell], stop=stop)


def test_the_same_cell_gives_the_same_record_but_for_times_and_machines(toy):
    again = toy.elsewhere(toy.results.name + "-again")
    cell = toy.cell(train={"eval_every": 1})
    toy.run([cell])
    again.run([cell])
    assert records.same_numbers(record(toy, cell), record(again, cell))


@pytest.mark.parametrize("method", ["simgcd", "gcd", "hilo-patchmix", "orca"])
def test_an_interrupted_cell_goes_on_to_the_same_record(toy, method, monkeypatch):
    cell, whole = toy.cell(method), toy.elsewhere(toy.results.name + "-whole")
    whole.run([cell])
    interrupt(toy, cell, monkeypatch, after=2)
    interrupt(toy, cell, monkeypatch, after=STEPS)  # two stops: inside an epoch, and later
    toy.run([cell])
    assert records.same_numbers(record(toy, cell), record(whole, cell))
    assert record(toy, cell)["timing"]["restarts"] == 2


def test_a_cell_does_not_depend_on_the_cells_before_it(toy):
    alone = toy.elsewhere(toy.results.name + "-alone")
    cells = toy.cells("gcd", "simgcd", datasets=("other", "toy"))
    toy.run(cells)
    alone.run(cells[-1:])
    assert records.same_numbers(record(toy, cells[-1]), record(alone, cells[-1]))


def test_a_stop_leaves_a_checkpoint_at_the_step_and_no_record(toy, monkeypatch):
    cell = toy.cell()
    interrupt(toy, cell, monkeypatch, after=STEPS + 1)
    folder = records.cell_folder(toy.results, cell)
    assert [path.name for path in checkpoint.files(folder)] == [f"checkpoint-{STEPS + 1:08d}.pt"]
    assert not records.is_done(toy.results, cell)
    assert not (folder / journal.FAILURE).exists()


def test_checkpoints_are_made_while_it_runs_and_removed_when_it_is_done(toy, monkeypatch):
    saved = []
    monkeypatch.setattr(cell_module, "CHECKPOINT_SECONDS", 0.0)
    save = checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda f, n, s: (saved.append(n), save(f, n, s)))
    cell = toy.cell()
    toy.run([cell])
    assert set(range(1, EPOCHS * STEPS)) <= set(saved)
    assert checkpoint.files(records.cell_folder(toy.results, cell)) == []


def test_recorded_cells_are_skipped(toy):
    cell = toy.cell()
    assert toy.run([cell]).trained == [cell]
    written = (records.cell_folder(toy.results, cell) / "record.json").stat().st_mtime_ns
    assert toy.run([cell]).skipped == [cell]
    assert (records.cell_folder(toy.results, cell) / "record.json").stat().st_mtime_ns == written


def test_a_changed_setting_is_another_cell(toy):
    toy.run([toy.cell()])
    assert toy.run([toy.cell(train={"lr": 0.02})]).skipped == []


def test_a_failing_cell_is_noted_and_does_not_stop_the_others(toy, monkeypatch):
    cells = toy.cells("gcd", "simgcd", datasets=("toy",))
    evaluate = cell_module.evaluate

    def fail(model, *rest):
        if type(model.method).__name__ == "GCD":
            raise RuntimeError("no clusters today")
        return evaluate(model, *rest)

    monkeypatch.setattr(cell_module, "evaluate", fail)
    outcome = toy.run(cells)
    assert outcome.failed == [(cells[0], "RuntimeError: no clusters today")]
    assert outcome.trained == [cells[1]]
    folder = records.cell_folder(toy.results, cells[0])
    assert journal.read(folder, journal.FAILURE)["message"] == "RuntimeError: no clusters today"
    assert "no clusters today" in (folder / journal.TRACEBACK).read_text()
    monkeypatch.undo()
    assert toy.run(cells).trained == [cells[0]]
    assert not (folder / journal.FAILURE).exists()


def test_out_of_memory_says_which_knob_to_turn(toy, monkeypatch):
    def fail(*rest):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB\nmore")

    monkeypatch.setattr(cell_module, "evaluate", fail)
    ((_, message),) = toy.run([toy.cell()]).failed
    assert "lower train.batch_size" in message
    assert "Tried to allocate 3 GiB" in message


def test_the_log_holds_a_line_for_every_epoch(toy):
    cell = toy.cell(train={"eval_every": 2})
    toy.run([cell])
    lines = (records.cell_folder(toy.results, cell) / "log.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["event"] for row in rows] == ["start", *["epoch"] * EPOCHS, "end"]
    assert "sets" in rows[2]
    assert record(toy, cell)["curve"][1]["terms"] == rows[2]["terms"]


def test_a_rerun_keeps_the_old_record_and_says_whether_the_numbers_are_the_same(toy, caplog):
    caplog.set_level("INFO")
    cell = toy.cell()
    toy.run([cell])
    old = record(toy, cell)
    assert toy.run([cell], since=time.time()).trained == [cell]
    folder = records.cell_folder(toy.results, cell)
    assert records.read_record(folder / "previous-1/record.json") == old
    assert "the same numbers as before" in caplog.text


def test_the_same_run_with_tensorboard_leaves_curves(toy):
    pytest.importorskip("tensorboard")
    cell = toy.cell()
    toy.run([cell], tensorboard=True)
    folder = records.cell_folder(toy.results, cell) / "tensorboard"
    assert [path for path in folder.iterdir() if path.stat().st_size > 0]


def test_a_file_of_images_that_is_gone_before_training_is_one_sentence(toy, monkeypatch):
    def gone(*rest):
        raise FileNotFoundError(2, "No such file or directory", "picture.png")

    monkeypatch.setattr(cell_module, "evaluate", gone)
    ((_, message),) = toy.run([toy.cell()]).failed
    assert "picture.png" in message
