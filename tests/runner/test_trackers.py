"""Trackers get every number of a cell, several at once, and cannot harm it."""

from __future__ import annotations

import json
import math
import signal
from types import SimpleNamespace

import pytest
from helpers.toy import EPOCHS, make_toy

from gcdbench.cli.main import main
from gcdbench.core import extensions
from gcdbench.experiment import records
from gcdbench.runner.stop import Stop
from gcdbench.runner.trackers import TrackedCell, Trackers


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def toy(made, tmp_path):
    return made.elsewhere(f"results-{tmp_path.name}")


class Notes:
    """A tracker that keeps what it is given."""

    made: list[Notes]

    def __init__(self, cell: TrackedCell) -> None:
        self.cell, self.rows, self.failed = cell, [], None
        self.made.append(self)

    def log(self, numbers, epoch):
        self.rows.append((epoch, dict(numbers)))

    def close(self, *, failed):
        self.failed = failed


@pytest.fixture
def installed(monkeypatch):
    """Return a function that installs trackers of a third party."""

    def install(**classes):
        points = [SimpleNamespace(name=n, value=n, load=lambda c=c: c) for n, c in classes.items()]
        found = {"gcdbench.trackers": points}
        monkeypatch.setattr(extensions, "entry_points", lambda group: found.get(group, ()))
        for one in classes.values():
            one.made = []

    return install


def record(toy, cell):
    return records.read_record(records.cell_folder(toy.results, cell) / records.RECORD)


def expected_rows(found):
    """Return what a tracker must have got of a record."""
    rows = [
        (p.epoch, {"lr": p.lr} | {f"terms/{n}": v for n, v in p.terms.items()}) for p in found.curve
    ]
    return [*rows, (EPOCHS - 1, {f"final/{n}": one.all for n, one in found.sets.items()})]


def without_diagnostics(rows):
    return [
        (epoch, {n: v for n, v in numbers.items() if not n.startswith("diagnostics")})
        for epoch, numbers in rows
    ]


def test_a_tracker_of_a_third_party_gets_every_number_and_changes_none(toy, installed):
    class Other(Notes):
        pass

    installed(notes=Notes, other=Other)
    cell = toy.cell()
    plain = toy.elsewhere("plain")
    plain.run([cell])
    assert toy.run([cell], trackers=("notes", "other", "notes")).failed == []
    found = record(toy, cell)
    assert records.same_numbers(found, record(plain, cell))
    (notes,), (other,) = Notes.made, Other.made
    assert without_diagnostics(notes.rows) == expected_rows(found)
    assert other.rows == notes.rows
    assert notes.failed is False
    assert notes.cell.key == cell.key
    assert notes.cell.settings["train.lr"] == cell.train.lr


class Broken(Notes):
    where = ""

    def __init__(self, cell):
        if self.where == "start":
            raise ConnectionError("no\nroute")
        super().__init__(cell)

    def log(self, numbers, epoch):
        if self.where == "log" and epoch == 1:
            raise SystemExit(3)

    def close(self, *, failed):
        if self.where == "close":
            raise OSError("disk full")


@pytest.mark.parametrize(
    ("where", "reason"),
    [("start", "ConnectionError: no route"), ("log", "SystemExit: 3"), ("close", "disk full")],
)
def test_a_tracker_that_fails_is_one_line_and_its_cell_goes_on(
    toy, installed, monkeypatch, caplog, where, reason
):
    installed(broken=Broken, notes=Notes)
    monkeypatch.setattr(Broken, "where", where)
    cell = toy.cell()
    assert toy.run([cell], trackers=("broken", "notes")).trained == [cell]
    said = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(said) == 1
    assert said[0].startswith(f"{cell.label}: continues without --tracker broken (")
    assert reason in said[0]
    assert without_diagnostics(Notes.made[0].rows) == expected_rows(record(toy, cell))


def test_a_resumed_cell_gives_trackers_the_whole_curve(toy, installed, monkeypatch):
    monkeypatch.setattr("gcdbench.runner.cell.CHECKPOINT_SECONDS", 0.0)
    cell, stop = toy.cell(), Stop()

    class Stopping(Notes):
        def log(self, numbers, epoch):
            super().log(numbers, epoch)
            stop.heard = signal.SIGINT

    installed(notes=Notes, stopping=Stopping)
    with pytest.raises(KeyboardInterrupt):
        toy.run([cell], stop=stop, trackers=("stopping",))
    assert Stopping.made[0].failed is True
    toy.run([cell], trackers=("notes",))
    assert without_diagnostics(Notes.made[0].rows) == expected_rows(record(toy, cell))


def test_numbers_that_are_none_or_infinite_are_left_out(tmp_path, installed):
    installed(notes=Notes)
    about = TrackedCell("a cell", "key", {}, tmp_path, tmp_path)
    with Trackers(about, ("notes",)) as both:
        both.write("start", step=0)
        both.write("epoch", epoch=0, lr=0.1, terms={"a": math.inf, "b": None, "c": 1}, more="text")
    assert Notes.made[0].rows == [(0, {"lr": 0.1, "terms/c": 1.0})]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["start", "epoch"]


def test_a_tracker_that_cannot_be_used_is_refused_before_the_first_cell(
    toy, installed, monkeypatch, capsys
):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    words = ["run", "--suite", str(toy.suite), "--methods", "simgcd", "--results"]
    assert main([*words, str(toy.results), "--tracker", "wandb"]) == 2
    said = "--tracker wandb: the package is not installed; pip install 'gcdbench[wandb]'"
    assert said in capsys.readouterr().err
    assert main([*words, str(toy.results), "--tracker", "wandbb"]) == 2
    assert "did you mean 'wandb'?" in capsys.readouterr().err

    def broken():
        raise ImportError("gone")

    point = SimpleNamespace(name="theirs", value="theirs:Tracker", load=broken)
    found = {"gcdbench.trackers": [point]}
    monkeypatch.setattr(extensions, "entry_points", lambda group: found.get(group, ()))
    assert main([*words, str(toy.results), "--tracker", "theirs"]) == 2
    assert "theirs:Tracker cannot be loaded (ImportError: gone)" in capsys.readouterr().err
    assert not list(toy.results.glob("*/*/*/record.json"))


def test_tensorboard_has_the_curves(toy):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    cell = toy.cell()
    for _ in range(2):  # the second time in place of the first
        toy.run([cell], trackers=("tensorboard",), since=math.inf)
    events = EventAccumulator(str(records.cell_folder(toy.results, cell) / "tensorboard"))
    events.Reload()
    for point in record(toy, cell).curve:
        for name, value in point.terms.items():
            found = {e.step: e.value for e in events.Scalars(f"terms/{name}")}
            assert len(events.Scalars(f"terms/{name}")) == EPOCHS
            assert found[point.epoch] == pytest.approx(value)


def wandb_messages(path):
    """Yield the messages of a file of W&B: blocks of 32 KiB with parts, each with a header."""
    data, at, message = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left  # the rest of a block is empty
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        message += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield message
            message = b""


@pytest.mark.filterwarnings("ignore")  # what other packages warn of is not ours
def test_wandb_offline_keeps_a_run_on_disk(toy, monkeypatch, caplog):
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    monkeypatch.setenv("WANDB_MODE", "offline")
    cell = toy.cell()
    assert toy.run([cell], trackers=("wandb", "tensorboard")).failed == []
    assert "continues without --tracker wandb" not in caplog.text
    (path,) = records.cell_folder(toy.results, cell).glob("wandb/offline-run-*/run-*.wandb")
    logged: dict[str, list[float]] = {}
    for message in map(Record.FromString, wandb_messages(path)):
        for item in message.history.item:
            name = item.key or "/".join(item.nested_key)
            logged.setdefault(name, []).append(json.loads(item.value_json))
    found = record(toy, cell)
    for name in found.curve[0].terms:
        assert logged[f"terms/{name}"] == pytest.approx([p.terms[name] for p in found.curve])
    for name, one in found.sets.items():
        assert logged[f"final/{name}"] == pytest.approx([one.all])


@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_settings_and_curves_in_a_local_store(toy, monkeypatch, caplog):
    pytest.importorskip("mlflow")
    from mlflow import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    cell = toy.cell()
    assert toy.run([cell], trackers=("mlflow",)).failed == []
    assert "continues without" not in caplog.text
    client = MlflowClient(f"sqlite:///{(toy.results / 'mlflow.db').resolve()}")
    experiment = client.get_experiment_by_name("gcdbench")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == cell.label
    assert run.data.params["train.lr"] == str(cell.train.lr)
    found = record(toy, cell)
    for name in found.curve[0].terms:
        history = client.get_metric_history(run.info.run_id, f"terms/{name}")
        assert [m.step for m in history] == list(range(EPOCHS))
        assert [m.value for m in history] == pytest.approx([p.terms[name] for p in found.curve])
