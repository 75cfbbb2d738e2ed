"""Runs ``gcdbench data`` for tests."""

from __future__ import annotations

import argparse

from gcdbench.data import commands


def call(*arguments: object) -> int:
    """Run ``gcdbench data`` as the command line does."""
    parser = argparse.ArgumentParser()
    commands.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["data", *map(str, arguments)])
    return parsed.verb(parsed)
