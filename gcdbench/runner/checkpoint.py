"""Checkpoints inside a cell: atomic, checksummed, the last two are kept."""

from __future__ import annotations

import hashlib
import io
import logging
from pathlib import Path
from typing import Any

import torch

from gcdbench.records import write_atomically

log = logging.getLogger(__name__)
MAGIC = b"gcdbench checkpoint 1\n"
KEPT = 2


def save(folder: Path, epoch: int, state: dict[str, Any]) -> None:
    """Write a checkpoint; on failure the older ones are still there."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    digest = hashlib.sha256(payload).hexdigest().encode()
    write_atomically(folder / f"checkpoint-{epoch:05d}.pt", MAGIC + digest + b"\n" + payload)
    for old in _files(folder)[KEPT:]:
        old.unlink(missing_ok=True)


def load_latest(folder: Path) -> dict[str, Any] | None:
    """Return the newest sound checkpoint, or None; a damaged one is reported and passed over."""
    for path in _files(folder):
        try:
            return _load(path)
        except (OSError, ValueError, RuntimeError, EOFError) as error:
            log.warning("%s is passed over: %s", path, error)
        except Exception as error:  # what the unpickler refuses comes in many types
            log.warning("%s is passed over: %s", path, str(error).splitlines()[0])
    return None


def discard(folder: Path) -> None:
    """Remove all checkpoints of a cell that is done."""
    for path in _files(folder):
        path.unlink(missing_ok=True)


def _load(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    head = len(MAGIC) + 65
    if not data.startswith(MAGIC):
        raise ValueError("not a checkpoint of this format")
    if hashlib.sha256(data[head:]).hexdigest().encode() != data[len(MAGIC) : head - 1]:
        raise ValueError("it does not match its checksum")
    return torch.load(io.BytesIO(data[head:]), map_location="cpu", weights_only=True)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*.pt"), reverse=True)
