"""Compute scores from predictions: everything that a record holds about evaluation sets.

A new score is added here. It does not make records stale, because this module is not part of a
cell's key: it has a version of its own, and ``gcdbench results rescore`` computes the scores of old
records again from their predictions. Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcdbench.data.problem import Problem
from gcdbench.ops.contingency import (
    Contingency,
    adjusted_rand_index,
    contingency,
    normalised_mutual_information,
)
from gcdbench.ops.metrics import (
    Accuracies,
    Ids,
    Protocol,
    by_order,
    by_protocol,
    checked_ids,
    ratio,
)


@dataclass(frozen=True)
class SetScore:
    """The scores of one evaluation set.

    The four confusions are fractions of the evaluated samples: with protocol v2 they and ``all``
    add up to one. A cluster counts as old when it is matched to an old class it has samples of.
    """

    all: float
    old: float
    new: float
    n: int
    n_old: int
    nmi: float
    ari: float
    old_to_new: float
    new_to_old: float
    old_to_wrong_old: float
    new_to_wrong_new: float
    false_negative_rate: float  # novelty missed: new samples taken for an old class / new samples
    false_positive_rate: float  # novelty invented: old samples taken for a new class / old samples

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True)
class Scores:
    """Scores of every evaluation set, and their aggregates."""

    sets: dict[str, dict[str, Any]]
    summary: dict[str, dict[str, float]]


def score_predictions(predictions: Mapping[str, np.ndarray], problem: Problem) -> Scores:
    """Score the predicted clusters of every evaluation set with an assignment of its own."""

    def scored(*names: str) -> SetScore:
        return score(
            preds=np.concatenate([predictions[name] for name in names]),
            labels=problem.labels[np.concatenate([problem.sets[name].rows for name in names])],
            num_old=problem.num_old,
            num_classes=problem.num_classes,
        )

    scores = {name: scored(name) for name in problem.sets}
    unseen = [name for name, one in problem.sets.items() if one.role == "unseen"]
    pooled = scored(*(name for name in problem.sets if name not in unseen)).as_dict()
    return Scores(
        sets={n: {"role": problem.sets[n].role, **one.as_dict()} for n, one in scores.items()},
        summary={**aggregate(scores, unseen=unseen), "pooled": pooled},
    )


def score(
    *,
    preds: Ids,
    labels: Ids,
    num_old: int,
    num_classes: int | None = None,
    protocol: Protocol = "v2",
) -> SetScore:
    """Score one evaluation set: accuracies, NMI, ARI and the kinds of error."""
    pred, true = checked_ids(preds, labels, num_old=num_old, num_classes=num_classes)
    table = contingency(pred, true)
    acc = by_protocol(table, by_order(pred, true, table, num_old), protocol)
    _assert_weighted_mean(acc, table.class_sizes, num_old, protocol)
    n, n_old = len(true), int(table.class_sizes[:num_old].sum())
    errors = _confusions(table, acc.assignment, num_old)
    return SetScore(
        all=acc.all,
        old=acc.old,
        new=acc.new,
        n=n,
        n_old=n_old,
        nmi=normalised_mutual_information(table),
        ari=adjusted_rand_index(table),
        **{kind: count / n for kind, count in errors.items()},
        false_negative_rate=ratio(errors["new_to_old"], n - n_old),
        false_positive_rate=ratio(errors["old_to_new"], n_old),
    )


def aggregate(
    scores: Mapping[str, SetScore], *, unseen: Collection[str] = ()
) -> dict[str, dict[str, float]]:
    """Return the averages over evaluation sets, with equal weights, as in the papers.

    Sets named ``corruption/severity`` give one entry per corruption (the mean over its severities)
    and ``corrupted`` (the mean over all of them); the domains in ``unseen`` give ``others``.
    """
    groups: dict[str, list[SetScore]] = {}
    for name, one in scores.items():
        corruption, slash, _ = name.partition("/")
        if slash:
            groups.setdefault(corruption, []).append(one)
            groups.setdefault("corrupted", []).append(one)
        elif name in unseen:
            groups.setdefault("others", []).append(one)
    return {name: mean(members) for name, members in groups.items()}


def mean(scores: Iterable[SetScore]) -> dict[str, float]:
    """Return the mean of every rate over sets and the sum of their sizes; NaN propagates."""
    rows = [one.as_dict() for one in scores]
    totals = {key: math.fsum(row[key] for row in rows) for key in rows[0]}
    return {k: int(v) if k in ("n", "n_old") else v / len(rows) for k, v in totals.items()}


def _confusions(table: Contingency, assignment: NDArray[np.int64], num_old: int) -> dict[str, int]:
    """Return the four kinds of error.

    A cluster that shares no sample with the class it was matched to counts as new.
    """
    cells = table.cells
    right = assignment[cells.cluster] == cells.label
    is_old = cells.label < num_old
    cluster_is_old = np.zeros(len(assignment), dtype=bool)
    cluster_is_old[cells.cluster[right & is_old]] = True
    said_old = cluster_is_old[cells.cluster]
    kinds = {
        "old_to_new": is_old & ~said_old,
        "new_to_old": ~is_old & said_old,
        "old_to_wrong_old": is_old & said_old & ~right,
        "new_to_wrong_new": ~is_old & ~said_old & ~right,
    }
    return {kind: int(cells.count[where].sum()) for kind, where in kinds.items()}


def _assert_weighted_mean(
    acc: Accuracies, sizes: NDArray[np.int64], num_old: int, protocol: Protocol
) -> None:
    """Check that All is the mean of Old and New by size: a wrong number must not be recorded."""
    weights = (sizes > 0).astype(np.int64) if protocol == "v2b" else sizes
    parts = [(acc.old, weights[:num_old].sum()), (acc.new, weights[num_old:].sum())]
    expected = sum(value * weight for value, weight in parts if weight) / weights.sum()
    if not math.isclose(acc.all, expected, abs_tol=1e-9):
        raise AssertionError(f"All is {acc.all} but Old and New give {expected}")
