"""Hide a part of the old classes, so that settings can be chosen without hidden labels.

A fold of a dataset is a problem like the true one: some old classes lose their labels and play the
new ones, and a share of the other labelled images is held out. Both join the unlabelled images;
true new classes and shifted domains stay in, unlabelled. The images whose labels were taken away
here are the set ``selection``: their labels are known to whoever tunes. Which classes a fold hides
is fixed by lists with a version. No label of an unlabelled image is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from gcdbench.data.corrupted import CorruptedImages, Recipe
from gcdbench.data.images import Images, JoinedImages
from gcdbench.data.problem import EvalSet, Problem
from gcdbench.data.splits import class_file, hold_out
from gcdbench.data.tuning.names import FOLDS, SELECTION, VARIANTS
from gcdbench.errors import UserError

HIDDEN = 0.25  # of the old classes in a fold
HELD_OUT = 0.2  # of the labelled images of each class that keeps its labels, as in released codes
SEVERITY = 2


def hidden_classes(num_old: int, fold: int) -> tuple[list[int], str]:
    """Return the old classes that a fold hides, in order, and what a record notes about it."""
    if not 0 <= fold < FOLDS:
        raise UserError(f"fold {fold}: there are 0 to {FOLDS - 1}")
    if num_old < 2:
        raise UserError("tuning hides old classes: a dataset needs two of them or more")
    lists = class_file("tuning_folds")
    order = lists["orders"].get(str(num_old))
    drawn = order is None
    if order is None:  # a user's dataset: as the lists of the project were drawn
        order = np.random.RandomState(num_old).permutation(num_old).tolist()
    number = max(1, round(HIDDEN * num_old))
    hidden = sorted(order[(fold * number + place) % num_old] for place in range(number))
    how = "drawn" if drawn else f"lists {lists['version']}"
    return hidden, f"fold {fold} ({how}): {number} of {num_old} old classes hidden"


def hide_classes(problem: Problem, fold: int) -> Problem:
    """Return a fold of a problem."""
    taken = {SELECTION, *VARIANTS} & problem.sets.keys()
    if taken:
        raise UserError(f"dataset {problem.name}: rename the domain {taken.pop()!r} to tune on it")
    hidden, note = hidden_classes(problem.num_old, fold)
    kept = [label for label in range(problem.num_old) if label not in hidden]
    order = np.array([*kept, *hidden, *range(problem.num_old, problem.num_classes)])
    relabelled = np.empty(len(order), dtype=np.int64)
    relabelled[order] = np.arange(len(order))
    labels = relabelled[problem.labels]

    loses = np.isin(problem.labels[problem.labelled], hidden)
    stays, held = hold_out(problem.labelled[~loses], labels, HELD_OUT)
    if not len(stays) or not len(held) or not loses.any():
        raise UserError(
            f"dataset {problem.name}: too few labelled images to hide classes and hold images out"
        )
    chosen = np.sort(np.concatenate([problem.labelled[loses], held]))
    recipe = Recipe(tuple(VARIANTS.values()), (SEVERITY,), size=0)
    corrupted = CorruptedImages(_Chosen(problem.images, chosen), recipe)
    first = len(problem.images) + np.arange(len(chosen))
    sets = {SELECTION: EvalSet(chosen, "validation")}
    for number, name in enumerate(VARIANTS):
        sets[name] = EvalSet(first + number * len(chosen), "validation")
    sets |= {n: s for n, s in problem.sets.items() if s.role in ("source", "shifted")}
    return replace(
        problem,
        classes=tuple(problem.classes[label] for label in order),
        num_old=len(kept),
        images=JoinedImages(problem.images, corrupted),
        labels=np.concatenate([labels, *[labels[chosen]] * len(VARIANTS)]),
        labelled=stays,
        unlabelled=np.concatenate([problem.unlabelled, chosen]),
        sets=sets,
        notes={**problem.notes, "tuning": note},
    )


class _Chosen(Images):
    """Some images of a list."""

    def __init__(self, images: Images, rows: Sequence[int] | np.ndarray) -> None:
        self.images = images
        self.rows = [int(row) for row in rows]
        self.ids = [images.ids[row] for row in self.rows]

    def open(self, row: int) -> Image.Image:
        return self.images.open(self.rows[row])

    def resized(self, row: int, size: int) -> np.ndarray:
        return self.images.resized(self.rows[row], size)

    def place(self, row: int) -> str:
        return self.images.place(self.rows[row])

    def stamp(self, row: int) -> str:
        return self.images.stamp(self.rows[row])

    def stored(self, folder: Path) -> Images:
        return _Chosen(self.images.stored(folder), self.rows)
