"""What is in a cell's folder while the cell is not done: lock, heartbeat, failure, job.

Every process that works on a results folder reads and writes the same few files, so that several
runs share the work and ``status`` needs no other source. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gcdbench.core.files import read_regular, write_atomically

LOCK = "lock"
PROGRESS = "progress.json"
FAILURE = "failure.json"
JOB = "job.json"
TRACEBACK = "error.log"
LOG = "log.jsonl"
CHECKPOINTS = "checkpoint-*.pt"  # the number is that of the steps before it
# keys that a valid note must have
_NEEDED = {
    PROGRESS: ("host", "pid", "born", "updated", "phase"),
    FAILURE: ("message", "time"),
    JOB: ("job",),
}
# what a fact must be where it is given: a file may be damaged, or not of our making
_WORDS = ("host", "born", "phase", "message", "job", "log", "key")
_COUNTS = ("pid", "epoch", "epochs", "step", "steps")
_NUMBERS = ("updated", "started", "stepped", "time", "loss", "eta")
LATEST = 32503680000.0  # the year 3000: no moment and no duration of ours is beyond it
LARGEST_PID = 1 << 31
BEAT_SECONDS = 5.0
DEAD_SECONDS = 120.0  # without a heartbeat from another machine, whose processes cannot be seen
log = logging.getLogger(__name__)


class Busy(Exception):
    """Raised if another process is working on the cell."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a cell; the operating system releases it when the process ends."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise Busy from None
    except NotImplementedError as error:
        raise OSError(errno.ENOTSUP, "this file system has no locks", str(folder)) from error
    try:
        yield
    finally:
        lock.release()


class Heartbeat:
    """Write a file every few seconds that says that a cell is being trained, and its progress."""

    def __init__(self, folder: Path, **facts: Any) -> None:
        self.path = folder / PROGRESS
        self.facts: dict[str, Any] = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "born": process_birth(os.getpid()),
            "started": time.time(),
            "stepped": time.time(),  # the last sign of progress, as opposed to one of life
            "phase": "preparing",
            **facts,
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)

    def update(self, **facts: Any) -> None:
        """Change the facts after some progress; they are written with the next beat."""
        # a new dictionary: the thread may be reading the old one
        self.facts = {**self.facts, "stepped": time.time(), **facts}

    def beat(self) -> None:
        """Write the facts now; a full disk is reported when the record is written."""
        temporary = self.path.with_name(f".{PROGRESS}.{os.getpid()}")
        with contextlib.suppress(OSError):
            text = json.dumps({**self.facts, "updated": time.time()})
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self.path)

    def _run(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            self.beat()


class NullHeartbeat(Heartbeat):
    """A heartbeat that writes nothing, for all processes of a group but the main one."""

    def __enter__(self) -> NullHeartbeat:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def beat(self) -> None:
        """Write nothing."""


def process_birth(pid: int) -> str:
    """Return when a process was started; a later process with the same id has another value."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]


def is_alive(progress: dict[str, Any]) -> bool:
    """Return whether the process that wrote a heartbeat still runs, as far as can be known."""
    if progress["host"] != socket.gethostname():
        return bool(time.time() - progress["updated"] < DEAD_SECONDS)
    pid = progress["pid"]
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it runs, as another user
        pass
    return process_birth(pid) == str(progress["born"])


def note_failure(folder: Path, message: str, details: str = "", *, since: float = 0.0) -> None:
    """Write why a cell failed, for ``status``; the traceback goes to a separate file.

    A note that another process has written after ``since`` is kept: it has the first cause.
    """
    there = read(folder, FAILURE) if since else None
    if there is not None and there["time"] >= since:
        return
    facts = {"message": message, "time": time.time(), "host": socket.gethostname()}
    try:
        write_atomically(folder / FAILURE, json.dumps(facts).encode())
        if details:
            (folder / TRACEBACK).write_text(details, encoding="utf-8")
    except OSError as error:
        log.warning("%s: the failure cannot be written down (%s)", folder, error.strerror)


def checkpoints(folder: Path) -> dict[int, Path]:
    """Return the checkpoints of a cell by their steps; other files of such a name are no matter."""
    found = {}
    for path in folder.glob(CHECKPOINTS):
        step = path.stem.partition("-")[2]
        if len(step) == 8 and step.isascii() and step.isdigit() and path.is_file():
            found[int(step)] = path
    return found


def forget_failure(folder: Path) -> None:
    """Remove the notes of an earlier failure."""
    for name in (FAILURE, TRACEBACK):
        with contextlib.suppress(OSError):  # not fatal: the record next to it takes precedence
            (folder / name).unlink(missing_ok=True)


def read(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the content of a note, or None if there is none that can be read."""
    try:
        value = json.loads(read_regular(folder / name))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or any(value.get(key) is None for key in _NEEDED[name]):
        return None
    return value if all(_is_valid(key, fact) for key, fact in value.items()) else None


def _is_valid(key: str, fact: Any) -> bool:
    """Tell whether a fact has the type and the range that its name asks for."""
    if fact is None:
        return True
    if key in _WORDS:
        return isinstance(fact, str)
    if isinstance(fact, bool) or not isinstance(fact, (int, float)):
        return key not in (*_COUNTS, *_NUMBERS)
    if key in _COUNTS:
        return isinstance(fact, int) and 0 <= fact < LARGEST_PID and (key != "pid" or fact > 0)
    return key not in _NUMBERS or (key == "loss") or abs(fact) < LATEST
