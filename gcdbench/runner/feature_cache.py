"""Frozen features on disk, shared by all processes that run cells with the same images and trunk.

Features of a list of images are in one file without a header, which is mapped into memory. An index
next to it holds the checksum of every complete chunk: a chunk without a checksum or with a wrong
one is computed again, so an interrupted run continues where it stopped. The name of both files is a
hash of everything that can change a bit of the features, so a file never has to be invalidated.

The processes that run a cell together compute the missing chunks of one file in turn, and all map
it. Without a folder it is a temporary file, which is deleted as soon as all have mapped it.

Files stay until they are deleted by hand. If they would take more than the budget, the first chunks
of a new list that fit are written, and the others are computed at every use.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from math import prod
from pathlib import Path

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from gcdbench.core.files import write_atomically
from gcdbench.experiment.key import code_of
from gcdbench.nn.parallel import ProcessGroup, SingleProcess
from gcdbench.training.features.store import FeatureRequest, digest
from gcdbench.training.loader import LocalError

FORMAT = 1
GB = 10**9
log = logging.getLogger(__name__)


class FeatureCache:
    """Features in a folder, of at most ``budget`` bytes, for one process or a group of them."""

    def __init__(self, folder: Path, budget: int, group: ProcessGroup | None = None) -> None:
        self.folder = folder
        self.budget = budget
        self.group = SingleProcess() if group is None else group

    def get(self, request: FeatureRequest, *, at_least: int) -> Tensor | None:
        """Return the features of the first chunks that fit, computing missing ones.

        None if fewer fit than that, or if the disk cannot be written.
        """
        name = digest(FORMAT, *request.key, request.dtype, request.sizes, request.stamps(), _code())
        file = FeatureFile(self.folder / f"{name[:32]}.tokens", request)
        group = self.group if request.shared else SingleProcess()
        with contextlib.ExitStack() as stack:
            try:
                todo = self._prepare(stack, file, at_least) if group.is_main else None
            except OSError as error:
                self._refuse(request, error)
                todo = None
            todo = group.broadcast_object(todo)
            return None if todo is None else self._filled(group, file, *todo)

    def _prepare(
        self, stack: contextlib.ExitStack, file: FeatureFile, at_least: int
    ) -> tuple[int, list[int]] | None:
        """Lock a file and return how many chunks it has and which of them are missing."""
        self.folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(file.locked())
        chunks = self._reserve(file, at_least)
        return (chunks, file.missing(chunks)) if chunks >= at_least else None

    def _filled(
        self, group: ProcessGroup, file: FeatureFile, chunks: int, missing: list[int]
    ) -> Tensor | None:
        """Let each process compute some of the missing chunks, and return all."""
        try:
            file.fill(missing[group.rank :: group.size], chunks)
        except OSError as error:
            if group.size > 1:  # the others have written their part
                raise LocalError(f"{file.path}: {error.strerror or error}") from error
            self._refuse(file.request, error)
            return None
        group.check_same(chunks, "frozen features")  # none maps the file before it is complete
        return file.mapped(chunks)

    def _refuse(self, request: FeatureRequest, error: OSError) -> None:
        log.warning(
            "%s: frozen features of %s cannot be kept there (%s) and are computed when needed",
            *(self.folder, request.title, error.strerror or error),
        )

    def _reserve(self, file: FeatureFile, at_least: int) -> int:
        """Log what will be written and what is left out, and allocate the file."""
        request = file.request
        with FileLock(self.folder / "lock"):
            others = sum(p.stat().st_size for p in self.folder.glob("*.tokens") if p != file.path)
            size = file.size
            chunks = request.fitting(max(self.budget - others, size))
            number = sum(request.sizes[:chunks])
            if chunks < len(request.sizes):
                log.warning(
                    "%s has no room for %s of the frozen features of %s: --cache-gb %.2f would do",
                    *(self.folder, "all" if chunks >= at_least else "any", request.title),
                    (others + sum(request.sizes) * request.bytes_per_image) / GB + 0.005,
                )
            if chunks < at_least:
                return 0
            new = number * request.bytes_per_image - size
            free = shutil.disk_usage(self.folder).free
            if new > free:
                raise OSError(f"{new / GB:.2f} GB are needed and {free / GB:.2f} GB are free")
            if new > 0:
                text = "writing frozen features of %s, %.2f GB, to %s"
                log.info(text, request.title, new / GB, file.path)
            with file.path.open("ab") as opened:
                opened.truncate(number * request.bytes_per_image)
        return chunks


class TemporaryFeatures:
    """Features that the processes of a group on one machine have in one file, and nobody later."""

    def __init__(self, group: ProcessGroup, folder: Path | None = None) -> None:
        self.group = group
        self.folder = folder  # None: that for temporary files

    def get(self, request: FeatureRequest, *, at_least: int) -> Tensor | None:
        """Return the features, of which each process computes some; None if they do not fit."""
        group = self.group
        made = tempfile.mkdtemp(prefix="gcdbench-", dir=self.folder) if group.is_main else None
        folder = Path(group.broadcast_object(made))
        try:
            kept = FeatureCache(folder, sys.maxsize, group).get(request, at_least=at_least)
            group.check_same(kept is None, "frozen features")  # all have mapped them by now
            return kept
        finally:
            if group.is_main:
                shutil.rmtree(folder, ignore_errors=True)


class FeatureFile:
    """The file with the features of one list, and its index."""

    def __init__(self, path: Path, request: FeatureRequest) -> None:
        self.path = path
        self.request = request
        self.index = path.with_suffix(".json")

    @property
    def size(self) -> int:
        """Bytes that the features have or will have."""
        return self.path.stat().st_size if self.path.exists() else 0

    def missing(self, chunks: int) -> list[int]:
        """Return which of the first chunks must be computed: missing and damaged ones."""
        noted = self._noted(chunks)
        bad = list(self._bad(noted))
        if damaged := sum(bool(noted[number]) for number in bad):
            text = "%s: %d of %d parts are damaged and are computed again"
            log.warning(text, self.path, damaged, chunks)
        return bad

    def fill(self, missing: Sequence[int], chunks: int) -> None:
        """Compute some chunks; other processes may compute others at the same time."""
        request = self.request
        for number, chunk in zip(missing, request.compute(missing), strict=True):
            data = chunk.contiguous().numpy().tobytes()
            with self.path.open("r+b") as file:
                file.seek(self._start(number))
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            with FileLock(self.path.with_suffix(".index.lock")):
                noted = self._noted(chunks)
                # a chunk with a placeholder for an unreadable image is valid in this run only
                noted[number] = hashlib.sha256(data).hexdigest() if request.complete() else ""
                facts = {"title": request.title, "checksums": noted}
                write_atomically(self.index, json.dumps(facts).encode())

    def mapped(self, chunks: int) -> Tensor:
        """Return the first chunks, mapped into memory."""
        number = sum(self.request.sizes[:chunks])
        # a private mapping: changes by one process are not visible to the others
        features = torch.from_file(
            *(str(self.path), False),
            size=number * prod(self.request.shape),
            dtype=self.request.dtype,
        )
        return features.view(number, *self.request.shape)

    def _noted(self, chunks: int) -> list[str]:
        """Return the checksums of the first chunks, empty for those that were never written."""
        try:
            noted = list(json.loads(self.index.read_text(encoding="utf-8"))["checksums"])
        except (OSError, ValueError, KeyError, TypeError):
            noted = []
        return (noted + [""] * chunks)[:chunks]

    def _bad(self, noted: list[str]) -> Iterator[int]:
        """Yield the numbers of the chunks whose checksum is wrong."""
        with self.path.open("rb") as file:
            for number, checksum in enumerate(noted):
                file.seek(self._start(number))
                size = self.request.sizes[number] * self.request.bytes_per_image
                if not checksum or hashlib.sha256(file.read(size)).hexdigest() != checksum:
                    yield number

    def _start(self, chunk: int) -> int:
        return sum(self.request.sizes[:chunk]) * self.request.bytes_per_image

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the file's lock while it is checked and filled."""
        lock = FileLock(self.path.with_suffix(".lock"))
        try:
            lock.acquire(blocking=False)
        except Timeout:
            text = "waiting for the frozen features of %s, which another process computes"
            log.info(text, self.request.title)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()


@cache
def _code() -> str:
    """Return a hash of the code that makes pixels and frozen features."""
    return code_of(
        "training/features/pool.py",
        "training/features/bank.py",
        "nn/load.py",
        "data/corrupted.py",
    )
