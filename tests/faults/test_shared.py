"""Several runs on one results folder, and runs that are asked to stop."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest
from helpers.faults import ended, fork

from gcdbench.cli import main as cli
from gcdbench.experiment import heartbeat, records
from gcdbench.runner import cell as cell_module
from gcdbench.runner import checkpoint
from gcdbench.runner.launchers import local
from gcdbench.runner.status import states

pytestmark = pytest.mark.faults


def starts(toy, cell) -> int:
    """Return how often a cell was started, by its log."""
    text = (records.cell_folder(toy.results, cell) / heartbeat.LOG).read_text()
    return sum(json.loads(line)["event"] == "start" for line in text.splitlines())


def test_two_runs_at_once_share_the_work(toy, undisturbed):
    cells = toy.cells("simgcd", "gcd", seeds=(0, 1), datasets=("toy",))

    def run() -> None:
        local.WAIT_SECONDS = 0.05
        outcome = toy.run(cells)
        assert not outcome.failed
        assert len(outcome.trained) + len(outcome.skipped) == 4

    pids = [fork(run), fork(run)]
    assert [ended(pid) for pid in pids] == [0, 0]
    assert [starts(toy, cell) for cell in cells] == [1, 1, 1, 1]
    assert undisturbed.met(toy, *cells)


def test_a_cell_of_another_run_is_waited_for_and_taken_over_when_that_dies(toy, undisturbed):
    cell = toy.cell()

    def linger() -> None:
        cell_module.evaluate = lambda *rest, **more: time.sleep(60)
        toy.run([cell])

    first = fork(linger)
    wait_for(toy, cell, lambda facts: facts["phase"] == "scoring")
    (state,) = states([cell], toy.results)
    assert state.kind == "running here"
    second = fork(lambda: toy.run([cell]))
    time.sleep(0.3)
    assert os.waitpid(second, os.WNOHANG) == (0, 0)  # it waits
    os.kill(first, signal.SIGKILL)
    assert ended(first) == -signal.SIGKILL
    assert ended(second) == 0
    assert undisturbed.met(toy, cell)


def wait_for(toy, cell, condition) -> None:
    """Wait until the sign of life of a cell meets a condition."""
    folder = records.cell_folder(toy.results, cell)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        facts = heartbeat.read(folder, heartbeat.PROGRESS)
        if facts is not None and condition(facts):
            return
        time.sleep(0.02)
    raise TimeoutError


@pytest.fixture(autouse=True)
def fast_hearts(monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.05)


def long_run(toy, *, slow: float = 0.05) -> int:
    """Start the command line on a cell of many slow steps."""

    def run() -> None:
        step = cell_module.CellRun._on_step

        def slowly(self, event) -> None:
            time.sleep(slow)
            step(self, event)

        cell_module.CellRun._on_step = slowly
        cell_module.CHECKPOINT_SECONDS = 1e9
        command = toy.command("run", "--methods", "simgcd", "--datasets", "toy")[3:]
        os._exit(cli.main([*command, "--set", "train.epochs=500"]))

    return fork(run)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_after_the_step_with_a_checkpoint_and_code_130(toy, number, capfd):
    cell = toy.cell(train={"epochs": 500})
    pid = long_run(toy)
    wait_for(toy, cell, lambda facts: facts.get("step", 0) > 2)
    os.kill(pid, number)
    assert ended(pid) == 130
    folder = records.cell_folder(toy.results, cell)
    assert len(checkpoint.files(folder)) == 1
    assert not (folder / heartbeat.PROGRESS).exists()
    assert not (folder / heartbeat.FAILURE).exists()
    said = capfd.readouterr().err
    assert "stopping after this step" in said
    assert "run the same command again to continue" in said
    (state,) = states([cell], toy.results)
    assert state.detail.startswith("resumes after step ")


def test_a_second_ctrl_c_stops_at_once_and_leaves_what_was_saved(toy):
    cell = toy.cell(train={"epochs": 500})
    pid = long_run(toy, slow=20.0)
    wait_for(toy, cell, lambda facts: facts["phase"] == "preparing")
    time.sleep(1.0)
    for _ in range(2):
        os.kill(pid, signal.SIGINT)
        time.sleep(0.3)
    assert ended(pid) == 130
    assert not records.is_done(toy.results, cell)
