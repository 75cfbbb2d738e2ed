"""Merge the results folders of several machines. Nothing here imports torch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gcdbench.errors import UserError
from gcdbench.experiment import heartbeat, records
from gcdbench.experiment.record import Record


@dataclass
class Merged:
    """The records of a merge, by what was done with them."""

    copied: list[Path] = field(default_factory=list)
    same: list[Path] = field(default_factory=list)  # there already, with the same numbers
    differing: list[Path] = field(default_factory=list)  # there already, with other numbers
    refused: list[tuple[Path, str]] = field(default_factory=list)


def merge(sources: Sequence[Path], into: Path) -> Merged:
    """Copy all valid records; of two with one key and different numbers, the first one counts.

    The other one is kept next to it, in a folder ``previous-<n>``: one key means one experiment, so
    different numbers mean that the machines differ, which should be looked into.
    """
    for source in sources:
        if not source.is_dir():
            raise UserError(f"results merge: no folder {source}")
        if source.resolve() == into.resolve():
            raise UserError(f"results merge: {source} cannot be merged into itself")
    records.check_writable(into, "--into")
    merged = Merged()
    for source in sources:
        for path, record in valid_records(source, merged.refused):
            target = into / path.parent.relative_to(source)
            if reason := detour(target, into):
                merged.refused.append((path, f"cannot be merged: {target} {reason}"))
            else:
                _add(path.parent, record, target, merged)
    return merged


def valid_records(results: Path, refused: list[tuple[Path, str]]) -> Iterator[tuple[Path, Record]]:
    """Yield the valid records; append the others, with reasons, to ``refused``."""
    for path in sorted(results.glob(f"*/*/*/{records.RECORD}")):
        if reason := detour(path.parent, results):
            refused.append((path, reason))
            continue
        record = records.read_record(path)
        reason = records.invalid(path, record)
        if not reason and isinstance(record, Record):
            yield path, record
        else:
            refused.append((path, reason))


def detour(folder: Path, results: Path) -> str:
    """Say what in a cell's folder, or on the way to it, leads elsewhere or is no ordinary file."""
    for number in range(len(results.parts) + 1, len(folder.parts) + 1):
        if (place := Path(*folder.parts[:number])).is_symlink():
            return f"is reached by the symbolic link {place}, which is not followed"
    files = (records.RECORD, records.PREDICTIONS, records.WEIGHTS, heartbeat.LOG, heartbeat.LOCK)
    for path in (*(folder / name for name in files), *folder.glob("previous-*")):
        if path.is_symlink():
            return f"has the symbolic link {path.name} next to it, which is not followed"
        if path.exists() and not (path.is_file() or path.name.startswith("previous-")):
            return f"has {path.name} next to it, which is not an ordinary file"
    return ""


def _add(folder: Path, record: Record, target: Path, merged: Merged) -> None:
    try:
        with heartbeat.locked(target):
            there = records.read_record(target / records.RECORD)
            if isinstance(there, records.Damaged) or records.wrong_predictions(target, there):
                _copy(folder, target)
                merged.copied.append(target)
            elif _known(record, target):
                merged.same.append(target)
            else:
                _copy(folder, _free(target))
                merged.differing.append(target)
    except heartbeat.Busy:
        merged.refused.append((folder, f"{target} is being trained right now; merge again later"))


def _copy(folder: Path, target: Path) -> None:
    record, predictions = (
        (folder / name).read_bytes() for name in (records.RECORD, records.PREDICTIONS)
    )
    records.put(target, record, predictions)
    if (folder / records.WEIGHTS).exists():
        shutil.copy2(folder / records.WEIGHTS, target / records.WEIGHTS)
    if (folder / heartbeat.LOG).exists() and not (target / heartbeat.LOG).exists():
        shutil.copy2(folder / heartbeat.LOG, target / heartbeat.LOG)


def _known(record: Record, target: Path) -> bool:
    """Tell whether these numbers are in a cell's folder, as its record or a previous one."""
    for path in (target / records.RECORD, *target.glob(f"previous-*/{records.RECORD}")):
        there = records.read_record(path)
        if isinstance(there, Record) and records.same_numbers(there, record):
            return True
    return False


def _free(folder: Path) -> Path:
    number = 1
    while (folder / f"previous-{number}").exists():
        number += 1
    return folder / f"previous-{number}"
