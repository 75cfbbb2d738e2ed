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
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gcdbench.core.files import write_atomically
from gcdbench.errors import UserError
from gcdbench.experiment.key import key_of
from gcdbench.experiment.plan import Cell

FORMAT = 1
RECORD = "record.json"
PREDICTIONS = "predictions.npz"
WEIGHTS = "weights.safetensors"
# what differs between two runs of one cell although their numbers are the same
ABOUT_THE_RUN = ("provenance", "timing", "sha256")


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


def write_record(folder: Path, record: dict[str, Any], predictions: dict[str, np.ndarray]) -> Path:
    """Write a cell's predictions and then its record, which makes the cell count as done."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **predictions)  # type: ignore[arg-type]
    record = {
        "format": FORMAT,
        **record,
        "predictions_sha256": hashlib.sha256(buffer.getvalue()).hexdigest(),
    }
    record["sha256"] = _checksum(record)
    text = json.dumps(record, indent=1, sort_keys=True, allow_nan=False)
    return put(folder, text.encode() + b"\n", buffer.getvalue())


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


def read_record(path: Path) -> dict[str, Any] | Damaged:
    """Read a record and check it; say what is wrong with one that cannot be trusted."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        return Damaged(path, f"cannot be read ({error})")
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        return Damaged(path, f"is not a record of format {FORMAT}")
    if record.get("sha256") != _checksum(record):
        return Damaged(path, "does not match its checksum")
    return record


def read_all(results: Path) -> Iterator[tuple[Path, dict[str, Any] | Damaged]]:
    """Read every record below a results folder, in the order of the paths."""
    for path in sorted(results.glob(f"*/*/*/{RECORD}")):
        yield path, read_record(path)


def read_done(results: Path, cell: Cell, *, since: float = 0.0) -> dict[str, Any] | Damaged | None:
    """Read the record that makes a cell done: its own, sound, with the predictions behind it.

    Records written before ``since`` (seconds of the epoch) do not count.
    """
    path = cell_folder(results, cell) / RECORD
    try:
        if path.stat().st_mtime < since:
            return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:  # a folder that may not be entered
        return Damaged(path, f"cannot be read ({error})")
    record = read_record(path)
    if isinstance(record, Damaged):
        return record
    if record.get("key") != cell.key:
        return Damaged(path, "belongs to another cell")
    reason = wrong_key(record) or wrong_predictions(path.parent, record)
    return Damaged(path, reason) if reason else record


def wrong_key(record: Mapping[str, Any]) -> str:
    """Say that a record was filed under the key of another experiment, if it was."""
    key = key_of(record.get("settings", {}), record.get("fingerprints", {}))
    return "" if record.get("key") == key else "has the key of other settings or other code"


def wrong_predictions(folder: Path, record: Mapping[str, Any]) -> str:
    """Say what is wrong with the predictions beside a record, if anything."""
    try:
        data = (folder / PREDICTIONS).read_bytes()
    except OSError as error:
        return f"has no readable predictions ({error.strerror})"
    if hashlib.sha256(data).hexdigest() != record.get("predictions_sha256"):
        return "has predictions that do not match their checksum"
    return ""


def misplaced(path: Path, record: Mapping[str, Any]) -> str:
    """Say where a record belongs if it does not lie there."""
    folder = f"seed{record.get('seed')}-{record.get('key')}"
    place = (record.get("dataset"), record.get("method"), folder)
    belongs = "/".join(map(str, place))
    return "" if path.parts[-4:-1] == place else f"does not belong there but into {belongs}"


def is_done(results: Path, cell: Cell, *, since: float = 0.0) -> bool:
    """Tell whether a sound record of exactly this cell exists."""
    return isinstance(read_done(results, cell, since=since), dict)


def same_numbers(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Tell whether two records of a cell differ in nothing but times and machines."""
    first, second = (
        {key: value for key, value in record.items() if key not in ABOUT_THE_RUN}
        for record in (one, other)
    )
    return first == second


def differences(record: Mapping[str, Any], cell: Cell) -> str:
    """Say what distinguishes a record from the cell of the same name."""
    reasons = [
        f"{name} changed"
        for name, value in cell.fingerprints().items()
        if record["fingerprints"].get(name) != value
    ]
    old, new = flat(record["settings"]), flat(cell.settings())
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            reasons.append(f"{name} {old.get(name)} instead of {new.get(name)}")
    return ", ".join(reasons)


def flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Name nested settings by their path: ``{"train": {"lr": 1}}`` is ``{"train.lr": 1}``."""
    if not isinstance(settings, dict):
        return {prefix: settings}
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flat(value, f"{prefix}.{key}" if prefix else str(key))
    return found


def check_folder(results: Path) -> None:
    """Refuse a results folder that is none; one that is not there yet is empty."""
    if results.exists() and not results.is_dir():
        raise UserError(f"--results {results}: is no folder")


def check_writable(results: Path) -> None:
    """Refuse a results folder that cannot be written to, before anything is computed."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=results):
            pass
    except OSError as error:
        raise UserError(f"--results {results}: cannot be written to ({error.strerror})") from error


def _checksum(record: Mapping[str, Any]) -> str:
    content = {key: value for key, value in record.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
