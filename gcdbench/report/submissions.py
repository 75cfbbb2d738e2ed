"""Rows of a leaderboard that others have trained: who did, and whether it was repeated.

They are listed in ``submissions.yaml`` of a results folder, see results/CONTRIBUTING.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from gcdbench.core.config import build
from gcdbench.core.files import read_regular
from gcdbench.errors import UserError

FILE = "submissions.yaml"
MARKS = {"self-reported": "§", "verified": "✓"}
MEANINGS = {
    "self-reported": "trained by others; the scores were computed again from their predictions, "
    "the training was not repeated",
    "verified": "trained by others; a part was trained again from their code, with the same scores",
}
_BY = re.compile(r"[\w .,&'()/-]{1,80}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST = 1 << 20  # bytes of the file


@dataclass(frozen=True)
class Submission:
    """A method whose records were made by others."""

    by: str
    status: str
    pack: str  # sha256 of the pack that its records came in
    note: str = ""  # of what was repeated, and how

    def __post_init__(self) -> None:
        if self.status not in MARKS:
            raise ValueError(f"status must be {' or '.join(MARKS)}, got {self.status[:40]!r}")
        if not _BY.fullmatch(self.by):
            raise ValueError("by must be a name of up to 80 letters")
        if not _DIGEST.fullmatch(self.pack):
            raise ValueError("pack must be the sha256 of the pack, 64 digits")


def read_submissions(results: Path) -> dict[str, Submission]:
    """Return the submissions to a results folder by method; none without the file."""
    path = results / FILE
    if not path.exists():
        return {}
    try:
        content = yaml.safe_load(read_regular(path, most=_MOST))
        if not isinstance(content, Mapping):
            raise UserError("expected methods with what is known about them")
        return {str(name): build(Submission, one, str(name)) for name, one in content.items()}
    except (UserError, yaml.YAMLError, OSError, RecursionError, AttributeError, TypeError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{path}: {text}") from error


def sentences(submissions: Mapping[str, Submission], titles: Mapping[str, str]) -> Iterable[str]:
    """Yield what marks mean and whom they concern, for the methods that have titles."""
    for status, mark in MARKS.items():
        named = [
            f"{titles[method]} ({one.by})"
            for method, one in submissions.items()
            if one.status == status and method in titles
        ]
        if named:
            yield f"{mark} {status.capitalize()}: {', '.join(named)}, {MEANINGS[status]}."
