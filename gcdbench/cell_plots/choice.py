"""Choose the images that a plot shows: the same ones for every method and seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gcdbench.data.problem import Problem
from gcdbench.errors import unknown
from gcdbench.experiment.record import Record

Rows = NDArray[np.int64]


def domains(problem: Problem, number: int) -> dict[str, Rows]:
    """Return up to ``number`` images of each domain that is trained on, the source first.

    Severities of one corruption are one domain: the set ``fog/3`` belongs to ``fog``.
    """
    rng = np.random.RandomState(0)
    found: dict[str, list[Rows]] = {}
    for role in ("source", "shifted"):
        for name, evaluated in problem.sets.items():
            if evaluated.role == role:
                found.setdefault(name.partition("/")[0], []).append(evaluated.rows)
    together = {name: np.unique(np.concatenate(rows)) for name, rows in found.items()}
    return {name: np.sort(rng.permutation(rows)[:number]) for name, rows in together.items()}


def sets(record: Record, problem: Problem, asked: Sequence[str]) -> list[str]:
    """Return the evaluation sets that were asked for, or source and the worst shifted one."""
    for name in asked:
        if name not in problem.sets:
            raise unknown("evaluation set", name, problem.sets, problem.name)
    if asked:
        return list(asked)
    by_role = {
        role: [name for name, scores in record.sets.items() if scores.role == role]
        for role in ("source", "shifted")
    }
    worst = sorted(by_role["shifted"], key=lambda name: record.sets[name].all)
    return [*by_role["source"][:1], *worst[:1]]


def spread(points: NDArray[np.float64], number: int) -> list[int]:
    """Return indices of distant points: each is the farthest from those chosen before."""
    chosen = [int(np.argmax(np.linalg.norm(points - points.mean(0), axis=1)))]
    while len(chosen) < min(number, len(points)):
        gaps = np.linalg.norm(points[:, None] - points[chosen], axis=-1).min(1)
        chosen.append(int(gaps.argmax()))
    return chosen
