"""A problem: which images there are, which are labelled, and which sets are scored.

Nothing here imports torch: plans and reports read problems too.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from gcdbench.data.images import Images


Role = Literal["source", "shifted", "unseen"]  # unseen: no image of that domain is trained on


@dataclass(frozen=True)
class EvalSet:
    """Images that are scored together, with an assignment of their own."""

    rows: np.ndarray
    role: Role


@dataclass(frozen=True)
class Problem:
    """One dataset of a suite, ready to be trained and scored on."""

    name: str
    classes: tuple[str, ...]  # old ones first
    num_old: int
    images: Images
    labels: np.ndarray  # (n,) of all images; those of unlabelled ones are for the evaluator only
    labelled: np.ndarray  # rows that are trained on with their labels
    unlabelled: np.ndarray  # rows that are trained on without
    sets: dict[str, EvalSet]
    notes: dict[str, str] = field(default_factory=dict)  # facts that a record should name

    @property
    def num_classes(self) -> int:
        """Number of old and new classes."""
        return len(self.classes)

    @property
    def pool(self) -> np.ndarray:
        """Rows of the training images: labelled ones first."""
        return np.concatenate([self.labelled, self.unlabelled])

    @property
    def visible_labels(self) -> np.ndarray:
        """Labels of the training pool, -1 where they are hidden."""
        hidden = np.full(len(self.unlabelled), -1, dtype=np.int64)
        return np.concatenate([self.labels[self.labelled], hidden])

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that defines the problem but the pixels."""
        digest = hashlib.sha256()
        digest.update(json.dumps([self.classes, self.num_old, self.notes]).encode())
        digest.update("\n".join(self.images.ids).encode())
        for rows in (self.labels, self.labelled, self.unlabelled):
            digest.update(np.ascontiguousarray(rows, dtype="<i8").tobytes())
        for name, evaluated in sorted(self.sets.items()):
            digest.update(f"{name}/{evaluated.role}".encode())
            digest.update(np.ascontiguousarray(evaluated.rows, dtype="<i8").tobytes())
        return digest.hexdigest()

    def limited(self, number: int) -> Problem:
        """Return a smaller problem: at most ``number`` images in each part and evaluation set."""
        rng = np.random.RandomState(0)

        def few(rows: np.ndarray) -> np.ndarray:
            return np.sort(rng.permutation(rows)[:number])

        sets = {name: replace(s, rows=few(s.rows)) for name, s in self.sets.items()}
        trained = [s.rows[np.isin(s.rows, self.unlabelled)] for s in sets.values()]
        return replace(
            self,
            labelled=few(self.labelled),
            unlabelled=np.unique(np.concatenate(trained)),
            sets=sets,
            notes={**self.notes, "limited to": str(number)},
        )


class Source(ABC):
    """Base class of dataset sources: from a dataset's settings and a data root to a problem.

    One source a file in gcdbench/data/sources/; its nested Config says what a suite may set.
    """

    homepage: ClassVar[str] = ""

    @dataclass(frozen=True)
    class Config:
        """Settings of a dataset."""

    def __init__(self, config: Any, root: Path | None) -> None:
        self.config = config
        self.root = root

    @abstractmethod
    def problem(self, name: str) -> Problem:
        """Build the problem; raise a UserError that says what is missing and where to put it."""
