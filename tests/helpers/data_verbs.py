"""Runs ``gcdbench data`` and builds problems for tests."""

from __future__ import annotations

import argparse
from pathlib import Path

from gcdbench.cli import data as commands
from gcdbench.data.datasets import make_dataset
from gcdbench.data.problem import Problem


def call(*arguments: object) -> int:
    """Run ``gcdbench data`` as the command line does."""
    parser = argparse.ArgumentParser()
    commands.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["data", *map(str, arguments)])
    return parsed.verb(parsed)


def problem(plugin: str, root: Path | None, **config: object) -> Problem:
    """Build the problem of a source with some settings."""
    return make_dataset(plugin, root, config).problem("test")
