"""Computes the scores of records again, from the predictions that are stored with them.

How scores are computed is no part of a cell's key: a new score reaches old records this way, and
nothing is trained. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from gcdbench.data.problem import Problem
from gcdbench.errors import UserError
from gcdbench.experiment import heartbeat, records
from gcdbench.experiment.key import score_version
from gcdbench.experiment.plan import build_problem
from gcdbench.experiment.record import SPLITS, Record, SetScores, part
from gcdbench.experiment.verdict import CLOSE, Verdict, contradiction
from gcdbench.training.scoring.scores import score_predictions

SHOWN = 3  # scores that are named if they are wrong


class Impossible(Exception):
    """A record that cannot be scored again; the message says why."""


class NoLabels(Impossible):
    """The images and labels that a record was scored with are not here."""


@dataclass(frozen=True)
class Rescored:
    """What became of one record."""

    path: Path
    kind: Literal["unchanged", "rescored", "impossible"]
    differences: list[str] = field(default_factory=list)  # scores that are not the recorded ones
    reason: str = ""  # why it is impossible


def rescore(results: Path, *, root: Path | None = None, write: bool = True) -> Iterator[Rescored]:
    """Score all records below a folder again and yield what became of each.

    A record is replaced if its scores are of another version or differ; its predictions, learning
    curve and key stay as they are. The others are not touched.
    """
    for path, record in records.read_all(results):
        try:
            if reason := records.invalid(path, record):
                raise Impossible(reason)
            assert isinstance(record, Record)
            new = scored_again(record, path.parent, root)
            if new == record:
                yield Rescored(path, "unchanged")
                continue
            if write:
                _replace(path, record, new)
            yield Rescored(path, "rescored", differences(record, new))
        except Impossible as error:
            yield Rescored(path, "impossible", reason=str(error))


def scored_again(
    record: Record, folder: Path, root: Path | None = None, problem: Problem | None = None
) -> Record:
    """Return a record with the scores that its stored predictions have now."""
    if problem is None:
        problem = _problem(record, root)
    if problem.fingerprint != record.fingerprints.get("problem"):
        raise NoLabels(f"the images or labels of {record.dataset} are not those of the record")
    found = records.read_predictions(folder, record)
    if isinstance(found, str):
        raise Impossible(found)
    _check_sizes(found, problem)
    evidence = records.read_evidence(folder, record)
    _check_evidence(evidence, problem)
    scores = score_predictions(found, problem, evidence)
    return replace(
        record,
        scores=score_version(),
        sets={name: part(SetScores, one) for name, one in scores.sets.items()},
        summary={name: part(SetScores, one) for name, one in scores.summary.items()},
    )


def _problem(record: Record, root: Path | None) -> Problem:
    try:
        source, config = record.source
        return build_problem(source, config, record.dataset, record.limit, root)
    except UserError as error:
        raise NoLabels(str(error)) from error
    except (AttributeError, LookupError, TypeError, ValueError) as error:  # settings by hand
        text = f"{type(error).__name__}: {error}"
        raise NoLabels(f"its settings name no dataset ({text})") from error


def judge(
    path: Path, record: Record, root: Path | None = None, problem: Problem | None = None
) -> Verdict:
    """Compute a record's scores again, and say whether they are those that it claims.

    Without the labels it was scored with, only what the record says of itself is compared.
    """
    if reason := records.invalid(path, record):
        return Verdict("wrong", reason)
    try:
        new = scored_again(record, path.parent, root, problem)
    except NoLabels as error:
        found = records.read_predictions(path.parent, record)
        wrong = found if isinstance(found, str) else contradiction(record, found)
        return Verdict("wrong", wrong) if wrong else Verdict("consistent", str(error))
    except Impossible as error:
        return Verdict("wrong", str(error))
    except (ArithmeticError, AssertionError, LookupError, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
        return Verdict("wrong", f"has predictions that cannot be scored ({text})")
    same_code = record.scores == new.scores
    wrong = ", ".join(_beyond_rounding(record, new, every=same_code)[:SHOWN])
    if wrong:
        return Verdict("wrong", f"has scores that its predictions do not give ({wrong})")
    return Verdict("recomputed")


def _beyond_rounding(old: Record, new: Record, *, every: bool) -> list[str]:
    """Name the claimed scores that others are computed for; of other code, the accuracies only."""
    found = []
    for claimed, given in ((old.sets, new.sets), (old.summary, new.summary)):
        if every and claimed.keys() != given.keys():
            found.append("other sets")
        for name in claimed.keys() & given.keys():
            one, other = claimed[name], given[name]
            rates = (*SPLITS, *(one.rates if every else ()))
            pairs = [(rate, one.rate(rate), other.rate(rate)) for rate in rates]
            if one.role != other.role:
                found.append(f"{name} is {one.role!r} instead of {other.role!r}")
            pairs += [("n", one.n, other.n), ("n_old", one.n_old, other.n_old)]
            found += [f"{name} {r} {was} instead of {now}" for r, was, now in pairs
                      if not _is_close(was, now)]  # fmt: skip
    return sorted(found)


def _is_close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= CLOSE


def differences(old: Record, new: Record) -> list[str]:
    """Name the scores in which two records differ, with both values."""
    found = []
    for before, after in ((old.sets, new.sets), (old.summary, new.summary)):
        for name in sorted(before.keys() | after.keys()):
            found += _differences(name, before.get(name), after.get(name))
    return found


def _differences(name: str, old: SetScores | None, new: SetScores | None) -> list[str]:
    if old is None or new is None:
        return [f"{name} {'is new' if old is None else 'is gone'}"]
    rates = dict.fromkeys([*SPLITS, *old.rates, *new.rates])
    pairs = [(rate, old.rate(rate), new.rate(rate)) for rate in rates]
    pairs += [("n", old.n, new.n), ("n_old", old.n_old, new.n_old)]
    found = [f"{name} {rate} {now} instead of {was}" for rate, was, now in pairs if was != now]
    if old != new and not found:
        found = [f"{name} has another role or other rates"]
    return found


def _check_sizes(predictions: Mapping[str, np.ndarray], problem: Problem) -> None:
    sizes = {name: (len(evaluated.rows),) for name, evaluated in problem.sets.items()}
    if {name: one.shape for name, one in predictions.items()} != sizes:
        raise Impossible("has predictions that do not fit its evaluation sets")


def _check_evidence(evidence: Mapping[str, Mapping[str, np.ndarray]], problem: Problem) -> None:
    sizes = {name: (len(evaluated.rows),) for name, evaluated in problem.sets.items()}
    for kind, given in evidence.items():
        wrong = [n for n, one in given.items() if one.ndim and one.shape != sizes.get(n)]
        if wrong or given.keys() != sizes.keys():
            raise Impossible(f"has an array of {kind} that does not fit its evaluation sets")


def _replace(path: Path, old: Record, new: Record) -> None:
    """Write a record in place of the one that was read, unless a run has replaced that one."""
    try:
        with heartbeat.locked(path.parent):
            if records.read_record(path) != old:
                raise Impossible("was replaced in the meantime; rescore again")
            records.rewrite(path, new)
    except heartbeat.Busy:
        raise Impossible("is being trained right now; rescore again later") from None
    except OSError as error:
        raise Impossible(f"cannot be written ({error.strerror})") from error
