"""Argument types and the printing of results, shared by several verbs."""

from __future__ import annotations

import argparse
import logging
import math
import shutil
import sys
from collections.abc import Container, Sequence

from gcdbench.core.settings import LARGEST_SEED

WIDTH = 120  # columns of what is not printed to a terminal
NARROWEST = 60


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    return count(text, least=1)


def count(text: str, least: int = 0) -> int:
    """Return a whole number of at least ``least``."""
    try:
        number = int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a whole number, got {text[:30]!r}") from error
    if number < least:
        raise argparse.ArgumentTypeError(f"expected at least {least}, got {number}")
    return number


def seed(text: str) -> int:
    """Return a whole number that a random generator takes."""
    number = count(text)
    if number > LARGEST_SEED:
        raise argparse.ArgumentTypeError(f"expected at most {LARGEST_SEED}, got {text[:30]}")
    return number


def amount(text: str) -> float:
    """Return a finite number of at least 0."""
    try:
        number = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from error
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a finite number of at least 0, got {text}")
    return number


def seconds(text: str) -> float:
    """Return a number above 0."""
    number = amount(text)
    if number == 0:
        raise argparse.ArgumentTypeError("expected a number above 0, got 0")
    return number


def aligned(rows: Sequence[Sequence[str]], *, left: Container[int] = (0,)) -> list[str]:
    """Return the lines of a table; columns are aligned to the right unless they are in ``left``.

    >>> aligned([["name", "n"], ["a", "10"]])
    ['name   n', 'a     10']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        pairs = enumerate(zip(row, widths, strict=True))
        words = (word.ljust(w) if i in left else word.rjust(w) for i, (word, w) in pairs)
        lines.append("  ".join(words).rstrip())
    return lines


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    >>> counted(1, "image"), counted(1200, "image")
    ('1 image', '1,200 images')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def say(text: str) -> None:
    """Print a result."""
    sys.stdout.write(f"{plain(text)}\n")
    sys.stdout.flush()


def plain(text: str) -> str:
    """Return a text in which nothing is an order to the terminal: a record may be anybody's.

    >>> plain("loss 1.2" + chr(27) + "[2J")
    'loss 1.2\\\\x1b[2J'
    """
    if text.isprintable():
        return text
    kept = "\n\t"
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


class PlainFormatter(logging.Formatter):
    """Writes messages of the log as plain text."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a message."""
        return plain(super().format(record))


def terminal_width() -> int:
    """Return the columns of the terminal, as COLUMNS says, or those of a file."""
    return max(shutil.get_terminal_size(fallback=(WIDTH, 24)).columns, NARROWEST)
