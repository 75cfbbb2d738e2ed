"""A grid runs on a real SLURM cluster of this machine; ended jobs are resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from helpers.toy import run_cells

from gcdbench.experiment import heartbeat, records
from gcdbench.experiment.plan import Cell, Request, make_cells
from gcdbench.experiment.record import SPLITS
from gcdbench.runner.launchers import slurm
from gcdbench.runner.status import settled, states

NEEDED = [name for name in ("slurmctld", "slurmd", "munged") if shutil.which(name) is None]
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(NEEDED), reason=f"not installed: {', '.join(NEEDED)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="SLURM's daemons are started by root"),
]
TRAIN = {"epochs": 40, "batch_size": 32, "draws_per_epoch": 96}
STEPS = 120
DATASETS, METHODS, SEEDS = ("line+solid", "line+color"), ("simgcd", "gcd"), (0,)
CONFIG = "partition: test\ngpus: 0\ncpus: 1\nhours: 1\n"
PATIENCE = 900.0  # seconds


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Iterator[Path]:
    """Start a cluster, and stop it at the end."""
    pytest.importorskip("submitit", reason="not installed: submitit")
    script, folder = Path(__file__).parent / "cluster.sh", tmp_path / "cluster"
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    try:
        subprocess.run([script, "start", folder], check=True)
        yield folder
    finally:
        subprocess.run(["scancel", "--user=root", "--signal=KILL"], check=False)
        subprocess.run([script, "stop", folder], check=True)


def the_cells() -> list[Cell]:
    given = {"train": TRAIN}
    return make_cells(Request("drawshift", METHODS, DATASETS, SEEDS, given, quick=True))


def submit(results: Path, config: str, cells: Sequence[Cell], *more: str) -> str:
    """Submit cells by the command line and return what it says."""
    file = results.with_suffix(".yaml")
    file.write_text(config)
    settings = [f"train.{key}={value}" for key, value in TRAIN.items()]
    command = [sys.executable, "-m", "gcdbench", "run", "--suite", "drawshift", "--quick"]
    command += ["--datasets", *dict.fromkeys(cell.dataset for cell in cells)]
    command += ["--methods", *dict.fromkeys(cell.spec.text for cell in cells)]
    command += ["--results", str(results), *more]
    command += [word for setting in settings for word in ("--set", setting)]
    command += ["--launcher", "slurm", "--slurm", str(file), "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


def wait_for(what: str, look: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < end, f"waited too long for {what}"
        time.sleep(0.5)


def events(results: Path, cell: Cell, kind: str) -> list[dict]:
    """Return the lines of one kind in the log of a cell, which is written without delay."""
    log = records.cell_folder(results, cell) / heartbeat.LOG
    lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
    return [row for row in map(json.loads, lines) if row["event"] == kind]


def restarts(job: str) -> int:
    shown = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True)
    return int(shown.stdout.partition("Restarts=")[2].split()[0])


@pytest.mark.slow
def test_jobs_that_are_ended_are_requeued_and_resume_from_their_checkpoint(cluster, tmp_path):
    results, cells = tmp_path / "results", the_cells()
    config = f"{CONFIG}at_a_time: 2\n"
    began = time.monotonic()
    assert "4 cells were submitted" in submit(results, config, cells)
    assert "4 of 4 cells are recorded or have a job already" in submit(results, config, cells)
    preempted, out_of_time = cells[:2]
    folders = [records.cell_folder(results, cell) for cell in cells]
    jobs = [heartbeat.read(folder, heartbeat.JOB)["job"] for folder in folders]

    wait_for("the first epochs", lambda: len(events(results, preempted, "epoch")) >= 2)
    subprocess.run(["scontrol", "requeue", jobs[0]], check=True)
    wait_for("the first epochs", lambda: len(events(results, out_of_time, "epoch")) >= 2)
    # as SLURM does before a time limit; scancel would repeat it until the job is back
    os.kill(states([out_of_time], results)[0].facts["pid"], signal.SIGUSR2)
    wait_for("the jobs to be back", lambda: {jobs[0], jobs[1]} <= set(slurm.queue()))
    wait_for("the grid", lambda: settled(states(cells, results)))

    assert [row.kind for row in states(cells, results)] == ["done"] * 4
    figures = []
    for cell, job in zip((preempted, out_of_time), jobs, strict=False):
        first, second = events(results, cell, "start")
        assert first["restarts"] == 0
        assert second["restarts"] == 1
        assert restarts(job) == 1
        assert 6 <= second["step"] < STEPS
        figures.append(f"job {job} resumed after step {second['step']} of {STEPS}")
    assert all(len(events(results, cell, "start")) == 1 for cell in cells[2:])
    sys.stderr.write(f"4 cells, 4 jobs, {'; '.join(figures)}; {time.monotonic() - began:.0f} s\n")

    alone = tmp_path / "alone"
    run_cells(cells[:2], alone)
    for cell in cells[:2]:
        one, other = (records.read_done(folder, cell) for folder in (alone, results))
        assert records.same_numbers(one, other)


def note(differing: dict[str, float], name: str, one: float | None, other: float | None) -> None:
    """Keep the largest difference of a value that two runs do not share."""
    if one != other:
        assert one is not None
        assert other is not None, name
        differing[name] = max(differing.get(name, 0.0), abs(one - other))


@pytest.mark.slow
def test_a_job_of_two_processes_is_requeued_and_has_the_numbers_of_one(cluster, tmp_path):
    results, alone, cells = tmp_path / "results", tmp_path / "alone", the_cells()[:1]
    assert "1 cells were submitted" in submit(results, CONFIG, cells, "--nproc-per-node", "2")
    wait_for("the first epochs", lambda: len(events(results, cells[0], "epoch")) >= 2)
    job = heartbeat.read(records.cell_folder(results, cells[0]), heartbeat.JOB)["job"]
    subprocess.run(["scontrol", "requeue", job], check=True)
    wait_for("the cell", lambda: settled(states(cells, results)))

    run_cells(cells, alone)
    one, two = (records.read_done(folder, cells[0]) for folder in (alone, results))
    assert two.provenance.processes == 2
    assert two.timing.restarts == restarts(job) == 1
    differing: dict[str, float] = {}  # the largest difference by name
    for name, scores in one.sets.items():
        for rate in (*SPLITS, *scores.rates):
            note(differing, rate, scores.rate(rate), two.sets[name].rate(rate))
    for row, other in zip(one.curve, two.curve, strict=True):
        for term, value in row.terms.items():
            note(differing, f"loss {term}", value, other.terms[term])
    sys.stderr.write(f"largest differences to one process: {differing}\n")
    # the mean of distances and the losses have the rounding of gradients that two processes add up
    losses = {name: differing.pop(name) for name in list(differing) if name.startswith("loss ")}
    assert max(losses.values(), default=0.0) < 1e-5
    assert differing.keys() <= {"silhouette"}
    assert differing.get("silhouette", 0.0) < 1e-6
    step = events(results, cells[0], "start")[1]["step"]
    sys.stderr.write(f"job {job}, 2 processes: resumed after step {step} of {STEPS}\n")


@pytest.mark.slow
def test_a_search_goes_on_when_its_jobs_are_done_and_chooses_as_it_does_here(cluster, tmp_path):
    config, rows = tmp_path / "slurm.yaml", []
    config.write_text(f"{CONFIG}at_a_time: 2\n")
    command = [sys.executable, "-m", "gcdbench", "tune", "--suite", "drawshift", "--quick"]
    command += ["--datasets", "line+solid", "--methods", "simgcd", "rankstats", "--device", "cpu"]
    command += ["--budget", "3", "--seeds", "0", "1", "--tune-seeds", "2"]
    there = ["--launcher", "slurm", "--slurm", str(config)]
    for name, more, calls in (("here", [], 1), ("there", there, 3)):
        for call in range(calls):  # draws, winners, table
            words = [*command, *more, "--results", str(tmp_path / name)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            assert ("run the same command again" in done.stderr) == (call < calls - 1)
            wait_for("the jobs", lambda: not slurm.queue())
        found = json.loads((tmp_path / name / "tune" / "drawshift-quick.json").read_text())
        rows.append([{**row, "cpu_seconds": None} for row in found])
    assert rows[0] == rows[1]
    assert [row["method"] for row in rows[1]] == ["simgcd", "rankstats"]
