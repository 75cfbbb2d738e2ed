"""Checkpoints of a cell: written atomically, with a checksum; the last two are kept."""

from __future__ import annotations

import hashlib
import io
import logging
from pathlib import Path
from typing import Any

import torch

from gcdbench.core.files import read_regular, write_atomically
from gcdbench.experiment.heartbeat import checkpoints

log = logging.getLogger(__name__)
MAGIC = b"gcdbench checkpoint 2\n"
KEPT = 2


class NotSaved(OSError):
    """Raised if a checkpoint could not be written; the earlier ones still exist."""


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write the checkpoint after a number of steps; on failure the older ones are kept."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    digest = hashlib.sha256(payload).hexdigest().encode()
    try:
        write_atomically(folder / f"checkpoint-{step:08d}.pt", MAGIC + digest + b"\n" + payload)
    except OSError as error:
        older = files(folder)
        rest = f"{older[0].name} is kept" if older else "there is no older one"
        raise NotSaved(
            f"the checkpoint after step {step} cannot be written to {folder} ({error.strerror}); "
            f"{rest}; make room and run again"
        ) from error
    for old in files(folder)[KEPT:]:
        old.unlink(missing_ok=True)


def load_latest(folder: Path, key: str) -> dict[str, Any] | None:
    """Return a cell's newest valid checkpoint, or None; invalid ones are logged and skipped."""
    for path in files(folder):
        try:
            state = _load(path)
            if state.pop("key", None) != key:
                raise ValueError("it belongs to another cell")
        except Exception as error:  # the unpickler raises many types of errors
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            log.warning("%s is skipped: %s", path, reason)
            continue
        return state
    return None


def discard(folder: Path) -> None:
    """Remove all checkpoints of a cell that is done."""
    for path in files(folder):
        path.unlink(missing_ok=True)


def files(folder: Path) -> list[Path]:
    """Return the checkpoints of a cell, the newest first."""
    return [path for _, path in sorted(checkpoints(folder).items(), reverse=True)]


def _load(path: Path) -> dict[str, Any]:
    data = read_regular(path)
    head = len(MAGIC) + 65
    if not data.startswith(MAGIC):
        raise ValueError("not a checkpoint of this format")
    if hashlib.sha256(data[head:]).hexdigest().encode() != data[len(MAGIC) : head - 1]:
        raise ValueError("it does not match its checksum")
    state = torch.load(io.BytesIO(data[head:]), map_location="cpu", weights_only=True)
    if not isinstance(state, dict):
        raise ValueError("it holds no dictionary")
    return state
