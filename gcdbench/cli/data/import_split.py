"""``gcdbench data import-split``: a suite of the project from somebody else's split."""

from __future__ import annotations

import argparse

import yaml

from gcdbench.cli.data._common import say
from gcdbench.data.datasets import make_dataset
from gcdbench.errors import UserError


def run(arguments: argparse.Namespace) -> int:
    """Check a split against the images on disk and write a suite that reads it."""
    file = arguments.file.expanduser().resolve()
    config = {"file": str(file)}
    if arguments.images is not None:
        config["path"] = str(arguments.images.expanduser().resolve())
    name = arguments.name or file.stem
    problem = make_dataset("listed", arguments.data_root, config).problem(name)
    suite = {
        "description": f"split of {file.name}",
        "default_methods": ["simgcd"],
        "datasets": {name: {"source": "listed", "config": config}},
    }
    out = arguments.out or file.with_suffix(".yaml")
    if out.exists():
        raise UserError(f"{out} is there already; remove it, or name another file with --out")
    try:
        out.write_text(yaml.safe_dump(suite, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from error
    say(
        f"{out}: {len(problem.labelled):,} labelled and {len(problem.unlabelled):,} unlabelled "
        f"images, {problem.num_old} of {problem.num_classes} classes old; scored: "
        + ", ".join(f"{title} {len(one.rows):,}" for title, one in problem.sets.items())
    )
    say(f"gcdbench run --suite {out}")
    return 0
