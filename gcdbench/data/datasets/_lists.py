"""Helpers of datasets: read lists in text files, find listed files that are missing."""

from __future__ import annotations

from pathlib import Path

from gcdbench.data.images import FileImages
from gcdbench.errors import UserError


def text_lines(path: Path) -> list[str]:
    """Return the lines of a text file."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        message = f"{path}: cannot be read as a list ({reason}); unpack the dataset again"
        raise UserError(message) from error


def missing_files(images: FileImages) -> list[int]:
    """Return the rows without a file; folders are listed once instead of testing every file."""
    listed: dict[str, set[str]] = {}
    missing = []
    for row, path in enumerate(images.paths):
        inside, _, name = path.rpartition("/")
        if inside not in listed:
            listed[inside] = _names(images.root / inside)
        if name not in listed[inside]:
            missing.append(row)
    return missing


def _names(folder: Path) -> set[str]:
    try:
        return {path.name for path in folder.iterdir()}
    except OSError:  # no such folder, or no permission
        return set()
