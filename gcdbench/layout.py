"""Where methods/ and benchmarks/ are: beside the package (checkout) or in it (wheel)."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def shipped(folder: str) -> Path:
    """Return the folder inside the package if it exists, else the one beside the package."""
    inside = PACKAGE / folder
    return inside if inside.is_dir() else PACKAGE.parent / folder
