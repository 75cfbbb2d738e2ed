"""Records of draws with random predictions, scored by the labels of their problems."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gcdbench.data.problem import Problem
from gcdbench.experiment import records
from gcdbench.experiment.plan import Cell
from gcdbench.experiment.record import Record, SetScores, part
from gcdbench.training.scoring.scores import score_predictions
from helpers.synthetic_records import record_of


def with_predictions(cell: Cell, problem: Problem, seed: int) -> tuple[Record, dict]:
    """Return a record of a cell with random predictions, scored by the problem's labels."""
    rng = np.random.RandomState(seed)
    preds = {n: rng.randint(problem.num_classes, size=len(s.rows)) for n, s in problem.sets.items()}
    given = {"silhouette": {name: np.float32(0.01 * seed) for name in problem.sets}}
    found = score_predictions(preds, problem, given)
    sets = {name: part(SetScores, one) for name, one in found.sets.items()}
    summary = {name: part(SetScores, one) for name, one in found.summary.items()}
    return record_of(cell, sets=sets, summary=summary), preds


def write(results: Path, cell: Cell, seed: int) -> Record:
    """Write such a record and return it."""
    record, preds = with_predictions(cell, cell.problem(), seed)
    records.write_record(records.cell_folder(results, cell), record, preds)
    return record
