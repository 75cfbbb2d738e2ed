"""Cells as tasks of a real Ray on this machine: one is killed, resumed, and nothing listens."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.toy import make_toy

from gcdbench.core import registry
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.experiment.outcome import Attempt
from gcdbench.experiment.record import Record
from gcdbench.runner.launchers import get_launcher
from gcdbench.runner.launchers.ray import Answer, RayLauncher, Task, _keep
from gcdbench.runner.options import RunOptions

DEADLY = '''"""A technique that kills its process in the fifth step of seed 1, once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from gcdbench.plugin import Batch, Clock, Technique
from gcdbench.runner import cell

cell.CHECKPOINT_SECONDS = 0.0  # after every step


class Deadly(Technique):
    def mix(self, batch: Batch, clock: Clock) -> Batch:
        killed = Path({folder!r}) / "killed"
        if clock.seed == 1 and clock.step == 5 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch
'''


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    return make_toy(tmp_path_factory.mktemp("toy"))


def descendants(pid: int) -> set[int]:
    """Return all processes below one."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found |= {int(path.parent.name)} | descendants(int(path.parent.name))
    return found


def listening(pids: set[int]) -> set[str]:
    """Return the addresses, in hexadecimal digits, on which processes listen."""
    inodes = set()
    for pid in pids:
        try:
            links = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
        except OSError:
            continue
        inodes |= {link[8:-1] for link in links if link.startswith("socket:[")}
    found = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.add(fields[1].partition(":")[0])
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_task_is_resumed_and_nothing_listens_to_other_machines(toy, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    path = tmp_path / "deadly.py"
    path.write_text(DEADLY.format(folder=str(tmp_path)))
    flags = ["--methods", "simgcd+deadly", "--seeds", "0", "1", "2", "--plugin", str(path)]
    more = ["--device", "cpu", "--jobs", "2", "--launcher", "ray"]
    with (tmp_path / "said").open("w") as said:
        process = toy.start("run", *flags, *more, stdout=said, stderr=said)
    heard: set[str] = set()
    while process.poll() is None:
        heard |= listening(descendants(process.pid))
        time.sleep(1.0)
    assert process.returncode == 0, (tmp_path / "said").read_text()
    assert heard  # Ray's processes do listen
    assert heard <= {"0100007F", "0000000000000000FFFF00000100007F", f"{1:032X}"}
    assert (tmp_path / "killed").exists()

    monkeypatch.setattr(registry, "_plugins", {kind: {} for kind in registry.KINDS})
    registry.add_plugin(path)
    cells = toy.cells("simgcd+deadly", seeds=(0, 1, 2))
    alone = toy.elsewhere("alone")
    alone.run(cells)
    restarts = {}
    for cell in cells:
        one, other = (records.read_done(t.results, cell) for t in (toy, alone))
        assert isinstance(one, Record), one
        assert records.same_numbers(one, other)
        restarts[cell.seed] = one.timing.restarts
    assert restarts == {0: 0, 1: 1, 2: 0}
    assert list(toy.results.glob(".ray-*")) == []


def test_a_task_on_a_node_without_the_results_folder_hands_its_files_back(toy, tmp_path):
    cell, there = toy.cell(), RunOptions(tmp_path / "not shared", device="cpu")
    answer = Task(cell, cell.key, there, threads=1, token=".ray-x")()
    assert answer.attempt.kind == "trained"
    _keep(records.cell_folder(tmp_path / "here", cell), answer)
    assert records.is_done(tmp_path / "here", cell)
    assert not there.results.exists()


def test_a_task_that_failed_elsewhere_is_noted_here(toy, tmp_path):
    _keep(tmp_path, Answer(Attempt("failed", "out of luck"), {}))
    assert "out of luck" in (tmp_path / "failure.json").read_text()


def test_several_processes_per_cell_are_refused(toy):
    assert isinstance(get_launcher("ray"), RayLauncher)
    with pytest.raises(UserError, match="--nproc-per-node: not with --launcher ray"):
        RayLauncher().run([toy.cell()], RunOptions(toy.results, processes=2))


def test_without_ray_the_remedy_is_said(toy, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    options = RunOptions(tmp_path, device="cpu")
    with pytest.raises(UserError, match=r"pip install 'gcdbench\[ray\]'"):
        RayLauncher().run([toy.cell()], options)


def test_listing_launchers_does_not_import_ray():
    code = "import sys, gcdbench.runner.launchers.ray; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
