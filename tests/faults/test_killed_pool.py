"""A grid with two jobs that is killed twenty times ends in the same leaderboard, with no orphans.

The moments are new in every run; GCDBENCH_KILL_SEED repeats those of a run that failed.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.toy import Toy, make_toy

from gcdbench.experiment import heartbeat

pytestmark = [pytest.mark.faults, pytest.mark.slow]
VICTIMS = ("parent", "worker", "both")
# of the twenty rounds; the last ones find all cells done, and write the report
MOMENTS = ("import", "training", "checkpoint", "record") * 4 + ("report",) * 4
# every process that trains loads it: a checkpoint after every step, and steps that take their time
PLUGIN = """import time
from gcdbench.plugin import Technique
from gcdbench.runner import cell

cell.CHECKPOINT_SECONDS = 0.0


class Eager(Technique):
    def mix(self, batch, clock):
        time.sleep(0.05)
        return batch
"""
FLAGS = ("--methods", "simgcd+eager", "gcd+eager", "orca+eager", "--seeds", *map(str, range(4)))


def descendants(pid: int) -> set[int]:
    """Return all processes below one."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(path.read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                found |= {int(path.parent.name)} | descendants(int(path.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def delayed(pid: int) -> float:
    """Return for how many seconds a process was ready to run and the processors were taken."""
    waits = [0.0]
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            waits.append(int(path.read_text().split()[1]) / 1e9)
    return max(waits)


def outlive(pids: set[int], limit: float) -> tuple[set[int], float]:
    """Wait until processes are gone; return those left and the seconds that the last one took.

    A process gets ``limit`` seconds in addition to those in which it was not given a processor: on
    a busy machine it has no chance to notice that its parent is dead.
    """
    began, before = time.monotonic(), {pid: delayed(pid) for pid in pids}
    while left := set(filter(alive, pids)):
        took = time.monotonic() - began
        if all(took > limit + delayed(pid) - before[pid] for pid in left):
            break
        time.sleep(0.1)
    return left, time.monotonic() - began


def describe(pid: int) -> str:
    """Say what a process is and what it waits for."""
    with contextlib.suppress(OSError):
        folder = Path(f"/proc/{pid}")
        words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        state = (folder / "stat").read_text().rpartition(")")[2].split()
        return f"{pid}: {words[:200]}, state {state[0]}, {state[11]} ticks, parent {state[1]}"
    return f"{pid}: gone"


def workers(pid: int) -> list[int]:
    """Return the processes that train: not the one that tracks their resources."""
    found = []
    for child in descendants(pid):
        with contextlib.suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return sorted(found)


def wait_for(process: subprocess.Popen[str], toy: Toy, moment: str, rng: random.Random) -> None:
    """Wait until a run has come to a moment, or is over."""
    before, count = len(list(toy.results.glob("*/*/*/record.json"))), 3 * 4 * 2
    while process.poll() is None:
        if moment == "report" and len(list(toy.results.glob("*/*/*/record.json"))) == count:
            break
        if moment == "checkpoint" and any(toy.results.glob("*/*/*/.checkpoint-*")):
            return
        if moment == "import" and len(workers(process.pid)) == 2:
            break
        if moment == "training" and any(toy.results.glob(f"*/*/*/{heartbeat.PROGRESS}")):
            break
        if moment == "record" and len(list(toy.results.glob("*/*/*/record.json"))) > before:
            break
        time.sleep(0.01)
    if moment == "report":  # its first or a later file is written
        files = rng.randrange(9)
        while process.poll() is None and len(list(toy.results.glob("leaderboard/*"))) < files:
            time.sleep(0.001)
    else:
        time.sleep(rng.uniform(0, 1.0 if moment != "import" else 3.0))


def kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.timeout(3000)
def test_a_grid_killed_twenty_times_ends_in_the_same_leaderboard(tmp_path):
    seed = int(os.environ.get("GCDBENCH_KILL_SEED", random.randrange(10**6)))
    sys.stderr.write(f"GCDBENCH_KILL_SEED={seed}\n")
    rng = random.Random(seed)
    whole = make_toy(tmp_path, ("toy", "other"))
    broken = whole.elsewhere("broken")
    (tmp_path / "eager.py").write_text(PLUGIN)
    given = (*FLAGS, "--device", "cpu", "--plugin", str(tmp_path / "eager.py"))
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    assert whole.start("run", *given, "--jobs", "2", **quiet).wait() == 0
    slowest, met = 0.0, set()
    for number, moment in enumerate(MOMENTS):
        victim = VICTIMS[number % 3] if moment != "report" else "parent"
        shutil.rmtree(broken.results / "leaderboard", ignore_errors=True)
        process = broken.start("run", *given, "--jobs", "2", **quiet)
        wait_for(process, broken, moment, rng)
        everybody = {process.pid} | descendants(process.pid)
        some = set(workers(process.pid)[:1]) if victim != "parent" else set()
        met |= {moment} if process.poll() is None else set()
        kill(some | ({process.pid} if victim != "worker" else set()))
        if victim == "worker":  # the run continues without it; its end is not waited for
            time.sleep(1.0)
            everybody |= descendants(process.pid)
            kill({process.pid})
        process.wait()
        left, took = outlive(everybody, 30.0)
        slowest = max(slowest, took)
        count = len(list(broken.results.glob("*/*/*/record.json")))
        sys.stderr.write(f"{number}: {victim} in {moment}, {count} records, gone in {took:.1f} s\n")
        assert not left, list(map(describe, left))
    assert met == set(MOMENTS), f"no process was killed in {set(MOMENTS) - met}"
    sys.stderr.write(f"the last process was gone after {slowest:.1f} s\n")
    broken.start("run", *given, "--jobs", "2", **quiet).wait()
    assert broken.start("run", *given, **quiet).wait() == 0  # also what failed with its worker
    boards = whole.results / "leaderboard", broken.results / "leaderboard"
    for name in ("toy.csv", "toy.md", "toy.tex", "toy.json"):
        one, other = ((board / name).read_bytes() for board in boards)
        assert one == other, name
