"""Time ``gcdbench report`` and ``leaderboard`` on invented records of real cells.

    python benchmarks/speed/report.py               # 210 cells of drawshift

Records are written once; then each verb runs in a process of its own, so that imports count.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from gcdbench.core import registry
from gcdbench.experiment import records
from gcdbench.experiment.plan import Cell, Request, make_cells
from gcdbench.training.scores import score


def main() -> None:
    """Write records, then time the verbs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--results", type=Path, help="keep the records here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = arguments.results or Path(folder)
        methods = tuple(registry.available("method"))[:7]
        request = Request("drawshift", methods, seeds=tuple(range(arguments.seeds)))
        cells = make_cells(request)
        for cell in cells:
            invent(cell, results)
        print(f"{len(cells)} records")
        for verb in ("leaderboard", "report"):
            measure(verb, results)


def invent(cell: Cell, results: Path) -> None:
    """Write a record of a cell that was never trained."""
    problem, rng = cell.problem(), np.random.RandomState(cell.seed)
    preds, sets = {}, {}
    for name, evaluated in problem.sets.items():
        labels = problem.labels[evaluated.rows]
        guess = rng.randint(problem.num_classes, size=len(labels))
        preds[name] = np.where(rng.rand(len(labels)) < 0.5, labels, guess).astype(np.int32)
        scores = score(preds=preds[name], labels=labels, num_old=problem.num_old)
        sets[name] = {"role": evaluated.role, **scores.as_dict()}
    curve = [{"epoch": n, "lr": 0.1, "terms": {"loss": 1 / (n + 1)}} for n in range(15)]
    record: dict[str, Any] = {
        "key": cell.key,
        "dataset": cell.dataset,
        "method": cell.spec.text,
        "seed": cell.seed,
        "settings": cell.settings(),
        "fingerprints": cell.fingerprints(),
        "problem": {"num_classes": problem.num_classes, "num_old": problem.num_old},
        "sets": sets,
        "summary": {},
        "curve": curve,
        "provenance": {"versions": {"gcdbench": "0"}, "device": "none"},
        "timing": {"wall_seconds": 1.0},
    }
    records.write_record(records.cell_folder(results, cell), record, preds)


def measure(verb: str, results: Path) -> None:
    """Run a verb in a process of its own and print what it took."""
    command = [sys.executable, "-m", "gcdbench", verb, "--suite", "drawshift"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    seeds = [str(n) for n in range(len({p.name.split("-")[0] for p in results.glob("*/*/seed*")}))]
    subprocess.run(
        [*command, "--results", str(results), "--seeds", *seeds], check=True, capture_output=True
    )
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{verb:<12} {wall:5.2f} s wall, {cpu:5.2f} s of the processor")


if __name__ == "__main__":
    main()
