"""Where methods/ and benchmarks/ are: next to the package (checkout) or in it (wheel)."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def bundled(folder: str) -> Path:
    """Return the folder inside the package if it exists, else the one next to the package."""
    inside = PACKAGE / folder
    return inside if inside.is_dir() else PACKAGE.parent / folder
