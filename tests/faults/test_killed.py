"""Processes that are killed at the worst moments: nothing is lost, and the next run finishes."""

from __future__ import annotations

import os
import signal
import time

import pytest
from helpers.faults import die, dies_at_step, dies_while_writing, ended, fork

from gcdbench.experiment import heartbeat, records
from gcdbench.runner import cell as cell_module
from gcdbench.runner import checkpoint
from gcdbench.runner.status import states

pytestmark = pytest.mark.faults


def killed(toy, cell, *, arrange, **more) -> None:
    """Run a cell in a process that dies."""

    def run() -> None:
        arrange()
        toy.run([cell], **more)

    assert ended(fork(run)) == -signal.SIGKILL


@pytest.mark.parametrize("step", [0, 4])
def test_killed_in_a_step(toy, undisturbed, step):
    cell = toy.cell()
    killed(toy, cell, arrange=lambda: dies_at_step(step))
    assert undisturbed.met(toy, cell)


def test_killed_again_and_again(toy, undisturbed):
    cell = toy.cell("gcd")
    for step in (1, 2, 5, 8):
        killed(toy, cell, arrange=lambda step=step: dies_at_step(step))
    assert undisturbed.met(toy, cell)
    assert records.read_done(toy.results, cell).timing.restarts == 4


@pytest.mark.parametrize("half", [True, False], ids=["half written", "written, not yet in place"])
def test_killed_in_a_checkpoint(toy, undisturbed, half):
    cell = toy.cell()
    arrange = lambda: dies_while_writing("checkpoint", on=3, half=half)  # noqa: E731
    killed(toy, cell, arrange=arrange)
    folder = records.cell_folder(toy.results, cell)
    kept = [path.name for path in checkpoint.files(folder)]
    assert kept == ["checkpoint-00000002.pt", "checkpoint-00000001.pt"]
    assert undisturbed.met(toy, cell)
    assert list(folder.glob(".*")) == []


@pytest.mark.parametrize("name", ["predictions.npz", "record.json"])
def test_killed_in_a_record(toy, undisturbed, name):
    cell = toy.cell()
    killed(toy, cell, arrange=lambda: dies_while_writing(name))
    assert not records.is_done(toy.results, cell)
    assert undisturbed.met(toy, cell)


def test_killed_between_the_record_and_the_end_of_the_cell(toy, undisturbed):
    cell = toy.cell()

    def arrange() -> None:
        checkpoint.discard = lambda folder: die()

    killed(toy, cell, arrange=arrange)
    assert toy.run([cell]).skipped == [cell]
    assert undisturbed.met(toy, cell)


def test_killed_while_it_is_scored(toy, undisturbed):
    cell = toy.cell()

    def arrange() -> None:
        cell_module.evaluate = lambda *rest, **more: die()

    killed(toy, cell, arrange=arrange)
    assert undisturbed.met(toy, cell)


@pytest.mark.parametrize("name", ["predictions.npz", "record.json"])
def test_killed_while_a_rerun_replaces_a_record(toy, undisturbed, name):
    cell = toy.cell()
    toy.run([cell])
    old = records.read_done(toy.results, cell)
    killed(toy, cell, arrange=lambda: dies_while_writing(name), since=time.time())
    folder = records.cell_folder(toy.results, cell)
    assert records.read_record(folder / "previous-1/record.json") == old
    assert records.wrong_predictions(folder / "previous-1", old) == ""
    assert undisturbed.met(toy, cell)


def test_the_lock_and_the_sign_of_life_of_a_dead_process_hold_nobody_up(toy, undisturbed):
    cell = toy.cell()
    killed(toy, cell, arrange=lambda: dies_at_step(3))
    folder = records.cell_folder(toy.results, cell)
    assert (folder / heartbeat.PROGRESS).exists()
    (state,) = states([cell], toy.results)
    assert state.kind == "waiting"
    assert "died; resumes after step 3" in state.detail
    assert undisturbed.met(toy, cell)
    assert not (folder / heartbeat.PROGRESS).exists()


def test_a_grid_killed_ten_times_ends_in_the_same_leaderboard(toy, made):
    from gcdbench.report.collect import collect
    from gcdbench.report.formats import to_csv, to_markdown

    whole = made.elsewhere("grid")
    request = toy.request("simgcd", "gcd", "orca", seeds=(0, 1))
    cells = toy.cells("simgcd", "gcd", "orca", seeds=(0, 1))
    assert len(cells) == 12
    began = time.monotonic()
    assert ended(fork(lambda: whole.run(cells))) == 0
    length = time.monotonic() - began

    kills, delays = 0, [length * share for share in (0.03, 0.3, 0.11, 0.21, 0.07)] * 2
    for delay in delays:
        pid = fork(lambda: toy.run(cells))
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
        kills += ended(pid) == -signal.SIGKILL
    toy.run(cells)
    assert kills > 4  # the last ones may find the grid done
    one, other = collect(request, toy.results), collect(request, whole.results)
    assert to_csv(one) == to_csv(other)
    assert to_markdown(one, "toy") == to_markdown(other, "toy")
