"""One record per cell: written whole or not at all, with a checksum and its provenance.

A cell's folder, ``<results>/<dataset>/<spec>/seed<n>-<key>/``, holds ``record.json``, the
predictions (``predictions.npz``), the log (``log.jsonl``), the trained weights if they were asked
for (``weights.safetensors``) and, while it runs, checkpoints. A record that is replaced moves to
``previous-1/``, ``previous-2/`` and so on. Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gcdbench.core.files import read_regular, write_atomically
from gcdbench.errors import UserError
from gcdbench.experiment.key import key_of
from gcdbench.experiment.plan import Cell
from gcdbench.experiment.record import FORMATS, Record
from gcdbench.experiment.typed_json import Mismatch

RECORD = "record.json"
PREDICTIONS = "predictions.npz"
WEIGHTS = "weights.safetensors"
MOST_BYTES = 1 << 28  # of a record, or of its predictions; what is larger is not read
MOST_CLUSTERS = 1 << 24
EVIDENCE = "evidence:"  # begins the names of arrays that are no predictions


@dataclass(frozen=True)
class Damaged:
    """A record that cannot be trusted, with the reason."""

    path: Path
    reason: str


def cell_folder(results: Path, cell: Cell) -> Path:
    """Return the folder of a cell."""
    return results / cell.dataset / cell.spec.text / f"seed{cell.seed}-{cell.key}"


def clean_up(folder: Path) -> None:
    """Remove what killed processes left half-written; nobody may be writing there."""
    for path in folder.glob(".*.*"):
        path.unlink(missing_ok=True)


def write_record(
    folder: Path,
    record: Record,
    predictions: Mapping[str, np.ndarray],
    evidence: Mapping[str, Mapping[str, np.ndarray]] | None = None,
) -> Path:
    """Write a cell's predictions and then its record, which makes the cell count as done.

    ``evidence`` (kind -> set -> values) is what further scores need; it joins the predictions.
    """
    more = {
        f"{EVIDENCE}{kind}:{name}": values
        for kind, sets in (evidence or {}).items()
        for name, values in sets.items()
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **predictions, **more)  # type: ignore[arg-type]
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    return put(folder, as_bytes(replace(record, predictions_sha256=digest)), buffer.getvalue())


def as_bytes(record: Record) -> bytes:
    """Return the content of a record's file, with its checksum."""
    content = record.to_json()
    content["sha256"] = _checksum(content)
    return json.dumps(content, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"


def rewrite(path: Path, record: Record) -> None:
    """Replace a record whose predictions stay as they are; it does not count as newer."""
    times = path.stat()
    write_atomically(path, as_bytes(record))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def put(folder: Path, record: bytes, predictions: bytes) -> Path:
    """Put the bytes of a record and its predictions into a folder, beside what was there."""
    if (folder / RECORD).exists():
        set_aside(folder)
    write_atomically(folder / PREDICTIONS, predictions)
    write_atomically(folder / RECORD, record)
    return folder / RECORD


def set_aside(folder: Path) -> Path:
    """Move a cell's record, weights and a copy of its predictions into a folder below it."""
    number = 1
    while (folder / f"previous-{number}" / RECORD).exists():
        number += 1
    place = folder / f"previous-{number}"
    place.mkdir(exist_ok=True)
    if (folder / PREDICTIONS).exists():
        shutil.copy2(folder / PREDICTIONS, place / PREDICTIONS)
    if (folder / WEIGHTS).exists():
        (folder / WEIGHTS).replace(place / WEIGHTS)
    (folder / RECORD).replace(place / RECORD)
    return place


def read_record(path: Path) -> Record | Damaged:
    """Read a record and check it; say what is wrong with one that cannot be trusted."""
    parsed = parse(path)
    return parsed if isinstance(parsed, Damaged) else parsed[1]


def parse(path: Path) -> tuple[dict[str, Any], Record] | Damaged:
    """Return the content of a record's file and the record, or what is wrong with it."""
    try:
        text = read_regular(path, most=MOST_BYTES)
        content = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_twice)
        if wrong := _wrong_format(content):
            return Damaged(path, wrong)
        if content.get("sha256") != _checksum(content):
            return Damaged(path, "does not match its checksum")
        return content, Record.from_json(content)
    except Mismatch as error:
        return Damaged(path, f"is not a record of gcdbench ({error})")
    except RecursionError:
        return Damaged(path, "cannot be read (it is nested too deeply)")
    except OSError as error:
        return Damaged(path, f"cannot be read ({error.strerror or error})")
    except ValueError as error:
        return Damaged(path, f"cannot be read ({error})")


def _wrong_format(content: Any) -> str:
    known = f"a record of format {' or '.join(map(str, FORMATS))}"
    found = content.get("format") if isinstance(content, dict) else None
    if type(found) is int and found in FORMATS:
        return ""
    if type(found) is int and found > max(FORMATS):
        return f"is of format {found}, of a newer gcdbench; this one reads {known}"
    return f"is not {known}"


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number that a record can hold")


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a mapping of its pairs; readers differ in which of two values with one name counts."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has {twice[:40]!r} twice")
    return found


def read_all(results: Path) -> Iterator[tuple[Path, Record | Damaged]]:
    """Read every record below a results folder, in the order of the paths."""
    for path in sorted(results.glob(f"*/*/*/{RECORD}")):
        yield path, read_record(path)


def readable(results: Path) -> Iterator[Record]:
    """Yield the records below a results folder that are not damaged."""
    return (record for _, record in read_all(results) if isinstance(record, Record))


def read_done(
    results: Path,
    cell: Cell,
    *,
    since: float = 0.0,
    read: Callable[[Path], Record | Damaged] = read_record,
) -> Record | Damaged | None:
    """Read the record that makes a cell done: its own, valid, with the predictions next to it.

    Records written before ``since`` (seconds of the epoch) do not count.
    """
    path = cell_folder(results, cell) / RECORD
    try:
        if path.stat().st_mtime < since:
            return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # a folder that may not be entered
        return Damaged(path, f"cannot be read ({error.strerror or error})")
    record = read(path)
    if isinstance(record, Damaged):
        return record
    if record.key != cell.key:
        return Damaged(path, "belongs to another cell")
    reason = wrong_key(record) or wrong_predictions(path.parent, record)
    return Damaged(path, reason) if reason else record


def invalid(path: Path, record: Record | Damaged) -> str:
    """Say why a record, or what lies next to it, cannot be trusted; nothing if it can."""
    if isinstance(record, Damaged):
        return record.reason
    misfiled = misplaced(path, record) or wrong_key(record)
    return misfiled or wrong_predictions(path.parent, record)


def wrong_key(record: Record) -> str:
    """Say that a record was filed under the key of another experiment, if it was."""
    key = key_of(record.settings, record.fingerprints)
    return "" if record.key == key else "has the key of other settings or other code"


def wrong_predictions(folder: Path, record: Record) -> str:
    """Say what is wrong with the predictions next to a record, if anything."""
    found = _predictions(folder, record)
    return found if isinstance(found, str) else ""


def read_predictions(folder: Path, record: Record) -> dict[str, np.ndarray] | str:
    """Return the predictions next to a record by evaluation set, or what is wrong with them."""
    found = _predictions(folder, record)
    if isinstance(found, str):
        return found
    arrays = _arrays(found)
    if isinstance(arrays, str):
        return arrays
    predictions = {n: one for n, one in arrays.items() if not n.startswith(EVIDENCE)}
    for name, one in predictions.items():
        if one.ndim != 1 or one.dtype.kind not in "iu":
            return f"has predictions of {name[:40]!r} that are not a row of whole numbers"
        if one.size and not 0 <= int(one.min()) <= int(one.max()) < MOST_CLUSTERS:
            return f"has predictions of {name[:40]!r} that are not numbers of clusters"
    return predictions


def read_evidence(folder: Path, record: Record) -> dict[str, dict[str, np.ndarray]]:
    """Return what was measured next to the predictions, kind -> set -> values; often nothing."""
    data = _predictions(folder, record)
    arrays = _arrays(data) if isinstance(data, bytes) else {}
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, values in ({} if isinstance(arrays, str) else arrays).items():
        if name.startswith(EVIDENCE):
            kind, _, place = name.removeprefix(EVIDENCE).partition(":")
            found.setdefault(kind, {})[place] = values
    return found


def _arrays(data: bytes) -> dict[str, np.ndarray] | str:
    """Return the arrays of a file of predictions, or what is wrong with it."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(member.file_size for member in archive.infolist()) > MOST_BYTES:
                return "has predictions that are too large"
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except Exception as error:  # a file that is no such archive makes its reader fail in many ways
        return f"has predictions that cannot be read ({type(error).__name__})"
    strange = [name for name, one in found.items() if not isinstance(one, np.ndarray)]
    return f"has predictions of {strange[0][:40]!r} that are no array" if strange else found


def _predictions(folder: Path, record: Record) -> bytes | str:
    try:
        data = read_regular(folder / PREDICTIONS, most=MOST_BYTES)
    except OSError as error:
        return f"has no readable predictions ({error.strerror})"
    if hashlib.sha256(data).hexdigest() != record.predictions_sha256:
        return "has predictions that do not match their checksum"
    return data


def misplaced(path: Path, record: Record) -> str:
    """Say where a record belongs if it does not lie there."""
    place = (record.dataset, record.method, f"seed{record.seed}-{record.key}")
    belongs = "/".join(place)
    return "" if path.parts[-4:-1] == place else f"does not belong there but into {belongs}"


def is_done(results: Path, cell: Cell, *, since: float = 0.0) -> bool:
    """Tell whether a valid record of exactly this cell exists."""
    return isinstance(read_done(results, cell, since=since), Record)


def same_numbers(one: Record, other: Record) -> bool:
    """Tell whether two records of a cell differ in nothing but times, machines and searches.

    The version of the scores does not count: another version may well give the same scores.
    """
    about = {
        "provenance": one.provenance,
        "timing": one.timing,
        "scores": one.scores,
        "searches": one.searches,
    }
    return one == replace(other, **about)  # type: ignore[arg-type]


def differences(record: Record, cell: Cell) -> str:
    """Say what distinguishes a record from the cell of the same name."""
    reasons = [
        f"{name} changed"
        for name, value in cell.fingerprints().items()
        if record.fingerprints.get(name) != value
    ]
    old, new = flat(record.settings), flat(cell.settings())
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            reasons.append(f"{name} {old.get(name)} instead of {new.get(name)}")
    return ", ".join(reasons)


def flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Name nested settings by their path: ``{"train": {"lr": 1}}`` is ``{"train.lr": 1}``."""
    if not isinstance(settings, Mapping):
        return {prefix: settings}
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{prefix}.{key}" if prefix else str(key))
    return found


def check_folder(results: Path) -> None:
    """Refuse a results folder that is none; one that is not there yet is empty."""
    if results.exists() and not results.is_dir():
        raise UserError(f"--results {results}: is no folder")


def check_writable(results: Path, flag: str = "--results") -> None:
    """Refuse a results folder that cannot be written to, before anything is computed."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=results):
            pass
    except OSError as error:
        raise UserError(f"{flag} {results}: cannot be written to ({error.strerror})") from error


def _checksum(record: Mapping[str, Any]) -> str:
    content = {key: value for key, value in record.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
