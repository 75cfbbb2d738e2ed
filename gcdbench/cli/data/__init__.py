"""The verb ``gcdbench data``: describe, verify, download and make datasets.

Only the arguments are here; each action is in the module of its name, imported when it runs.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


def add_parser(verbs: Any) -> None:
    """Add ``data`` and its actions to the verbs of the command line."""
    text = "describe, verify, download and make datasets"
    data = verbs.add_parser("data", help=text, description=text)
    actions = data.add_subparsers(title="actions", metavar="ACTION", required=True)

    def action(name: str, text: str) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = actions.add_parser(name, help=text, description=text)
        sub.set_defaults(verb=_runner(name.replace("-", "_")))
        sub.add_argument("--debug", action="store_true", help="show tracebacks")
        sub.add_argument("--data-root", type=Path, metavar="DIR", help="default: GCDBENCH_DATA")
        return sub

    info = action("info", "say what a dataset is, where to get it and where to put it")
    info.add_argument("datasets", nargs="*", metavar="DATASET", help="or a suite; default: all")
    info.add_argument("--json", action="store_true", help="for programs")

    stats = action("stats", "count the labelled and unlabelled images of a suite's datasets")
    stats.add_argument("--suite", required=True, help="name of a suite, or a YAML file")
    stats.add_argument("--datasets", nargs="+", default=(), metavar="NAME", help="default: all")
    stats.add_argument("--json", action="store_true", help="for programs, with all sets")

    verify = action("verify", "find wrong layouts and missing, unreadable or truncated images")
    verify.add_argument("datasets", nargs="*", metavar="DATASET", help="cub, cars, domainnet, ...")
    verify.add_argument("--suite", help="verify the datasets of a suite, with their settings")
    verify.add_argument("--no-decode", action="store_true", help="only check that files exist")
    verify.add_argument("--workers", type=_whole(1), help="processes (default: one per core)")
    verify.add_argument("--json", action="store_true", help="for programs")
    verify.add_argument(
        "--near-duplicates",
        action="store_true",
        help="look for images that are there twice, and say what they do to the split",
    )
    verify.add_argument(
        "--exclusions",
        type=Path,
        metavar="DIR",
        help="with --near-duplicates: write DATASET.txt there, which a suite can name in 'exclude'",
    )

    export = action("export-split", "write path, class and role of every image of a dataset")
    export.add_argument("--suite", required=True, help="name of a suite, or a YAML file")
    export.add_argument(
        "--dataset", default="", metavar="NAME", help="default: the suite's only one"
    )
    export.add_argument("--format", choices=("csv", "json"), default="csv")
    export.add_argument("--out", type=Path, metavar="FILE", help="default: stdout")

    read = action("import-split", "make a suite of a file with path, class and role of every image")
    read.add_argument(
        "file", type=Path, metavar="FILE", help="CSV or JSON; see benchmarks/README.md"
    )
    read.add_argument("--images", type=Path, metavar="DIR", help="folder of its paths")
    read.add_argument("--name", default="", help="of the dataset (default: that of the file)")
    read.add_argument("--out", type=Path, metavar="FILE", help="suite (default: FILE as .yaml)")

    make = action("make-ssb-c", "write the corrupted test images of SSB-C to disk; can be resumed")
    make.add_argument("datasets", nargs="+", choices=("cub", "cars", "aircraft"), metavar="DATASET")
    make.add_argument(
        "--out",
        type=Path,
        help="folder (default: SSB-C below the data root, where datasets look for the images; "
        "link another folder there)",
    )
    make.add_argument("--corruptions", nargs="+", default=(), metavar="NAME", help="default: all")
    make.add_argument("--severities", nargs="+", type=int, default=(1, 2, 3, 4, 5), metavar="N")
    make.add_argument(
        "--size", type=_whole(0), default=256, help="shorter side; 0: that of the image"
    )
    make.add_argument(
        "--quality", type=_whole(1, 95), default=85, help="of the JPEG files (default: 85)"
    )
    make.add_argument("--frost", default="", metavar="DIR", help="photographs of ice")
    make.add_argument("--workers", type=_whole(1), help="processes (default: one per core)")

    sheet = action("sheet", "draw an image under the nine corruptions at the five severities")
    sheet.add_argument("image", type=Path, metavar="IMAGE", help="a picture of yours")
    sheet.add_argument("--out", type=Path, required=True, metavar="FILE", help="picture to write")
    sheet.add_argument(
        "--size", type=_whole(1), default=224, help="side of each picture, in pixels"
    )
    sheet.add_argument("--frost", default="", metavar="DIR", help="photographs of ice")

    fetch = action("download", "download and unpack a dataset; an interrupted one is resumed")
    fetch.add_argument("dataset", metavar="DATASET", help="cub, aircraft, domainnet, cifar10, ...")
    fetch.add_argument("--url", action="append", default=[], help="download from here instead")
    fetch.add_argument("--sha256", action="append", default=[], help="checksum of each --url")
    fetch.add_argument("--keep", action="store_true", help="keep the archives")


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return an argparse type for whole numbers of a range."""
    expected = f"a whole number from {least}" + (" on" if most is None else f" to {most}")

    def read(text: str) -> int:
        number = int(text) if text.removeprefix("-").isdecimal() else least - 1
        if number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return number

    return read


def _runner(module: str) -> Any:
    """Return a function that imports the module of an action and runs it."""

    def run(arguments: argparse.Namespace) -> int:
        return int(importlib.import_module(f"gcdbench.cli.data.{module}").run(arguments))

    return run
