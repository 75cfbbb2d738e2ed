"""Time ``status``, ``plan``, ``leaderboard`` and ``report`` on 10,000 invented records.

    python benchmarks/speed/records.py                        # cells of drawshift, 477 seeds
    python benchmarks/speed/records.py --results DIR          # keep the records, or use them again

Each verb runs twice, in processes of its own, so that imports count: first without an index of the
records, then with the one that the first run has left.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from report import invent

from gcdbench.core import registry
from gcdbench.experiment.plan import Request, make_cells

SUITE, METHODS, DATASETS = "drawshift", 7, 3
VERBS = ("status", "plan", "leaderboard", "report")


def main() -> None:
    """Write records, then time the verbs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--results", type=Path, help="keep the records here")
    parser.add_argument("--verbs", nargs="+", choices=VERBS, default=VERBS)
    arguments = parser.parse_args()
    seeds = tuple(range(-(-arguments.records // (METHODS * DATASETS))))
    methods = tuple(registry.available("method"))[:METHODS]
    with tempfile.TemporaryDirectory() as folder:
        results = arguments.results or Path(folder) / "runs"
        if not results.exists():
            write(methods, seeds, results)
        flags = ["--suite", SUITE, "--methods", *methods, "--seeds", *map(str, seeds)]
        environment = {**os.environ, "GCDBENCH_CACHE": str(Path(folder) / "cache")}
        print(f"{len(list(results.glob('*/*/*/record.json')))} records")
        for verb in arguments.verbs:
            for which in ("first", "again"):
                command = [sys.executable, "-m", "gcdbench", verb, *flags]
                cpu, wall, memory = run([*command, "--results", str(results)], environment)
                print(f"{verb:<12} {which}  {cpu:6.2f} s CPU  {wall:6.2f} s wall  {memory:5.0f} MB")
            for index in (Path(folder) / "cache").rglob("records-*"):
                index.unlink()  # every verb makes its own, the first time


def write(methods: tuple[str, ...], seeds: tuple[int, ...], results: Path) -> None:
    """Write a record of every cell; a power cut may lose them, so disks are not waited for."""
    fsync, os.fsync = os.fsync, lambda handle: None
    try:
        for cell in make_cells(Request(SUITE, methods, seeds=seeds)):
            invent(cell, results)
    finally:
        os.fsync = fsync


def run(command: list[str], environment: Mapping[str, str]) -> tuple[float, float, float]:
    """Run a command; return its seconds of the processor and of the clock, and its peak memory."""
    started = time.perf_counter()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=dict(environment), **quiet) as process:  # type: ignore[call-overload]
        messages = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(messages.decode())
    peak = used.ru_maxrss / (1 if sys.platform == "darwin" else 1024)
    peak = peak / 1024 if sys.platform == "darwin" else peak
    return used.ru_utime + used.ru_stime, time.perf_counter() - started, peak


if __name__ == "__main__":
    main()
