"""Compute what plots show, as tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from gcdbench.experiment.record import Record, SetScores, mentions, terms_of
from gcdbench.report import statistics
from gcdbench.report.collect import percent
from gcdbench.report.leaderboard import Leaderboard

# what can happen to an image; with protocol v2 the shares add up to one
OUTCOMES = {
    "all": "right",
    "old_to_wrong_old": "old → another old",
    "old_to_new": "old → new",
    "new_to_old": "new → old",
    "new_to_wrong_new": "new → another new",
}


class Drop(NamedTuple):
    """All on source and shifted images, mean and deviation over seeds, in percent."""

    dataset: str
    method: str
    source: float
    source_std: float
    shifted: float
    shifted_std: float


def drops(leaderboard: Leaderboard) -> list[Drop]:
    """Return source and shifted accuracy of each method on each dataset that has both."""
    found: dict[tuple[str, Any, str], tuple[float, float]] = {}
    for role in ("source", "shifted"):
        scores = statistics.scores(leaderboard.collection.table, role=role)
        for dataset, group in scores.groupby(level="dataset"):
            for method in group.columns:
                seeds = group[method].dropna()
                if len(seeds):
                    found[role, dataset, method] = float(seeds.mean()), float(seeds.std())
    return [
        Drop(dataset, method, *found["source", dataset, method], *found["shifted", dataset, method])
        for dataset in leaderboard.collection.datasets
        for method in leaderboard.rows
        if ("source", dataset, method) in found and ("shifted", dataset, method) in found
    ]


def outcomes(leaderboard: Leaderboard) -> pd.DataFrame:
    """Return the percentage of each outcome per role and method, mean over datasets and seeds."""
    rows = []
    for record in leaderboard.collection.records:
        for name, scores in record.sets.items():
            if "/" in name or scores.role == "unseen":
                continue
            rows.append(_outcome_row(record, scores, scores.role))
        if "corrupted" in record.summary:
            rows.append(_outcome_row(record, record.summary["corrupted"], "shifted"))
    table = pd.DataFrame(rows, columns=["dataset", "method", "role", *OUTCOMES])
    by_dataset = table.groupby(["role", "method", "dataset"], sort=False).mean()
    return by_dataset.groupby(["role", "method"], sort=False).mean()


def _outcome_row(record: Record, scores: SetScores, role: str) -> tuple[str | float, ...]:
    shares = [percent(scores.rate(outcome)) for outcome in OUTCOMES]
    return record.dataset, record.method, role, *shares


def corruptions(records: Sequence[Record]) -> pd.DataFrame:
    """Return All in percent per method, corruption and severity, over datasets and seeds."""
    rows = []
    for record in records:
        for name, scores in record.sets.items():
            corruption, slash, severity = name.partition("/")
            if slash:
                key = (record.dataset, record.method, corruption, int(severity))
                rows.append((*key, percent(scores.all)))
    columns = ["dataset", "method", "corruption", "severity", "accuracy"]
    table = pd.DataFrame(rows, columns=columns)
    by_dataset = table.groupby(columns[:-1], sort=False)["accuracy"].mean()
    return by_dataset.groupby(columns[1:-1], sort=False).mean().reset_index()


def losses(records: Sequence[Record]) -> pd.DataFrame:
    """Return the sum of the loss terms per dataset, method, seed and epoch (counted from 1)."""
    rows = [
        (r.dataset, r.method, r.seed, epoch + 1, _sum(terms))
        for r in records
        for epoch, terms in terms_of(r.curve)
    ]
    return pd.DataFrame(rows, columns=["dataset", "method", "seed", "epoch", "loss"])


def terms(records: Sequence[Record]) -> pd.DataFrame:
    """Return every loss term and diagnostic by name, dataset, method, seed and epoch (from 1)."""
    rows = [
        (name, r.dataset, r.method, r.seed, point.epoch + 1, value)
        for r in records
        for point in r.curve
        for name, value in [*point.terms.items(), *point.diagnostics.items()]
        if value is not None
    ]
    return pd.DataFrame(rows, columns=["name", "dataset", "method", "seed", "epoch", "value"])


def learning(records: Sequence[Record]) -> pd.DataFrame:
    """Return All in percent per dataset, method, seed, role and epoch, the last one included."""
    rows = []
    for record in records:
        if not mentions(record.curve, "sets"):
            continue
        measured = [(point.epoch + 1, point.sets) for point in record.curve if point.sets]
        if not measured:
            continue
        key = (record.dataset, record.method, record.seed)
        roles = {name: scores.role for name, scores in record.sets.items()}
        for epoch, sets in [*measured, (len(record.curve), record.sets)]:
            for name, scores in sets.items():
                if roles.get(name) in ("source", "shifted"):
                    rows.append((*key, roles[name], epoch, percent(scores.all)))
    columns = ["dataset", "method", "seed", "role", "epoch", "accuracy"]
    table = pd.DataFrame(rows, columns=columns)
    return table.groupby(columns[:-1], sort=False)["accuracy"].mean().reset_index()


def _sum(terms: Mapping[str, float | None]) -> float:
    values = [math.nan if value is None else value for value in terms.values()]
    return math.fsum(values)
