"""``gcdbench data verify``: list everything that is wrong with a dataset on disk."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from tqdm import tqdm

from gcdbench.cli.arguments import counted
from gcdbench.cli.data._common import in_parallel, say, suite_datasets
from gcdbench.cli.data.near_duplicates import report_duplicates
from gcdbench.core.json_text import json_text
from gcdbench.data.datasets import make_dataset
from gcdbench.data.folders import passed_over
from gcdbench.data.images import FileImages, Images, Unreadable
from gcdbench.data.lists import missing_files
from gcdbench.data.problem import Dataset
from gcdbench.errors import UserError

CHUNK = 64  # images per task of a process
_images: Images  # of the part that this process verifies


@runtime_checkable
class Remarking(Protocol):
    """A dataset that can describe files that belong to none of its parts."""

    def remarks(self) -> list[str]:
        """Return one sentence per finding."""


@dataclass
class Report:
    """What was found in one dataset."""

    name: str
    layout: str = ""  # what is wrong with it
    images: dict[str, int] = field(default_factory=dict)  # by part
    expected: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)  # place -> reason
    altered: list[str] = field(default_factory=list)  # files with another checksum
    remarks: list[str] = field(default_factory=list)  # on what is in none of the parts
    passed_over: list[str] = field(default_factory=list)  # what is no data; not a fault

    @property
    def differs(self) -> dict[str, int]:
        """Parts with another number of images than the published dataset has."""
        return {p: n for p, n in self.images.items() if n != self.expected.get(p, n)}

    @property
    def valid(self) -> bool:
        """Whether nothing is wrong."""
        wrong = (self.layout, self.missing, self.unreadable, self.altered, self.differs)
        return not any(wrong) and not self.remarks


def run(arguments: argparse.Namespace) -> int:
    """Verify datasets; return 1 if something is wrong with one of them."""
    root = arguments.data_root
    if arguments.exclusions is not None and not arguments.near_duplicates:
        raise UserError("--exclusions writes what --near-duplicates finds: add that, too")
    if arguments.json and arguments.near_duplicates:
        raise UserError("--near-duplicates has no --json: leave out one of them")
    if bool(arguments.datasets) == bool(arguments.suite):
        raise UserError("name the datasets to verify (gcdbench data verify cub), or a --suite")
    if arguments.suite:
        datasets = suite_datasets(arguments.suite, root)
    else:
        datasets = {plugin: make_dataset(plugin, root) for plugin in arguments.datasets}
    reports = [
        verify(name, dataset, decode=not arguments.no_decode, workers=arguments.workers)
        for name, dataset in datasets.items()
    ]
    if arguments.json:
        say(json_text([{**asdict(r), "valid": r.valid} for r in reports]))
    else:
        for report in reports:
            _print(report, decoded=not arguments.no_decode)
    if arguments.near_duplicates:
        for name, dataset in datasets.items():
            if not next(report for report in reports if report.name == name).layout:
                report_duplicates(name, dataset, arguments.exclusions, arguments.workers)
    return 0 if all(report.valid for report in reports) else 1


def verify(
    name: str, dataset: Dataset, *, decode: bool = True, workers: int | None = None
) -> Report:
    """Return a report on all files of a dataset."""
    report = Report(name, expected=dict(dataset.expected))
    try:
        parts = dataset.parts()
        report.remarks = dataset.remarks() if isinstance(dataset, Remarking) else []
    except UserError as error:
        report.layout = str(error)
        return report
    try:  # what stats and run would refuse
        dataset.problem(name)
    except UserError as error:
        report.remarks.append(str(error))
    folders = dict.fromkeys(i.root for i in parts.values() if isinstance(i, FileImages))
    report.passed_over = [str(root / path) for root in folders for path in passed_over(root)]
    for path, checksum in dataset.checksums().items():
        if not checksum_fits(path, checksum):
            report.altered.append(str(path))
    for part, images in parts.items():
        missing = missing_files(images) if isinstance(images, FileImages) else []
        report.images[part] = len(images)
        report.missing += [images.place(row) for row in missing]
        if decode:
            rows = sorted(set(range(len(images))) - set(missing))
            report.unreadable |= _unreadable(images, rows, f"{name} {part}", workers)
    return report


def checksum_fits(path: Path, checksum: str) -> bool:
    """Return whether a file has a checksum such as ``md5:...`` or ``sha256:...``."""
    kind, _, expected = checksum.partition(":")
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest() == expected.lower()


def _unreadable(images: Images, rows: list[int], label: str, workers: int | None) -> dict[str, str]:
    chunks = [rows[i : i + CHUNK] for i in range(0, len(rows), CHUNK)]
    found: dict[str, str] = {}
    answers = in_parallel(_decode, chunks, workers=workers, prepare=_prepare, given=(images,))
    with tqdm(total=len(rows), desc=label, unit="image", disable=None, leave=False) as bar:
        for number, failures in answers:
            found |= failures
            bar.update(number)
    return dict(sorted(found.items()))


def _prepare(images: Images) -> None:
    global _images
    _images = images


def _decode(rows: Iterable[int]) -> tuple[int, dict[str, str]]:
    failures, number = {}, 0
    for row in rows:
        number += 1
        try:
            _images.open(row)
        except Unreadable as error:
            failures[error.place] = error.reason
    return number, failures


def _print(report: Report, *, decoded: bool) -> None:
    if report.layout:
        say(f"{report.name}: {report.layout}")
        return
    for part, number in report.images.items():
        expected = report.expected.get(part, number)
        say(
            f"{report.name} {part}: {counted(number, 'image')}"
            + (f" instead of {expected:,}" if number != expected else "")
        )
    for path in report.missing:
        say(f"missing: {path}")
    for path, reason in report.unreadable.items():
        say(f"unreadable: {path} ({reason})")
    for path in report.altered:
        say(f"altered: {path} has another checksum than the published file")
    for remark in report.remarks:
        say(f"strange: {remark}")
    for path in report.passed_over:
        say(f"passed over: {path}")
    if report.valid:
        say(f"{report.name}: valid" if decoded else f"{report.name}: complete, not decoded")
    else:
        say(
            f"{report.name}: {len(report.missing)} missing, {len(report.unreadable)} unreadable, "
            f"{len(report.altered)} altered, {len(report.differs)} parts of another size"
            + (f", {len(report.remarks)} strange" if report.remarks else "")
        )
