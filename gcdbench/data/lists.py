"""What datasets read in addition to images: lists of text, and which listed files are there."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from gcdbench.data.images import FileImages
from gcdbench.errors import UserError


def text_lines(path: Path) -> list[str]:
    """Read the lines of a list, without blanks at their ends and without a byte-order mark."""
    try:
        return [line.rstrip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        message = f"{path}: cannot be read as a list ({reason}); unpack the dataset again"
        raise UserError(message) from error


def check_once(names: Sequence[str], place: str) -> None:
    """Refuse a name that is listed twice: one image would have two classes or two roles."""
    if len(set(names)) < len(names):
        twice = next(name for name, number in Counter(names).items() if number > 1)
        raise UserError(f"{place}: {twice} is listed twice; keep one of its lines")


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
        with os.scandir(folder) as entries:  # a link may lead nowhere
            return {e.name for e in entries if not e.is_symlink() or Path(e.path).exists()}
    except OSError:  # no such folder, or no permission
        return set()
