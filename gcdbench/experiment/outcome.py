"""The results of running cells: of one attempt, and of all cells of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gcdbench.experiment.plan import Cell

CHANGED = "code or data have changed since the run was started: start again"


@dataclass(frozen=True)
class Attempt:
    """The result of trying to run one cell; busy: another run is training it."""

    kind: Literal["trained", "skipped", "failed", "busy"]
    message: str = ""


@dataclass
class Outcome:
    """The cells of a run, by their result."""

    trained: list[Cell] = field(default_factory=list)
    skipped: list[Cell] = field(default_factory=list)  # recorded already
    failed: list[tuple[Cell, str]] = field(default_factory=list)
    submitted: list[str] = field(default_factory=list)  # jobs that a scheduler will run later
