"""The verb results: merge, verify and rescore results folders. No torch."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from gcdbench.cli.arguments import say
from gcdbench.errors import UserError

log = logging.getLogger("gcdbench")


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``results``."""
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    merging = actions.add_parser("merge", help="copy the records of other folders into one")
    merging.add_argument("sources", nargs="+", type=Path, metavar="DIR")
    merging.add_argument("--into", type=Path, default=Path("results/runs"), metavar="DIR")
    verifying = actions.add_parser("verify", help="check every record and its predictions")
    verifying.add_argument("folder", nargs="?", type=Path, default=Path("results/runs"))


def results(arguments: argparse.Namespace) -> int:
    """Merge, verify or rescore results folders."""
    from gcdbench.runner.merge import merge, valid_records

    if arguments.action == "verify":
        if not arguments.folder.is_dir():
            raise UserError(f"results verify: no folder {arguments.folder}")
        refused: list[tuple[Path, str]] = []
        count = sum(1 for _ in valid_records(arguments.folder, refused))
        say(f"{count} valid records, {len(refused)} invalid")
    else:
        merged = merge(arguments.sources, arguments.into)
        refused = merged.refused
        for folder in merged.differing:
            log.warning("%s: two records with one key and different numbers; both are kept", folder)
        counts = len(merged.copied), len(merged.same), len(merged.differing), len(refused)
        say("{} copied, {} already there, {} kept as previous-<n>, {} refused".format(*counts))
    for path, reason in refused:
        log.error("%s %s", path, reason)
    return 1 if refused else 0
