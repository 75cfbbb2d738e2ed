"""``gcdbench data export-split``: path, class and roles of every image of a suite's dataset."""

from __future__ import annotations

import argparse
import sys

from gcdbench.cli.data._common import suite_problem
from gcdbench.data.split_files import as_csv, as_json
from gcdbench.errors import UserError


def run(arguments: argparse.Namespace) -> int:
    """Write the split to a file or to stdout."""
    problem, root = suite_problem(arguments.suite, arguments.dataset, arguments.data_root)
    text = (as_csv if arguments.format == "csv" else as_json)(problem, root)
    if arguments.out is None:
        sys.stdout.write(text)
        return 0
    try:
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{arguments.out}: cannot be written ({error.strerror})") from error
    return 0
