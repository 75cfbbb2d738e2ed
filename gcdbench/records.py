"""One record per cell: written whole or not at all, with a checksum and its provenance.

A cell's folder, ``<results>/<dataset>/<spelling>/seed<n>-<key>/``, holds ``record.json``, the
predictions (``predictions.npz``), the log (``log.jsonl``) and, while it runs, checkpoints. Nothing
here imports torch.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from gcdbench.errors import UserError
from gcdbench.layout import PACKAGE
from gcdbench.plan import Cell

FORMAT = 1
RECORD = "record.json"
PREDICTIONS = "predictions.npz"


@dataclass(frozen=True)
class Damaged:
    """A record that cannot be trusted, with the reason."""

    path: Path
    reason: str


def cell_folder(results: Path, cell: Cell) -> Path:
    """Return the folder of a cell."""
    return results / cell.dataset / cell.spelling.text / f"seed{cell.seed}-{cell.key}"


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_record(folder: Path, record: dict[str, Any], predictions: dict[str, np.ndarray]) -> Path:
    """Write a cell's predictions and then its record, which makes the cell count as done."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **predictions)  # type: ignore[arg-type]
    write_atomically(folder / PREDICTIONS, buffer.getvalue())
    record = {
        "format": FORMAT,
        **record,
        "predictions_sha256": hashlib.sha256(buffer.getvalue()).hexdigest(),
    }
    record["sha256"] = _checksum(record)
    text = json.dumps(record, indent=1, sort_keys=True, allow_nan=False)
    write_atomically(folder / RECORD, text.encode() + b"\n")
    return folder / RECORD


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


def is_done(results: Path, cell: Cell) -> bool:
    """Tell whether a sound record of exactly this cell exists."""
    path = cell_folder(results, cell) / RECORD
    return path.exists() and not isinstance(read_record(path), Damaged)


def check_writable(results: Path) -> None:
    """Refuse a results folder that cannot be written to, before anything is computed."""
    try:
        results.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=results):
            pass
    except OSError as error:
        raise UserError(f"--results {results}: cannot be written to ({error.strerror})") from error


def _checksum(record: dict[str, Any]) -> str:
    content = {key: value for key, value in record.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def provenance() -> dict[str, Any]:
    """Return the versions and the machine behind a result."""
    packages = ("gcdbench", "torch", "torchvision", "timm", "numpy", "scipy", "pillow", "faiss-gpu")
    return {
        "versions": {"python": platform.python_version(), **{p: _version(p) for p in packages}},
        "platform": platform.platform(),
        "processor": _processor(),
        "git": _git(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(x.split(":", 1)[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _git() -> dict[str, Any] | None:
    """Return commit and dirty flag of the checkout that the code runs from, if it is one."""
    root = PACKAGE.parent
    if not (root / ".git").exists():
        return None

    def ask(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = ask("status", "--porcelain", "--untracked-files=no")
        return {"commit": ask("rev-parse", "HEAD"), "dirty": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return None
