"""What a GPU would see: launches of kernels, synchronisations by source line, bytes copied."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

OWN = ("gcdbench", "methods")
ROOT = Path(__file__).parents[3]


@dataclass
class Counts:
    """Counts of one stretch of code."""

    launches: int = 0
    syncs: Counter[tuple[str, str]] = field(default_factory=Counter)  # (kind, source line)
    copied: Counter[str] = field(default_factory=Counter)  # bytes by direction

    def sync(self, kind: str) -> None:
        """Note that the host waits for the device."""
        self.syncs[kind, source_line()] += 1


class Unread(Counts):
    """Counts that nobody reads: to look for the source line takes longer than the operation."""

    def sync(self, kind: str) -> None:
        """Note nothing."""


_current: list[Counts] = []
_unread = Unread()


def current() -> Counts:
    """Return what is being counted into; of no interest to anybody outside ``counting``."""
    return _current[-1] if _current else _unread


@contextmanager
def counting() -> Iterator[Counts]:
    """Count what happens in the context."""
    _current.append(Counts())
    try:
        yield _current[-1]
    finally:
        _current.pop()


def source_line() -> str:
    """Return the innermost line of ours, or the innermost one of all outside of this package."""
    frame, first = sys._getframe(1), ""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in OWN:
            return f"{path.relative_to(ROOT)}:{frame.f_lineno}"
        if not first and path.parent != Path(__file__).parent:
            first = f"{path.name}:{frame.f_lineno}"
        frame = frame.f_back
    return first
