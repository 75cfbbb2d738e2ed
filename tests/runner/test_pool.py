"""Several processes share the cells of a run; one that dies fails its cell only."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from helpers.toy import Toy, make_toy

from gcdbench.core import registry
from gcdbench.experiment import heartbeat, records
from gcdbench.experiment.outcome import Attempt
from gcdbench.experiment.plan import Cell
from gcdbench.runner.launchers import pool as pool_module
from gcdbench.runner.launchers.pool import (
    Pool,
    Worker,
    block_sigint,
    cause_of_death,
)
from gcdbench.runner.options import RunOptions, WorkerSlot, worker_slots
from gcdbench.runner.stop import Interrupted

KILLER = '''"""A technique that kills its process in the second step of seed 1, or sleeps there."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from gcdbench.training.method import Batch, Clock, Technique


class Killer(Technique):
    @dataclass(frozen=True)
    class Config:
        seconds: float = 0.0

    def mix(self, batch: Batch, clock: Clock) -> Batch:
        if clock.seed == 1 and clock.step == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.config.seconds)
        return batch
'''


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Toy:
    return make_toy(tmp_path_factory.mktemp("toy"), ("toy", "other"))


@pytest.fixture
def killer(tmp_path):
    """Make the technique known, here and in the processes of a pool."""
    path = tmp_path / "killer.py"
    path.write_text(KILLER)
    registry.add_plugin(path)


def two(toy: Toy, **more) -> Pool:
    options = RunOptions(toy.results, device="cpu", **more)
    return Pool(options, [WorkerSlot(0, "cpu", 1), WorkerSlot(1, "cpu", 1)])


@pytest.mark.slow
def test_a_killed_process_fails_its_cell_only_and_the_next_run_goes_on(made, killer):
    toy = made.elsewhere("killed")
    cells = toy.cells("simgcd+killer", seeds=(0, 1, 2), datasets=("toy",))
    outcome = two(toy).run(cells)
    ((failed, message),) = outcome.failed
    assert failed.seed == 1
    assert message.startswith("its process was ended by SIGKILL: the machine is probably out of")
    assert {cell.seed for cell in outcome.trained} == {0, 2}
    note = heartbeat.read(records.cell_folder(toy.results, failed), heartbeat.FAILURE)
    assert note is not None
    assert note["message"] == message


@pytest.mark.slow
def test_a_pool_gives_the_records_of_one_process(made):
    pool, alone = made.elsewhere("pool"), made.elsewhere("alone")
    cells = made.cells("simgcd", "gcd", datasets=("toy",))
    assert len(two(pool).run(cells).trained) == 2
    alone.run(cells)
    for cell in cells:
        one, other = (records.read_done(toy.results, cell) for toy in (pool, alone))
        assert records.same_numbers(one, other)
    assert len(two(pool).run(cells).skipped) == 2


@pytest.mark.slow
def test_a_stop_reaches_all_processes_and_each_saves_its_cell(made, tmp_path, monkeypatch):
    path = tmp_path / "slow.py"
    path.write_text(KILLER.replace("seed == 1", "seed < 0").replace("= 0.0", "= 0.3"))
    registry.add_plugin(path)
    toy = made.elsewhere("stopped")
    cells = toy.cells("simgcd+slow", seeds=(0, 1), datasets=("toy",), train={"epochs": 200})
    folders = [records.cell_folder(toy.results, cell) for cell in cells]

    def training(folder) -> bool:
        return (heartbeat.read(folder, heartbeat.PROGRESS) or {}).get("phase") == "training"

    def interrupt() -> None:
        while not all(map(training, folders)):
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(heartbeat, "BEAT_SECONDS", 0.2)
    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(Interrupted):
        two(toy).run(cells)
    for folder in folders:
        assert len(list(folder.glob(heartbeat.CHECKPOINTS))) == 1
        assert not (folder / heartbeat.FAILURE).exists()
        assert not (folder / heartbeat.PROGRESS).exists()


class Deaf(Pool):
    """A pool whose processes are not started, to look at how cells are chosen."""

    def __init__(self, made: Toy, cells: list[Cell], busy: dict[str, str]) -> None:
        super().__init__(RunOptions(made.results), [])
        self.waiting = [(0.0, cell) for cell in cells]
        self.workers = [
            Worker(WorkerSlot(i, "cpu", 1), None, None, made.cell(), dataset)
            for i, dataset in enumerate(busy.values())
        ]


def test_a_process_gets_cells_of_the_dataset_whose_features_it_has(made):
    cells = made.cells("simgcd", "gcd")
    assert [cell.dataset for cell in cells] == ["toy", "toy", "other", "other"]
    assert Deaf(made, cells, {})._next("other") is cells[2]


def test_a_process_without_features_gets_a_dataset_that_nobody_works_on(made):
    cells = made.cells("simgcd", "gcd")
    assert Deaf(made, cells, {"a": "toy"})._next("") is cells[2]
    assert Deaf(made, cells, {"a": "toy", "b": "other"})._next("") is cells[0]


def test_the_cores_are_divided_among_the_jobs(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(7))
    assert worker_slots("cpu", 3) == [WorkerSlot(i, "cpu", 2) for i in range(3)]
    assert worker_slots("cpu", 20)[19].threads == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    assert worker_slots("cpu", 2)[0].threads == 4


def test_a_process_that_sees_other_code_does_not_train(made):
    def never(cell):
        raise AssertionError

    cell = made.cell()
    answer = pool_module.attempt_with_output(never, made.results, cell, "the key of other code")
    assert answer == Attempt("failed", pool_module.CHANGED)


def test_a_folder_that_cannot_be_made_fails_the_cell_and_not_its_process(made):
    toy = made.elsewhere("in-the-way")
    cell = toy.cell()
    folder = records.cell_folder(toy.results, cell)
    folder.parent.mkdir(parents=True)
    folder.write_text("a file where a folder should be")
    answer = pool_module.attempt_with_output(
        lambda cell: Attempt("trained"), toy.results, cell, cell.key
    )
    assert answer.kind == "failed"
    assert answer.message.startswith(f"{folder} cannot be used (File exists)")


@pytest.fixture
def hearing():
    """Hear Ctrl-C, also where the tests run in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("hearing")
def test_a_process_that_starts_does_not_hear_ctrl_c_and_its_parent_does():
    with block_sigint():
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        child.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(timeout=0.5)
    finally:
        child.kill()
        child.wait()
    with pytest.raises(KeyboardInterrupt), block_sigint():
        os.kill(os.getpid(), signal.SIGINT)


def test_every_gpu_gets_a_process(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert [slot.device for slot in worker_slots("auto", None)] == ["cuda:0", "cuda:1"]
    assert [slot.device for slot in worker_slots("auto", 3)] == ["cuda:0", "cuda:1", "cuda:0"]


@pytest.mark.parametrize(
    ("code", "said"),
    [(-11, "its process was ended by SIGSEGV"), (1, "its process ended with code 1")],
)
def test_the_cause_of_death_is_named(code, said):
    assert cause_of_death(code) == said
