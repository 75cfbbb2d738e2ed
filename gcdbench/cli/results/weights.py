"""``gcdbench results export-weights`` and ``import-weights``: trained weights as folders."""

from __future__ import annotations

import argparse
from pathlib import Path

from gcdbench.cli.arguments import say
from gcdbench.errors import UserError


def add_weights(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the two actions."""
    sending = actions.add_parser(
        "export-weights", help="write kept weights as safetensors with a model card"
    )
    sending.add_argument("folder", nargs="?", type=Path, default=Path("results/runs"))
    sending.add_argument("--methods", nargs="+", default=(), metavar="METHOD", help="some of them")
    sending.add_argument("--out", type=Path, default=Path("models"), metavar="DIR")
    sending.add_argument("--data-root", type=Path, metavar="DIR", help="where the datasets are")
    receiving = actions.add_parser(
        "import-weights", help="put exported weights and their record into a results folder"
    )
    receiving.add_argument("place", metavar="DIR|hf-hub:OWNER/NAME")
    receiving.add_argument("--into", type=Path, default=Path("results/runs"), metavar="DIR")


def export_weights(arguments: argparse.Namespace) -> int:
    """Export the weights of all cells of a results folder that were kept."""
    from gcdbench.sharing.exported_weights import export_all

    if not arguments.folder.is_dir():
        raise UserError(f"results export-weights: no folder {arguments.folder}")
    methods, root = tuple(arguments.methods), arguments.data_root
    number = 0
    for folder in export_all(arguments.folder, arguments.out, methods=methods, data_root=root):
        say(f"written: {folder}")
        number += 1
    if not number:
        raise UserError(
            f"results export-weights: no cell of {arguments.folder} has weights; train with "
            "gcdbench run ... --keep-weights"
        )
    return 0


def import_weights(arguments: argparse.Namespace) -> int:
    """Put exported weights into a results folder."""
    from gcdbench.sharing import exported_weights

    merged = exported_weights.import_weights(arguments.place, arguments.into)
    for path, reason in merged.refused:
        raise UserError(f"{path} {reason}")
    for folder in (*merged.copied, *merged.same, *merged.differing):
        say(f"written: {folder}")
    return 0
