"""Files that are written whole or not at all, and read only if they are ordinary files."""

from __future__ import annotations

import errno
import os
import stat
import uuid
from pathlib import Path


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically: after a crash or power cut it is either complete or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # gets the umask's permissions
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, so that a new name survives a power cut (POSIX only)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_regular(path: Path, *, most: int | None = None) -> bytes:
    """Read an ordinary file; a pipe or a device, which may never end, is refused.

    So is a file of more than ``most`` bytes.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not an ordinary file", str(path))
        if most is not None and found.st_size > most:
            raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MB", str(path))
        return file.read()
