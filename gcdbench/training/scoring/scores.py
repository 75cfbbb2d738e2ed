"""Compute scores from predictions: everything that a record holds about evaluation sets.

A new score is added here. It does not make records stale, because this module is not part of a
cell's key: it has a version of its own, and ``gcdbench results rescore`` computes the scores of old
records again from their predictions. Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
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
from gcdbench.training.scoring.by_class import balanced, by_frequency
from gcdbench.training.scoring.chance import adjusted, floor
from gcdbench.training.scoring.probabilities import auroc, calibration_error

Evidence = Mapping[str, Mapping[str, np.ndarray]]  # kind -> set -> values, see ``evidence``
NO_EVIDENCE: Evidence = {}
NEIGHBOURS = 10  # of an image that purity looks at


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
    more: Mapping[str, float] = field(default_factory=dict)  # what needs more than one set's labels

    def as_dict(self) -> dict[str, float]:
        own = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "more"}
        return own | dict(self.more)


@dataclass(frozen=True)
class Scores:
    """Scores of every evaluation set, and their aggregates."""

    sets: dict[str, dict[str, Any]]
    summary: dict[str, dict[str, float]]


def score_predictions(
    predictions: Mapping[str, np.ndarray], problem: Problem, evidence: Evidence = NO_EVIDENCE
) -> Scores:
    """Score the predicted clusters of every evaluation set with an assignment of its own.

    docs/scores.md has the formula and the source of each score. ``evidence`` is what the evaluator
    measured in addition to predictions; the scores that need it are left out without it.
    """
    unseen = [name for name, one in problem.sets.items() if one.role == "unseen"]
    trained = [name for name in problem.sets if name not in unseen]
    labels = {name: problem.labels[one.rows] for name, one in problem.sets.items()}
    frequency = np.bincount(problem.labels[problem.pool], minlength=problem.num_classes)

    def matched(names: Sequence[str]) -> Match:
        return match(
            preds=np.concatenate([predictions[name] for name in names]),
            labels=np.concatenate([labels[name] for name in names]),
            num_old=problem.num_old,
            num_classes=problem.num_classes,
        )

    everywhere = matched(trained or unseen)
    pooled = score_match(everywhere)
    scores = {}
    for name in problem.sets:
        one = matched([name])
        more = more_scores(one, score_match(one), frequency=frequency, num_clusters=len(frequency))
        given = {kind: sets[name] for kind, sets in evidence.items()}
        if problem.cluster_unseen and name in unseen:  # its clusters are not the method's outputs
            given.pop("confidence", None)
        else:
            more |= shared_assignment(one, everywhere)
        more |= from_evidence(one, given)
        scores[name] = replace(score_match(one), more=more)
    return Scores(
        sets={n: {"role": problem.sets[n].role, **one.as_dict()} for n, one in scores.items()},
        summary={**aggregate(scores, unseen=unseen), "pooled": pooled.as_dict()},
    )


@dataclass(frozen=True)
class Match:
    """Predictions and labels of some samples, counted and matched."""

    pred: NDArray[np.int64]
    true: NDArray[np.int64]
    num_old: int
    protocol: Protocol
    table: Contingency
    accuracies: Accuracies

    @property
    def right(self) -> NDArray[np.bool_]:
        """Mask of the samples whose cluster is matched to their class."""
        return np.asarray(self.accuracies.assignment[self.pred] == self.true)


def match(
    *,
    preds: Ids,
    labels: Ids,
    num_old: int,
    num_classes: int | None = None,
    protocol: Protocol = "v2",
) -> Match:
    """Match clusters to classes."""
    pred, true = checked_ids(preds, labels, num_old=num_old, num_classes=num_classes)
    table = contingency(pred, true)
    acc = by_protocol(table, by_order(pred, true, table, num_old), protocol)
    _assert_weighted_mean(acc, table.class_sizes, num_old, protocol)
    return Match(pred, true, num_old, protocol, table, acc)  # type: ignore[arg-type]


def score(
    *,
    preds: Ids,
    labels: Ids,
    num_old: int,
    num_classes: int | None = None,
    protocol: Protocol = "v2",
) -> SetScore:
    """Score one evaluation set: accuracies, NMI, ARI and the kinds of error."""
    return score_match(
        match(
            preds=preds, labels=labels, num_old=num_old, num_classes=num_classes, protocol=protocol
        )
    )


def score_match(found: Match) -> SetScore:
    """Score predictions that are matched already."""
    table, acc, num_old = found.table, found.accuracies, found.num_old
    n, n_old = len(found.true), int(table.class_sizes[:num_old].sum())
    errors = _confusions(table, acc.assignment, num_old)
    return SetScore(
        all=acc.all,
        old=acc.old,
        new=acc.new,
        n=n,
        n_old=n_old,
        nmi=normalised_mutual_information(table),
        ari=adjusted_rand_index(table),
        **{kind: count / n for kind, count in errors.items()},  # type: ignore[arg-type]
        false_negative_rate=ratio(errors["new_to_old"], n - n_old),
        false_positive_rate=ratio(errors["old_to_new"], n_old),
    )


def more_scores(
    found: Match, scored: SetScore, *, frequency: NDArray[np.int64], num_clusters: int
) -> dict[str, float]:
    """Return the scores of a set that are computed from predictions and labels alone.

    ``frequency`` has the number of training images of each class.
    """
    old = found.true < found.num_old
    chance = floor(found.true, num_old=found.num_old, num_clusters=num_clusters)
    splits = dict(zip(("all", "old", "new"), chance, strict=True))
    return {
        "old_unmatched": ratio(int((found.pred == found.true)[old].sum()), int(old.sum())),
        "clusters": float((found.table.cluster_sizes > 0).sum()),
        **balanced(found.accuracies.recall, found.num_old),
        **by_frequency(found.accuracies.recall, frequency),
        **{f"{split}_floor": value for split, value in splits.items()},
        **{f"{s}_adjusted": adjusted(getattr(scored, s), value) for s, value in splits.items()},
    }


def shared_assignment(found: Match, everywhere: Match) -> dict[str, float]:
    """Return the accuracies of a set under the one assignment over all sets that are trained on."""
    classes = everywhere.accuracies.assignment
    known = found.pred < len(classes)  # a cluster of an unseen set alone has no class
    right = known & (classes[np.where(known, found.pred, 0)] == found.true)
    old = found.true < found.num_old
    return {
        f"{split}_shared": ratio(int(right[side].sum()), int(side.sum()))
        for split, side in (("all", np.ones_like(old)), ("old", old), ("new", ~old))
    }


def from_evidence(found: Match, evidence: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the scores that need more than predictions, as far as there is what they need."""
    more = {}
    new = found.true >= found.num_old
    if "novelty" in evidence:
        more["novelty_auroc"] = auroc(evidence["novelty"], new)
    if "confidence" in evidence:
        more["ece"] = calibration_error(evidence["confidence"], found.right)
    if "neighbours" in evidence and len(new) > 1:
        pure = evidence["neighbours"] / min(NEIGHBOURS, len(new) - 1)
        for split, side in (("", np.ones_like(new)), ("_old", ~new), ("_new", new)):
            more[f"purity{split}"] = ratio(float(pure[side].sum()), int(side.sum()))
    if "silhouette" in evidence:
        more["silhouette"] = float(evidence["silhouette"])
    return more


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
    common = [key for key in rows[0] if all(key in row for row in rows)]
    totals = {key: math.fsum(row[key] for row in rows) for key in common}
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
