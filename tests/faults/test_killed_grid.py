"""A grid of the embedded suite that is killed again and again ends in the same leaderboard.

The moments are new in every run; GCDBENCH_KILL_SEED repeats those of a run that failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcdbench.experiment import heartbeat

pytestmark = [pytest.mark.faults, pytest.mark.slow]
KILLS = 10
# the command line, with a checkpoint after every step and signs of life that tell the moment
COMMAND = """
import sys
from gcdbench.cli.main import main
from gcdbench.runner import cell
from gcdbench.experiment import heartbeat
cell.CHECKPOINT_SECONDS, heartbeat.BEAT_SECONDS = 0.0, 0.02
sys.exit(main(sys.argv[1:]))
"""
GRID = ["--suite", "drawshift", "--quick", "--methods", "simgcd", "gcd", "uno", "rankstats"]
# small steps, so that training and its checkpoints take as long as all the rest
GRID += ["--set", "train.batch_size=16", "--set", "train.epochs=2"]


def start(results: Path) -> subprocess.Popen[bytes]:
    """Start the grid in a process group of its own."""
    command = [sys.executable, "-c", COMMAND, "run", *GRID, "--results", str(results)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with results.with_suffix(".log").open("ab") as log:
        out = {"stdout": subprocess.DEVNULL, "stderr": log, "env": environment}
        return subprocess.Popen(command, start_new_session=True, **out)


def messages(results: Path) -> str:
    return results.with_suffix(".log").read_text(encoding="utf-8")


def worked(pid: int) -> float:
    """Return the seconds of computing time of a process: the moments do not depend on the load."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")


def wait_until(process: subprocess.Popen[bytes], reached: Callable[[], bool]) -> None:
    while process.poll() is None and not reached():
        time.sleep(0.005)


def uninterrupted(results: Path) -> tuple[float, float]:
    """Run the grid; return its computing time before the first cell, and after that."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = start(results)
    wait_until(process, lambda: any(results.glob(f"*/*/*/{heartbeat.LOCK}")))
    ready = worked(process.pid)
    assert process.wait() == 0, messages(results)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return ready, total - ready


def moment(results: Path, pid: int) -> str:
    """Tell in what a process was killed."""
    count = len(list(results.glob("*/*/*/record.json")))
    for path in results.glob(f"*/*/*/{heartbeat.PROGRESS}"):
        facts = heartbeat.read(path.parent, heartbeat.PROGRESS)
        if facts is not None and facts["pid"] == pid:
            place = "/".join(path.parts[-4:-2])
            step = f" step {facts['step']} of {facts['steps']}" if "step" in facts else ""
            writing = " (writing a checkpoint)" if any(path.parent.glob(".checkpoint-*")) else ""
            return f"{count} records, {place}: {facts['phase']}{step}{writing}"
    return f"{count} records, between cells"


def without_times(page: str) -> tuple[str, Any]:
    """Return a page without what its runs have cost: seconds, memory, starts in the logs."""
    mark = '<script type="application/json" id="data">'
    head, _, rest = page.partition(mark)
    data, _, tail = rest.partition("</script>")

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            costs = ("seconds", "memory", "log")
            return {key: strip(item) for key, item in value.items() if key not in costs}
        return [strip(item) for item in value] if isinstance(value, list) else value

    return head + tail, strip(json.loads(data))


def test_a_grid_killed_at_ten_random_moments_ends_in_the_same_leaderboard(tmp_path):
    seed = int(os.environ.get("GCDBENCH_KILL_SEED", random.randrange(10**6)))
    sys.stderr.write(f"GCDBENCH_KILL_SEED={seed}\n")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    ready, length = uninterrupted(whole)
    sys.stderr.write(f"uninterrupted: {ready:.1f} s to the first cell, {length:.1f} s from there\n")

    # moments of the uninterrupted run: each run is killed where it has come as far as the next one
    moments = np.sort(np.random.RandomState(seed).uniform(0, 0.95 * length, KILLS))
    for since, until in zip([0.0, *moments], moments, strict=False):
        process = start(broken)
        wait_until(process, lambda end=ready + until - since, p=process: worked(p.pid) >= end)
        with contextlib.suppress(ProcessLookupError):  # it is over, which the next line tells
            os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, messages(broken)
        sys.stderr.write(f"killed at {until:.2f} s: {moment(broken, process.pid)}\n")
    assert start(broken).wait() == 0, messages(broken)

    boards = whole / "leaderboard", broken / "leaderboard"
    names = [sorted(path.name for path in board.iterdir()) for board in boards]
    assert names[0] == names[1]
    assert len(names[0]) == 8
    for name in names[0]:
        one, other = ((board / name).read_bytes() for board in boards)
        if name == "drawshift-quick.html":
            assert without_times(one.decode()) == without_times(other.decode())
        else:
            assert one == other, name
