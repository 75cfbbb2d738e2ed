"""A cache of what records say, so that thousands of them need not be read for every command.

An entry counts only while the record's file is the one that was read and checked: same inode, size
and times, of which the time of the last change cannot be set by hand. The cache is a file of the
user's own (below ``GCDBENCH_CACHE``, else ``~/.cache/gcdbench``), never part of a results folder,
which somebody may have sent. Without it, or if it is damaged, all records are read. Nothing here
imports torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gcdbench.core.files import write_atomically
from gcdbench.experiment import record as record_module
from gcdbench.experiment import records, typed_json
from gcdbench.experiment.plan import Cell
from gcdbench.experiment.record import (
    LazyCurve,
    ProblemFacts,
    Provenance,
    Record,
    SetScores,
    Timing,
)
from gcdbench.experiment.verdict import Verdict

FEWEST = 200  # records; fewer are read as fast as the cache
SETTLED_SECONDS = 2.0  # after a change, in which a second one may leave the times as they are


# fields of a record that are here by name; all others are kept as they are
_NAMED = (
    *("key", "dataset", "method", "seed", "settings", "fingerprints", "problem", "scores"),
    *("sets", "summary", "curve", "provenance", "timing", "predictions_sha256"),
)
MORE = {name: kind for name, kind in typed_json.types_of(Record).items() if name not in _NAMED}

_SET_FIELDS = tuple(f.name for f in dataclasses.fields(SetScores))  # the last are the rates
_OWN = len(_SET_FIELDS) - 1


class Done(NamedTuple):
    """What is asked most often of the record that makes a cell done."""

    seconds: float
    scores: str  # version of the code that scored it


@dataclass
class Entry:
    """A record that was read and checked, as JSON."""

    file: str  # signature of the record's file
    predictions: str  # signature of the predictions that belong to it; "" if not compared yet
    key: str
    seconds: str
    scores: str
    body: str
    curve: str
    verdict: str = ""  # on the scores, with what it depends on


class Index:
    """Reads the records of a results folder; those that have not changed from the cache."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self._root = f"{results}{os.sep}"
        self._entries: dict[str, Entry] = {}
        self._shared: list[Any] = []
        self._places: dict[str, int] = {}
        self._objects: dict[tuple[Any, int], Any] = {}
        self._changes = 0
        self._path = _place(results)
        with contextlib.suppress(OSError, ValueError):
            self._load(self._path.read_bytes())

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._changes > len(self._entries) // 50 and len(self._entries) >= FEWEST:
            with contextlib.suppress(OSError):  # it is only a cache
                write_atomically(self._path, self._dump())

    def all(self) -> Iterator[tuple[Path, Record | records.Damaged]]:
        """Read every record below the results folder, in the order of the paths."""
        paths = sorted(self.results.glob(f"*/*/*/{records.RECORD}"))
        for gone in self._entries.keys() - {str(path)[len(self._root) :] for path in paths}:
            del self._entries[gone]
            self._changes += 1
        return ((path, self.read(path)) for path in paths)

    def readable(self) -> Iterator[Record]:
        """Yield the records that are not damaged."""
        return (record for _, record in self.all() if isinstance(record, Record))

    def read(self, path: Path) -> Record | records.Damaged:
        """Read a record, as ``records.read_record`` does."""
        entry = self._entry(str(path))
        if entry is not None:
            return self._record(entry)
        before = signature(str(path))
        parsed = records.parse(path)
        if isinstance(parsed, records.Damaged):
            return parsed
        return self._keep(path, before, *parsed)

    def done(self, cell: Cell) -> Done | records.Damaged | None:
        """Return what is known of a cell's valid record, as ``records.read_done`` judges it."""
        folder = (
            f"{self._root}{cell.dataset}{os.sep}{cell.spec.text}{os.sep}seed{cell.seed}-{cell.key}"
        )
        path, predictions = (
            f"{folder}{os.sep}{name}" for name in (records.RECORD, records.PREDICTIONS)
        )
        entry = self._entry(path)
        now = signature(predictions)
        if entry is None or not now or entry.predictions != now or entry.key != cell.key:
            found = records.read_done(self.results, cell, read=self.read)
            if not isinstance(found, Record):
                return found
            if (entry := self._entry(path)) is not None and _is_settled(now):
                entry.predictions = now
                self._changes += 1
            return Done(found.timing.wall_seconds, found.scores)
        return Done(float(entry.seconds), entry.scores)

    def verdict(self, path: Path, basis: str, judge: Callable[[], Verdict]) -> Verdict:
        """Return the verdict on a record's scores; of an unchanged one, the earlier verdict.

        ``basis`` is what it depends on in addition to the two files: labels and code.
        """
        entry, predictions = (
            self._entry(str(path)),
            signature(str(path.parent / records.PREDICTIONS)),
        )
        if entry is not None and entry.predictions == predictions != "":
            kind, _, found = entry.verdict.partition(" ")
            if found == basis and kind in ("recomputed", "consistent"):
                return Verdict(kind)  # type: ignore[arg-type]  # one of the two words
        found_now = judge()
        if entry is not None and found_now.kind != "wrong" and _is_settled(predictions):
            entry.predictions, entry.verdict = predictions, f"{found_now.kind} {basis}"
            self._changes += 1
        return found_now

    def _entry(self, path: str) -> Entry | None:
        """Return the entry of a record if its file is still the one that was read."""
        entry = self._entries.get(path[len(self._root) :])
        return entry if entry is not None and entry.file == signature(path) else None

    def _keep(self, path: Path, before: str, content: dict[str, Any], record: Record) -> Record:
        """Make an entry of a record that was checked, and return the record as it gives it."""
        name = str(path)[len(self._root) :]
        seed = {name: value for name, value in record.settings.items() if name == "seed"}
        settings = {name: value for name, value in record.settings.items() if name != "seed"}
        body = (
            (record.dataset, record.method, record.seed, record.predictions_sha256, seed),
            self._share(settings),
            self._share(content["fingerprints"]),
            self._share(content["problem"]),
            self._share(typed_json.encode(record.provenance)),
            self._rows(record.sets),
            self._rows(record.summary),
            list(vars(record.timing).values()),
            {name: typed_json.encode(getattr(record, name)) for name in MORE},
        )
        entry = Entry(
            file=before,
            predictions="",
            key=record.key,
            seconds=repr(record.timing.wall_seconds),
            scores=record.scores,
            body=json.dumps(body, separators=(",", ":")),
            curve=json.dumps(content["curve"], separators=(",", ":")),
        )
        if _is_settled(before) and name.isprintable():
            self._entries[name] = entry
            self._changes += 1
        return self._record(entry)

    def _share(self, value: Any) -> int:
        """Return the place of a value in the list of those that records have in common."""
        text = json.dumps(value, sort_keys=True)
        if text not in self._places:
            self._places[text] = len(self._shared)
            self._shared.append(value)
        return self._places[text]

    def _rows(self, sets: Mapping[str, SetScores]) -> dict[str, list[Any]]:
        """Return the values of scores; the names of rates are kept once for all records."""
        rows = {}
        for set_name, scores in sets.items():
            *own, rates = vars(scores).values()
            rows[set_name] = [*own, self._share(list(rates)), *rates.values()]
        return rows

    def _scores(self, row: list[Any]) -> SetScores:
        """Return the scores of a row; its values were checked, and this takes half the time."""
        scores = object.__new__(SetScores)
        rates = dict(zip(self._shared[row[_OWN]], row[_OWN + 1 :], strict=True))
        scores.__dict__.update(zip(_SET_FIELDS, (*row[:_OWN], rates), strict=True))
        return scores

    def _record(self, entry: Entry) -> Record:
        """Return the record of an entry; it was checked by this code when the entry was made."""
        own, settings, prints, problem, provenance, *scores, timing, more = json.loads(entry.body)
        (dataset, method, seed, predictions, seeds), (sets, summary) = own, scores
        return Record(
            key=entry.key,
            dataset=dataset,
            method=method,
            seed=seed,
            settings={**self._shared[settings], **seeds},
            fingerprints=self._shared[prints],
            problem=self._made(ProblemFacts, problem),
            scores=entry.scores,
            sets={name: self._scores(row) for name, row in sets.items()},
            summary={name: self._scores(row) for name, row in summary.items()},
            curve=LazyCurve(entry.curve),
            provenance=self._made(Provenance, provenance),
            timing=Timing(*timing),
            predictions_sha256=predictions,
            **{name: typed_json.decode(MORE[name], value, name) for name, value in more.items()},
        )

    def _made(self, kind: Any, place: int) -> Any:
        """Return a shared value as its class, which many records have in common."""
        if (kind, place) not in self._objects:
            self._objects[kind, place] = typed_json.decode(kind, self._shared[place], "")
        return self._objects[kind, place]

    def _dump(self) -> bytes:
        lines = [_version(), json.dumps(self._shared, separators=(",", ":"))]
        for name, one in self._entries.items():
            facts = (one.file, one.predictions, one.key, one.seconds, one.scores)
            lines.append("\t".join((name, *facts, one.body, one.curve, one.verdict)))
        data = "\n".join(lines).encode()
        return hashlib.sha256(data).hexdigest().encode() + b"\n" + data

    def _load(self, data: bytes) -> None:
        start = data.find(b"\n") + 1
        if hashlib.sha256(memoryview(data)[start:]).hexdigest().encode() != data[: start - 1]:
            return
        lines = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline="\n")
        _, version, shared = (lines.readline().rstrip("\n") for _ in range(3))
        if version != _version():
            return
        self._shared = json.loads(shared)
        self._places = {json.dumps(v, sort_keys=True): n for n, v in enumerate(self._shared)}
        for line in lines:  # one at a time: all of them together are hundreds of megabytes
            name, *facts = line.rstrip("\n").split("\t")
            self._entries[name] = Entry(*facts)


def signature(path: str) -> str:
    """Return what changes whenever a file is written or replaced; "" if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116  # several times as fast
    except (OSError, ValueError):
        return ""
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns} {found.st_ctime_ns}"


def _is_settled(signature: str) -> bool:
    """Tell whether a file has been as it is for a while: times of files are coarse."""
    return bool(signature) and time.time() - int(signature.split()[3]) / 1e9 > SETTLED_SECONDS


def _version() -> str:
    """Return the hash of the code that reads and checks records."""
    digest = hashlib.sha256()
    for module in (__file__, record_module.__file__, records.__file__, typed_json.__file__):
        digest.update(Path(module).read_bytes())
    return digest.hexdigest()


def _place(results: Path) -> Path:
    xdg = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = os.environ.get("GCDBENCH_CACHE") or f"{xdg}/gcdbench"
    name = hashlib.sha256(os.fsencode(results.resolve())).hexdigest()[:32]
    return Path(folder).expanduser() / f"records-{name}.txt"
