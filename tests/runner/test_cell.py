"""Cells from settings to records: the same numbers, whatever happens on the way."""

from __future__ import annotations

import json
import time

import pytest
import torch
from helpers.toy import EPOCHS, STEPS, Toy, make_toy

from gcdbench.cli import run as commands
from gcdbench.cli.main import _parser, main
from gcdbench.core import registry
from gcdbench.core.paths import bundled
from gcdbench.experiment import heartbeat, records
from gcdbench.experiment.plan import Cell
from gcdbench.experiment.record import Record
from gcdbench.runner import cell as cell_module
from gcdbench.runner import checkpoint
from gcdbench.runner.stop import Interrupted, Stop


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Toy:
    return make_toy(tmp_path_factory.mktemp("toy"), ("toy", "other"))


@pytest.fixture
def toy(made, request) -> Toy:
    """Return the toy suite with a results folder of the test's own."""
    return made.elsewhere(f"results-{request.node.name}")


def record(toy: Toy, cell: Cell) -> Record:
    found = records.read_done(toy.results, cell)
    assert isinstance(found, Record), found
    return found


class StopAfter(Stop):
    """Asks for a stop after a number of training steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    @property
    def asked(self) -> bool:
        return self.steps <= 0

    def count(self, event) -> None:
        self.steps -= 1


def interrupt(toy: Toy, cell: Cell, monkeypatch, *, after: int) -> None:
    """Run a cell and stop it after some steps, as Ctrl-C does."""
    stop, on_step = StopAfter(after), cell_module.CellRun._on_step

    def counted(self, event) -> None:
        stop.count(event)
        on_step(self, event)

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
    assert record(toy, cell).timing.restarts == 2


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
    assert not (folder / heartbeat.FAILURE).exists()


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

    def fail(model, *rest, **more):
        if type(model.method).__name__ == "GCD":
            raise RuntimeError("no clusters today")
        return evaluate(model, *rest, **more)

    monkeypatch.setattr(cell_module, "evaluate", fail)
    outcome = toy.run(cells)
    assert outcome.failed == [(cells[0], "RuntimeError: no clusters today")]
    assert outcome.trained == [cells[1]]
    folder = records.cell_folder(toy.results, cells[0])
    assert heartbeat.read(folder, heartbeat.FAILURE)["message"] == "RuntimeError: no clusters today"
    assert "no clusters today" in (folder / heartbeat.TRACEBACK).read_text()
    monkeypatch.undo()
    assert toy.run(cells).trained == [cells[0]]
    assert not (folder / heartbeat.FAILURE).exists()


def test_out_of_memory_says_which_knob_to_turn(toy, monkeypatch):
    def fail(*rest, **more):
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
    assert record(toy, cell).curve[1].terms == rows[2]["terms"]


def test_a_rerun_keeps_the_old_record_and_says_whether_the_numbers_are_the_same(toy, caplog):
    caplog.set_level("INFO")
    cell = toy.cell()
    toy.run([cell])
    old = record(toy, cell)
    assert toy.run([cell], since=time.time()).trained == [cell]
    folder = records.cell_folder(toy.results, cell)
    assert records.read_record(folder / "previous-1/record.json") == old
    assert "the same numbers as before" in caplog.text


def test_a_file_of_images_that_is_gone_before_training_is_one_sentence(toy, monkeypatch):
    def gone(*rest, **more):
        raise FileNotFoundError(2, "No such file or directory", "picture.png")

    monkeypatch.setattr(cell_module, "evaluate", gone)
    ((_, message),) = toy.run([toy.cell()]).failed
    assert "picture.png" in message


@pytest.fixture
def plugged(tmp_path):
    """Return the file of a method that was added by --plugin."""
    path = tmp_path / "plugged.py"
    path.write_text((bundled("methods") / "gcd.py").read_text())
    registry.add_plugin(path)
    return path


def test_a_method_that_was_edited_after_the_key_was_made_is_refused_before_training(
    toy, plugged, monkeypatch
):
    steps = []
    monkeypatch.setattr(cell_module.CellRun, "_on_step", lambda *rest: steps.append(rest))
    cell = toy.cell("plugged")
    assert cell.key
    plugged.write_text(plugged.read_text() + "\n\nMORE = 1\n")
    ((_, message),) = toy.run([cell]).failed
    assert "code has changed since the run was started: start again" in message
    assert steps == []


def test_a_comment_that_was_added_after_the_key_was_made_does_not_matter(toy, plugged):
    cell = toy.cell("plugged", train={"epochs": 1})
    assert cell.key
    plugged.write_text(plugged.read_text() + "\n# more\n")
    assert toy.run([cell]).trained == [cell]


@pytest.fixture
def spoilt(tmp_path) -> Toy:
    """Return a suite of its own, of which one picture is no picture."""
    toy = make_toy(tmp_path)
    picture(toy).write_text("no picture")
    return toy


def picture(toy: Toy):
    return toy.suite.parent / "pictures/ink/cross/1.png"


@pytest.mark.parametrize("bank", [0, 2])
def test_an_unreadable_image_is_in_the_record_and_told_once_more_at_the_end(spoilt, caplog, bank):
    cell = spoilt.cell(train={"view_bank": bank})
    assert spoilt.run([cell]).trained == [cell]
    noted = record(spoilt, cell).problem.unreadable
    assert noted.count == 1
    ((place, reason),) = noted.first.items()
    assert place == str(picture(spoilt))
    assert "cannot identify image" in reason
    said = f"{cell.label}: 1 of the images cannot be read, the first one is {place}; --strict"
    assert caplog.text.count(said) == 1


def test_an_unreadable_image_is_in_the_records_of_cells_that_took_over_its_features(spoilt):
    cells = spoilt.cells("simgcd", "gcd")
    spoilt.run(cells)
    counts = [record(spoilt, cell).problem.unreadable.count for cell in cells]
    assert counts == [1, 1]


def test_nothing_is_said_about_images_that_can_be_read(toy):
    cell = toy.cell()
    toy.run([cell])
    assert record(toy, cell).problem.unreadable is None


def test_a_leaderboard_names_the_cells_with_unreadable_images(spoilt, capsys):
    assert main(spoilt.command("run", "--methods", "simgcd")[3:]) == 0
    sentence = (
        "Images could not be read and were scored as grey squares: 1 in simgcd on toy, seed 0."
    )
    said = " ".join(capsys.readouterr().out.split())  # lines are as wide as the terminal
    assert sentence in said
    assert sentence in (spoilt.results / "leaderboard/toy.html").read_text()


@pytest.mark.parametrize("bank", [0, 2])
def test_strict_fails_a_cell_with_an_unreadable_image_by_its_path(spoilt, capsys, bank):
    command = spoilt.command("run", "--methods", "simgcd", "--strict")[3:]
    assert main([*command, "--set", f"train.view_bank={bank}"]) == 1
    said = capsys.readouterr().err
    assert f"failed: Unreadable: {picture(spoilt)}: cannot be read as an image" in said


def test_strict_is_no_part_of_the_key(toy):
    cell = toy.cell()
    toy.run([cell], strict=True)
    assert toy.run([cell]).skipped == [cell]


@pytest.mark.parametrize("in_the_way", [".", "lock"])
def test_a_folder_that_cannot_be_used_fails_its_cell_only(toy, in_the_way):
    cells = toy.cells("gcd", "simgcd", datasets=("toy",))
    folder = records.cell_folder(toy.results, cells[0])
    if in_the_way == ".":
        folder.parent.mkdir(parents=True)
        folder.write_text("a file where a folder should be")
    else:
        (folder / in_the_way).mkdir(parents=True)  # a folder where a file should be
    outcome = toy.run(cells)
    ((cell, message),) = outcome.failed
    assert cell is cells[0]
    assert message.startswith(f"{folder} cannot be used (")
    assert "run again" in message
    assert outcome.trained == [cells[1]]


def test_a_folder_that_cannot_be_cleaned_up_fails_its_cell_only(toy, monkeypatch):
    def fail(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(records, "clean_up", fail)
    cell = toy.cell()
    ((_, message),) = toy.run([cell]).failed
    assert "cannot be used (Permission denied)" in message
    noted = heartbeat.read(records.cell_folder(toy.results, cell), heartbeat.FAILURE)
    assert noted is not None
    assert noted["message"] == message


def trained_by(toy: Toy, monkeypatch, *arguments: str, stop_at: int | None = None) -> list[str]:
    """Run both methods by the command line and return those that were trained, in order."""
    trained: list[str] = []
    execute = cell_module.CellRun.execute

    def counted(self):
        if len(trained) == stop_at:
            raise Interrupted
        trained.append(self.cell.spec.text)
        return execute(self)

    with monkeypatch.context() as patch:
        patch.setattr(cell_module.CellRun, "execute", counted)
        words = ["--methods", "gcd", "simgcd", "--datasets", "toy", *arguments]
        assert main(toy.command("run", *words)[3:]) == (0 if stop_at is None else 130)
    return trained


def test_an_interrupted_rerun_goes_on_and_the_next_one_starts_over(toy, monkeypatch):
    assert trained_by(toy, monkeypatch) == ["gcd", "simgcd"]
    assert trained_by(toy, monkeypatch, "--rerun", stop_at=1) == ["gcd"]
    assert trained_by(toy, monkeypatch, "--rerun") == ["simgcd"]
    assert list(toy.results.glob("rerun-*")) == []
    assert trained_by(toy, monkeypatch, "--rerun") == ["gcd", "simgcd"]


def test_a_note_of_a_rerun_that_is_complete_or_damaged_does_not_count(toy, monkeypatch):
    trained_by(toy, monkeypatch)
    note = commands._rerun_note(toy.results, toy.cells("gcd", "simgcd", datasets=("toy",)))
    for text in ('{"started": 0.0}', "", "[]", '{"started": "x"}'):
        note.write_text(text)
        assert trained_by(toy, monkeypatch, "--rerun") == ["gcd", "simgcd"], text


def test_the_checkout_is_looked_at_before_training(toy, monkeypatch):
    seen = []
    train = cell_module.trainer.train
    monkeypatch.setattr(cell_module, "provenance", lambda: seen.append("provenance") or {})
    monkeypatch.setattr(
        cell_module.trainer, "train", lambda *a, **k: seen.append("train") or train(*a, **k)
    )
    toy.run([toy.cell()])
    assert seen == ["provenance", "train"]


def test_a_record_holds_the_hash_of_the_weights_that_were_loaded(toy, tmp_path):
    one, other = toy.cell(), toy.cell(train={"lr": 0.02})
    toy.run([one, other])
    hashes = {record(toy, cell).provenance.backbone for cell in (one, other)}
    assert len(hashes) == 1  # training does not change it
    assert len(hashes.pop()) == 64


def test_a_cache_that_the_processes_of_a_cell_do_not_use_is_told(toy, caplog):
    words = toy.command("run", "--cache-gb", "1")[3:]
    for more, said in (["--jobs", "2"], False), (["--nproc-per-node", "2"], True):
        commands.make_options(_parser().parse_args([*words, *more]), [])
        assert ("--cache-gb does nothing here" in caplog.text) is said
