"""``gcdbench data info``: what a dataset is, where to get it and where to put it."""

from __future__ import annotations

import argparse
from typing import Any

from gcdbench.cli.data._common import say
from gcdbench.core import registry
from gcdbench.core.json_text import json_text
from gcdbench.core.suites import Suite, suites
from gcdbench.data.datasets import make_dataset
from gcdbench.errors import UserError

SSB_C = "https://doi.org/10.25442/hku.28607261"  # the authors' deposit
VARIANTS = 45
STORED = 40e3  # bytes of a variant of a photograph at 256 pixels, JPEG quality 85, on average


def run(arguments: argparse.Namespace) -> int:
    """Print what is known about the datasets."""
    plugins = arguments.datasets or [*registry.available("dataset"), *_folder_suites()]
    known = registry.available("dataset")
    rows = [
        describe_suite(name, arguments.data_root)
        if name not in known and name in suites()
        else describe(name, arguments.data_root)
        for name in plugins
    ]
    if arguments.json:
        say(json_text(rows))
        return 0
    for number, row in enumerate(rows):
        if number:
            say()
        _print(row)
    return 0


def describe(plugin: str, root: Any) -> dict[str, Any]:
    """Return the facts about a dataset, and whether it is on disk."""
    facts = registry.get("dataset", plugin).constants
    row = {
        "dataset": plugin,
        "summary": registry.get("dataset", plugin).summary,
        **{key: facts.get(key) for key in ("title", "homepage", "disk", "folders", "layout")},
        "archives": [address for address, _ in facts.get("archives", ())],
        "images": facts.get("expected", {}),
    }
    if "folders" not in facts:
        return {**row, "found": None}
    try:
        parts = make_dataset(plugin, root).parts()
        return {**row, "found": {part: len(images) for part, images in parts.items()}}
    except UserError as error:
        return {**row, "found": str(error)}


def _folder_suites() -> list[str]:
    """Return the suites over plain folders: their data have no reader of their own to describe."""
    return [name for name in suites() if Suite.load(name).data.get("homepage")]


def describe_suite(name: str, root: Any) -> dict[str, Any]:
    """Return the facts about a suite's data, and whether they are on disk."""
    suite = Suite.load(name)
    configs = [entry.get("config", {}) for entry in suite.datasets.values()]
    paths = list(dict.fromkeys(str(c["path"]) for c in configs if "path" in c))
    domains = list(dict.fromkeys(str(c["source"]) for c in configs if "source" in c))
    entry = next(iter(suite.datasets.values()))
    row: dict[str, Any] = {
        "dataset": name,
        "summary": suite.description,
        "title": name,
        "homepage": suite.data.get("homepage"),
        "disk": None,
        "folders": paths,
        "layout": f"<domain>/<class>/<image>, domains: {', '.join(domains)}" if domains else None,
        "archives": [],
        "images": {},
    }
    try:
        parts = make_dataset(entry["source"], root, entry.get("config")).parts()
        return {**row, "found": {part: len(images) for part, images in parts.items()}}
    except UserError as error:
        return {**row, "found": str(error)}


def _print(row: dict[str, Any]) -> None:
    say(f"{row['dataset']}: {row['summary']}")
    if row["homepage"]:
        say(f"  from      {row['homepage']}")
    for address in row["archives"]:
        say(f"            {address}")
    if row["dataset"] in ("cub", "cars", "aircraft"):
        say(f"  corrupted {SSB_C}, or gcdbench data make-ssb-c, or while loading")
        size = VARIANTS * row["images"]["test"] * STORED / 1e9
        say(f"            (make-ssb-c writes about {size:.0f} GB at 256 px)")
    if row["disk"]:
        say(f"  disk      about {row['disk']}")
    if row["folders"]:
        say(f"  folder    <data root>/{row['folders'][0]}/ with")
    for line in (row["layout"] or "").splitlines():
        say(f"              {line}")
    if row["images"]:
        say("  images    " + ", ".join(f"{part} {n}" for part, n in row["images"].items()))
    if isinstance(row["found"], dict):
        say("  on disk   " + ", ".join(f"{part} {n}" for part, n in row["found"].items()))
    elif row["found"]:
        say(f"  on disk   no: {row['found']}")
