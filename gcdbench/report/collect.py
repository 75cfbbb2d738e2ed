"""Read the records of a request into one tidy table; name those that are left out, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from gcdbench.core.method_spec import MethodSpec
from gcdbench.core.suites import Suite
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.experiment.index import Index
from gcdbench.experiment.key import score_version
from gcdbench.experiment.plan import Cell, Request, base_name, make_cells
from gcdbench.experiment.record import Record, SearchFacts, SetScores
from gcdbench.experiment.verdict import Verdict
from gcdbench.report.matching import differing, is_of, same_data
from gcdbench.report.submissions import Submission, read_submissions

Judge = Callable[..., Verdict]  # of a record's path, the record and its problem
COLUMNS = ["dataset", "method", "seed", "set", "role", "split", "accuracy"]
SPLITS = ("All", "Old", "New")


class Place(NamedTuple):
    """Which cell: a method on a dataset with a seed."""

    dataset: str
    method: str
    seed: int

    @property
    def label(self) -> str:
        """Name of the cell in messages."""
        return f"{self.method} on {self.dataset}, seed {self.seed}"


@dataclass(frozen=True)
class LeftOut:
    """A record that is not counted, and why."""

    path: str  # below the results folder
    kind: Literal["damaged", "stale", "foreign"]
    reason: str

    def __str__(self) -> str:
        return f"{self.path} {self.reason}"


@dataclass(frozen=True)
class Truth:
    """The labels of a dataset's evaluation sets."""

    classes: tuple[str, ...]  # old ones first
    num_old: int
    labels: Mapping[str, np.ndarray]  # by evaluation set
    ids: Mapping[str, Sequence[str]]  # names of the images, in the same order


@dataclass
class Collection:
    """The records of a request, and what was left out."""

    table: pd.DataFrame  # one row per record, evaluation set and split; accuracies in percent
    records: list[Record] = field(default_factory=list)
    planned: list[Place] = field(default_factory=list)  # in the order of the plan
    missing: list[Place] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    tuned: list[tuple[Record, SearchFacts]] = field(default_factory=list)  # chosen by searches
    folders: dict[str, Path] = field(default_factory=dict)  # key -> folder of the record
    truths: dict[str, Truth] = field(default_factory=dict)  # by dataset
    description: str = ""  # of the suite
    unconfirmed: list[Place] = field(default_factory=list)  # whose scores were not recomputed
    submissions: dict[str, Submission] = field(default_factory=dict)  # methods trained by others

    @property
    def datasets(self) -> list[str]:
        """Datasets in the order of the plan."""
        return list(dict.fromkeys(place.dataset for place in self.planned))


def collect(
    request: Request,
    results: Path,
    *,
    any_code: bool = False,
    as_recorded: bool = False,
    cells: Sequence[Cell] | None = None,
    judge: Judge | None = None,
) -> Collection:
    """Read the records of exactly the requested cells; all recorded methods if none is named.

    With ``any_code``, a cell without a record of its own takes the newest one that was made by
    another version of the code with the same settings, split and weights; with
    ``as_recorded``, the newest one of its dataset, method and seed, whatever it was made with.
    ``cells`` are those of the request, if they have been planned already. ``judge`` computes the
    scores of a record again: records with other scores are left out.
    """
    suite = Suite.load(request.suite)
    index = Index(results)
    sound, left_out = _read(index)
    if cells is None and not request.methods:
        left_out += _of_unknown_methods(sound, suite, results)
        request = _with_recorded_methods(request, sound.values(), suite)
    by_key = {cell.key: cell for cell in (make_cells(request) if cells is None else cells)}
    chosen: dict[str, tuple[Path, Record]] = {}
    others: dict[str, list[tuple[Path, Record]]] = {}
    tuned: list[tuple[Path, Record, SearchFacts]] = []
    wanted = {_place(cell): cell for cell in by_key.values()}
    for path, record in sound.items():
        cell = wanted.get(_place_of(record))
        if cell is None:
            continue
        chose = [s for s in record.searches if _chosen_for(record, s, cell, any_code, as_recorded)]
        tuned += [(path, record, search) for search in chose]
        if chose and not is_of(record, cell):
            continue
        if is_of(record, cell):
            chosen[cell.key] = path, record
        elif as_recorded or (any_code and _same_but_code(record, cell)):
            others.setdefault(cell.key, []).append((path, record))
        else:
            reason = (
                f"is of another version ({records.differences(record, cell) or 'its key differs'})"
            )
            left_out.append(LeftOut(_below(path, results), "stale", reason))
    for key, found in others.items():
        found.sort(key=lambda one: one[1].timing.started)
        if key not in chosen:
            chosen[key] = found.pop()
        reason = "is of another version than the record that is used"
        left_out += [LeftOut(_below(path, results), "stale", reason) for path, _ in found]
    unconfirmed: list[Place] = []
    if judge is not None:
        with index:
            verdicts = Verdicts(index, judge)
            for key, (path, record) in list(chosen.items()):
                verdict = verdicts.of(path, record, by_key[key])
                if verdict.kind == "wrong":
                    del chosen[key]
                elif verdict.kind == "consistent":
                    unconfirmed.append(_place(by_key[key]))
            tuned = [
                (path, record, search)
                for path, record, search in tuned
                if verdicts.of(path, record, wanted[_place_of(record)]).kind != "wrong"
            ]
        left_out += verdicts.left_out
    return Collection(
        table=tidy([chosen[key][1] for key in by_key if key in chosen]),
        records=[chosen[key][1] for key in by_key if key in chosen],
        planned=list(wanted),
        missing=[_place(cell) for key, cell in by_key.items() if key not in chosen],
        left_out=sorted(left_out, key=lambda one: one.path),
        tuned=[(record, search) for _, record, search in tuned],
        folders={record.key: path.parent for path, record in chosen.values()},
        truths=_truths(by_key.values()),
        description=suite.description,
        unconfirmed=unconfirmed,
        submissions=read_submissions(results),
    )


def tidy(chosen: Sequence[Record]) -> pd.DataFrame:
    """Return one row per record, evaluation set and split."""
    rows = [
        (r.dataset, r.method, r.seed, name, scores.role, split, percent(scores.rate(split)))
        for r in chosen
        for name, scores in reported_sets(r).items()
        for split in SPLITS
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def percent(share: float | None) -> float:
    """Return a recorded fraction in percent; NaN for null."""
    return float("nan") if share is None else 100 * share


def reported_sets(record: Record) -> dict[str, SetScores]:
    """Return the sets of a leaderboard: source, shifted domains, and the means of the others."""
    sets = {n: s for n, s in record.sets.items() if s.role != "unseen" and "/" not in n}
    for name, role in (("corrupted", "shifted"), ("others", "unseen")):
        if name in record.summary:
            sets[name] = dataclasses.replace(record.summary[name], role=role)
    return sets


def _read(index: Index) -> tuple[dict[Path, Record], list[LeftOut]]:
    """Read all records below a folder and part those that can be used from those that cannot."""
    sound: dict[Path, Record] = {}
    left_out = []
    for path, record in index.all():
        if isinstance(record, records.Damaged):
            left_out.append(LeftOut(_below(path, index.results), "damaged", record.reason))
        elif reason := records.misplaced(path, record):
            left_out.append(LeftOut(_below(path, index.results), "foreign", reason))
        else:
            sound[path] = record
    return sound, left_out


class Verdicts:
    """Recomputes the scores of records, or knows from the cache that they were right."""

    def __init__(self, index: Index, judge: Judge) -> None:
        self.index, self.judge = index, judge
        self._wrong: dict[Path, LeftOut] = {}

    @property
    def left_out(self) -> list[LeftOut]:
        """The records with wrong scores."""
        return list(self._wrong.values())

    def of(self, path: Path, record: Record, cell: Cell) -> Verdict:
        """Say what the scores of a record are worth, by the labels of the cell if they are its."""
        labels = cell.fingerprints()["problem"]
        if record.fingerprints.get("problem") == labels:
            basis = f"{labels} {score_version()}"
            verdict = self.index.verdict(
                path, basis, lambda: self.judge(path, record, problem=cell.problem())
            )
        else:  # of other images: those that the record names may be here
            verdict = self.judge(path, record, cell.data_root)
        if verdict.kind == "wrong":
            place = _below(path, self.index.results)
            self._wrong[path] = LeftOut(place, "damaged", verdict.reason)
        return verdict


def _of_unknown_methods(sound: Mapping[Path, Record], suite: Suite, results: Path) -> list[LeftOut]:
    mine = {path: one for path, one in sound.items() if base_name(one.dataset) in suite.datasets}
    unknown = {m for m in {one.method for one in mine.values()} if not _known(m)}
    return [
        LeftOut(_below(path, results), "foreign", f"is of {record.method}, which is not here")
        for path, record in mine.items()
        if record.method in unknown
    ]


def _known(spec: str) -> bool:
    try:
        MethodSpec.parse(spec)
    except UserError:  # its plug-in is not installed
        return False
    return True


def _with_recorded_methods(request: Request, sound: Iterable[Record], suite: Suite) -> Request:
    recorded = {r.method for r in sound if base_name(r.dataset) in suite.datasets}
    known = sorted(filter(_known, recorded))
    if not known:
        raise UserError(
            f"no records of suite {request.suite} were found; "
            f"make some with: gcdbench run --suite {request.suite}"
        )
    return dataclasses.replace(request, methods=tuple(known))


def _chosen_for(
    record: Record, search: SearchFacts, cell: Cell, any_code: bool, as_recorded: bool
) -> bool:
    """Tell whether a record differs from a cell in nothing but what the search chose."""
    any_code = any_code or as_recorded
    free = {
        f"{'' if part == 'train' else 'config.'}{part}.{name}"
        for part, given in search.settings.items()
        for name in given
    }
    same = same_data(record, cell, any_code=any_code)
    return same and differing(record, cell, any_code=any_code) <= free


def _same_but_code(record: Record, cell: Cell) -> bool:
    same = same_data(record, cell, any_code=True)
    return same and not differing(record, cell, any_code=True)


def _place(cell: Cell) -> Place:
    return Place(cell.dataset, cell.spec.text, cell.seed)


def _place_of(record: Record) -> Place:
    return Place(record.dataset, record.method, record.seed)


def _below(path: Path, results: Path) -> str:
    return path.relative_to(results).as_posix()


def _truths(cells: Iterable[Cell]) -> dict[str, Truth]:
    truths: dict[str, Truth] = {}
    for cell in cells:
        if cell.dataset not in truths:
            problem = cell.problem()
            rows = {name: evaluated.rows for name, evaluated in problem.sets.items()}
            truths[cell.dataset] = Truth(
                classes=problem.classes,
                num_old=problem.num_old,
                labels={name: problem.labels[r] for name, r in rows.items()},
                ids={name: [problem.images.ids[i] for i in r] for name, r in rows.items()},
            )
    return truths
