"""Leaderboards in all formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gcdbench.core.files import write_atomically
from gcdbench.report.collect import Collection
from gcdbench.report.formats.data import as_csv, as_json
from gcdbench.report.formats.latex import as_latex
from gcdbench.report.formats.markdown import as_markdown
from gcdbench.report.leaderboard import Leaderboard, make_leaderboard

FORMATS: dict[str, Callable[[Leaderboard], str]] = {
    "md": as_markdown,
    "csv": as_csv,
    "latex": as_latex,
    "json": as_json,
}
SUFFIXES = {"latex": "tex"}


def write_all(leaderboard: Leaderboard, folder: Path) -> list[Path]:
    """Write a leaderboard in all formats and return the paths."""
    paths = []
    for name, render in FORMATS.items():
        path = folder / f"{leaderboard.suite}.{SUFFIXES.get(name, name)}"
        write_atomically(path, render(leaderboard).encode())
        paths.append(path)
    return paths


def to_csv(collection: Collection) -> str:
    """Return the leaderboard as CSV."""
    return as_csv(make_leaderboard(collection, ""))


def to_markdown(collection: Collection, suite: str) -> str:
    """Return the leaderboard as Markdown."""
    return as_markdown(make_leaderboard(collection, suite))
