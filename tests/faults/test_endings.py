"""Plug-ins that end the process, and cells that hang: the cell fails and the run continues."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from helpers.faults import ended, fork
from helpers.toy import Toy

from gcdbench.cli import main as cli
from gcdbench.core import registry
from gcdbench.experiment import heartbeat, records
from gcdbench.runner import stop as stop_module
from gcdbench.runner import watchdog
from gcdbench.runner.contained import Contained, PluginExit
from gcdbench.runner.status import describe
from gcdbench.runner.stop import Interrupted, Stop

pytestmark = pytest.mark.faults
PLUGIN = '''"""A technique that does something at import or in the second step."""

from __future__ import annotations

import os
import sys
import time

from gcdbench.plugin import Batch, Clock, Technique

{at_import}


class Ender(Technique):
    def mix(self, batch: Batch, clock: Clock) -> Batch:
        if clock.step == 1:
            {in_step}
        return batch
'''


@pytest.fixture
def ender(tmp_path, monkeypatch):
    """Return a function that writes a technique and returns its file."""
    monkeypatch.setattr(registry, "_plugins", {kind: {} for kind in registry.KINDS})

    def write(in_step: str = "pass", at_import: str = "") -> Path:
        path = tmp_path / "ender.py"
        path.write_text(PLUGIN.format(in_step=in_step, at_import=at_import))
        return path

    return write


ENDINGS = {
    "sys.exit(0)": "SystemExit: 0",
    "raise SystemExit": "SystemExit",
    "raise GeneratorExit": "GeneratorExit",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "os._exit(0)": r"os._exit(0)",
    "raise BaseException('boom')": "BaseException: boom",
}


@pytest.mark.parametrize("code", ENDINGS)
def test_a_step_that_ends_the_process_fails_its_cell_only(toy, ender, capsys, code):
    command = toy.command("run", "--methods", "simgcd+ender", "gcd", "--datasets", "toy")[3:]
    assert cli.main([*command, "--plugin", str(ender(code))]) == 1
    said = capsys.readouterr().err
    assert f"tried to end the run ({ENDINGS[code]}" in said or ENDINGS[code] in said
    assert "1 of 2 cells failed" in said
    assert records.is_done(toy.results, toy.cell("gcd"))
    (note,) = toy.results.glob(f"toy/simgcd+ender/*/{heartbeat.FAILURE}")
    assert "tried to end the run" in note.read_text()


@pytest.mark.parametrize("code", ["sys.exit(0)", "raise KeyboardInterrupt", "os._exit(0)"])
def test_an_import_that_ends_the_process_fails_its_cell_only(toy, ender, capsys, code):
    command = toy.command("run", "--methods", "simgcd+ender", "gcd", "--datasets", "toy")[3:]
    assert cli.main([*command, "--plugin", str(ender(at_import=code))]) == 1
    assert "1 of 2 cells failed" in capsys.readouterr().err
    assert records.is_done(toy.results, toy.cell("gcd"))


def test_a_check_of_a_plugin_that_ends_the_process_does_not_look_like_success(ender, capsys):
    assert cli.main(["check", str(ender(at_import="sys.exit(0)"))]) != 0
    assert "SystemExit" in capsys.readouterr().err


def test_a_dataset_that_ends_the_process_is_refused_with_a_sentence(toy, tmp_path, ender, capsys):
    path = tmp_path / "gone.py"
    path.write_text(
        "import sys\nfrom gcdbench.data.problem import Dataset\n\n\n"
        "class Gone(Dataset):\n    def problem(self, name):\n        sys.exit(0)\n"
    )
    suite = tmp_path / "gone.yaml"
    suite.write_text("datasets: {x: {source: gone}}\n")
    command = Toy(suite, toy.results).command("run", "--methods", "simgcd")[3:]
    assert cli.main([*command, "--plugin", str(path)]) == 2
    assert "dataset x: " in capsys.readouterr().err


def test_a_stop_that_a_signal_has_asked_for_goes_through():
    stop = Stop()
    stop.heard = signal.SIGINT
    with pytest.raises(KeyboardInterrupt), Contained(stop):
        raise KeyboardInterrupt
    with pytest.raises(Interrupted), Contained(Stop()):
        raise Interrupted
    with pytest.raises(PluginExit), Contained(Stop()):
        raise KeyboardInterrupt


def test_a_child_that_a_cell_forks_can_exit():
    with Contained(Stop()):
        pid = os.fork()
        if pid == 0:
            os._exit(7)
    assert ended(pid) == 7


def test_a_cell_that_hangs_fails_at_its_time_limit_and_the_run_goes_on(toy, ender):
    registry.add_plugin(ender("time.sleep(1000)"))
    cells = [*toy.cells("simgcd+ender", datasets=("toy",)), toy.cell("gcd")]
    began = time.monotonic()
    outcome = toy.run(cells, cell_timeout=12.0)
    assert time.monotonic() - began < 60
    ((failed, message),) = outcome.failed
    assert failed.spec.text == "simgcd+ender"
    assert "longer than --cell-timeout allows (0.2 minutes)" in message
    assert [cell.spec.text for cell in outcome.trained] == ["gcd"]


def test_a_cell_that_makes_no_step_fails_although_it_computes(toy, ender):
    registry.add_plugin(ender("while True: pass"))
    ((_, message),) = toy.run(
        toy.cells("simgcd+ender", datasets=("toy",)), stall_timeout=6.0
    ).failed
    assert "no step for 0.1 minutes (--stall-timeout)" in message


SWALLOW = """
            while True:
                try:
                    time.sleep(1)
                except BaseException:
                    pass"""


def test_a_cell_that_swallows_the_limit_takes_its_process_with_it(toy, ender):
    registry.add_plugin(ender(SWALLOW))
    cells = toy.cells("simgcd+ender", datasets=("toy",))

    def run() -> None:
        watchdog.GRACE_SECONDS = 1.0
        toy.run(cells, stall_timeout=6.0)

    assert ended(fork(run)) == watchdog.FAILED
    note = heartbeat.read(records.cell_folder(toy.results, cells[0]), heartbeat.FAILURE)
    assert note is not None
    assert "its process had to be ended" in note["message"]


def wait_for_step(toy: Toy, process: subprocess.Popen[str] | None = None) -> None:
    """Wait until a cell has made its first step."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process is None or process.poll() is None, process.stderr.read()
        for path in toy.results.glob(f"*/*/*/{heartbeat.PROGRESS}"):
            if (heartbeat.read(path.parent, heartbeat.PROGRESS) or {}).get("step"):
                return
        time.sleep(0.1)
    raise AssertionError("no step in a minute")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("code", ["while True: pass", SWALLOW], ids=["loops", "swallows"])
def test_a_second_signal_ends_a_hung_cell(toy, ender, number, code):
    registry.add_plugin(ender(code))
    cells = toy.cells("simgcd+ender", datasets=("toy",))

    def run() -> None:
        heartbeat.BEAT_SECONDS, stop_module.GRACE_SECONDS = 0.1, 1.0
        toy.run(cells)

    pid = fork(run)
    wait_for_step(toy)
    os.kill(pid, number)
    time.sleep(stop_module.TWICE_SECONDS + 0.5)
    assert os.waitpid(pid, os.WNOHANG) == (0, 0)  # the first one waits for the end of the step
    os.kill(pid, number)
    assert ended(pid) == 130


def test_two_signals_at_once_are_one():
    with Stop() as stop:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked


def test_the_heartbeat_says_since_when_no_step_was_made():
    now = time.time()
    facts = {"phase": "training", "pid": 1, "host": "h", "updated": now, "eta": 60.0}
    assert "no step for 10 min" in describe({**facts, "stepped": now - 600})
    assert "left" in describe({**facts, "stepped": now - 1})


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> set[int]:
    """Return all processes below one."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            child = int(path.parent.name)
            found |= {child} | children(child)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.3, 1.5, 3.0])
@pytest.mark.parametrize(
    "flags", [["--jobs", "2"], ["--nproc-per-node", "2"]], ids=["pool", "group"]
)
def test_no_process_outlives_a_parent_killed_while_they_import(toy, ender, flags, delay):
    slow = ("--plugin", str(ender("time.sleep(1000)")), "--seeds", "0", "1")
    process = toy.start("run", "--methods", "simgcd+ender", *flags, *slow, "--device", "cpu")
    seen: set[int] = set()
    while len(seen) < 3:  # two workers and the tracker of their resources
        assert process.poll() is None, process.stderr.read()
        seen = children(process.pid)
        time.sleep(0.02)
    time.sleep(delay)
    seen |= children(process.pid)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 40  # they import for some seconds, then have 15 s of grace
    while any(map(alive, seen)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(map(alive, seen))


@pytest.mark.slow
def test_the_processes_that_load_images_do_not_outlive_a_killed_run(toy, ender):
    slow = ("--plugin", str(ender("time.sleep(1000)")), "--workers", "2", "--device", "cpu")
    train = ("--set", "train.view_bank=0", "--datasets", "toy")
    process = toy.start("run", "--methods", "simgcd+ender", *slow, *train)
    wait_for_step(toy, process)
    seen = children(process.pid)
    assert len(seen) >= 2
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 30
    while any(map(alive, seen)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(map(alive, seen))
