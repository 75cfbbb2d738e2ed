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

import numpy as np

from gcdbench.core import registry
from gcdbench.experiment import records
from gcdbench.experiment.key import score_version
from gcdbench.experiment.plan import Cell, Request, make_cells
from gcdbench.experiment.record import (
    CurvePoint,
    ProblemFacts,
    Provenance,
    Record,
    SetScores,
    Timing,
    part,
)
from gcdbench.training.scoring.scores import score_predictions


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
    preds = {}
    for name, evaluated in problem.sets.items():
        labels = problem.labels[evaluated.rows]
        guess = rng.randint(problem.num_classes, size=len(labels))
        preds[name] = np.where(rng.rand(len(labels)) < 0.5, labels, guess).astype(np.int32)
    scores = score_predictions(preds, problem)
    sizes = problem.num_classes, problem.num_old, problem.num_classes
    record = Record(
        key=cell.key,
        dataset=cell.dataset,
        method=cell.spec.text,
        seed=cell.seed,
        settings=cell.settings(),
        fingerprints=cell.fingerprints(),
        problem=ProblemFacts(*sizes, len(problem.labelled), len(problem.unlabelled), {}),
        scores=score_version(),
        sets={name: part(SetScores, one) for name, one in scores.sets.items()},
        summary={name: part(SetScores, one) for name, one in scores.summary.items()},
        curve=tuple(CurvePoint(n, 0.1, {"loss": 1 / (n + 1)}) for n in range(15)),
        provenance=Provenance({"gcdbench": "0"}, "none", "none", "none", 1, 1),
        timing=Timing(0.0, 0, 1.0, 1.0, 1.0),
    )
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
