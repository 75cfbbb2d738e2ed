"""Score predicted clusters against true classes: accuracy by assignment, NMI, ARI, error kinds.

Everything here is a pure function of predictions and labels, and everything is read off one
contingency table: ``w[p, t]`` samples of class ``t`` were put into cluster ``p``. Old classes come
first (``label < num_old``) unless the caller hands over explicit flags.

Protocols (Vaze et al., "Generalized Category Discovery", CVPR 2022, and its successors):

- ``v2``, the standard: one assignment of clusters to classes over all samples, then Old and New.
- ``v1``: Old and New are assigned separately, so one cluster may serve both; never below v2.
- ``v2b``: the assignment of v2, then the unweighted mean of the recalls of the classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from gcdbench.contingency import (
    Contingency,
    adjusted_rand_index,
    contingency,
    normalised_mutual_information,
)

Protocol = Literal["v1", "v2", "v2b"]
Ids = torch.Tensor | np.ndarray | list[int]

LARGEST_ID = 2**24  # per-id arrays are as long as the largest id


@dataclass(frozen=True)
class Accuracies:
    """Clustering accuracy of all samples, of old classes and of new classes, as fractions.

    An empty side is NaN. ``assignment[p]`` is the class given to cluster ``p`` (an id that no
    class has, or -1, if there are more clusters than classes) and ``recall[t]`` the share of class
    ``t`` that its cluster holds (NaN: no sample); under ``v1``, which has two assignments, both
    describe that of v2.
    """

    all: float
    old: float
    new: float
    assignment: NDArray[np.int64] = field(repr=False, compare=False)
    recall: NDArray[np.float64] = field(repr=False, compare=False)

    def __iter__(self) -> Iterator[float]:
        """Unpack as ``all, old, new``."""
        return iter((self.all, self.old, self.new))


@dataclass(frozen=True)
class SetScore:
    """All that is reported about one evaluation set.

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


def accuracies(
    *,
    preds: Ids,
    labels: Ids,
    num_old: int,
    num_classes: int | None = None,
    is_old: torch.Tensor | np.ndarray | None = None,
    protocol: Protocol = "v2",
) -> Accuracies:
    """Match clusters to classes and return the accuracy of all, old and new samples.

    Args:
        preds: cluster id of each sample; more or fewer clusters than classes, with gaps or not.
        labels: class of each sample.
        num_old: classes ``0 .. num_old - 1`` are old.
        num_classes: how many classes there are; only checked against the labels.
        is_old: one flag per sample, for class ids in which the old ones do not come first.
        protocol: ``"v2"``, ``"v1"`` or ``"v2b"``, see the module.

    >>> accuracies(preds=[5, 5, 5, 2], labels=[0, 0, 1, 2], num_old=1)
    Accuracies(all=0.75, old=1.0, new=0.5)
    """
    pred, true = _checked(preds, labels, num_old=num_old, num_classes=num_classes)
    table = contingency(pred, true)
    if is_old is None:
        sides = _by_order(pred, true, table, num_old)
    else:
        sides = _by_flags(pred, true, table, _checked_flags(is_old, true))
    return _accuracies(table, sides, protocol)


def score(
    *,
    preds: Ids,
    labels: Ids,
    num_old: int,
    num_classes: int | None = None,
    protocol: Protocol = "v2",
) -> SetScore:
    """Score one evaluation set: accuracies, NMI, ARI and the kinds of error."""
    pred, true = _checked(preds, labels, num_old=num_old, num_classes=num_classes)
    table = contingency(pred, true)
    acc = _accuracies(table, _by_order(pred, true, table, num_old), protocol)
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
        false_negative_rate=_ratio(errors["new_to_old"], n - n_old),
        false_positive_rate=_ratio(errors["old_to_new"], n_old),
    )


def aggregate(
    scores: Mapping[str, SetScore], *, unseen: Collection[str] = ()
) -> dict[str, dict[str, float]]:
    """Average evaluation sets as the papers do: every set weighs the same.

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
    """Average every rate over sets and add up their sizes; NaN in one set is NaN in the mean."""
    rows = [one.as_dict() for one in scores]
    totals = {key: math.fsum(row[key] for row in rows) for key in rows[0]}
    return {k: int(v) if k in ("n", "n_old") else v / len(rows) for k, v in totals.items()}


@dataclass(frozen=True)
class _Sides:
    """Which classes are counted as old and as new, and how to get a table of either side."""

    old: NDArray[np.bool_]
    new: NDArray[np.bool_]
    tables: Callable[[], tuple[Contingency, Contingency]]


def _by_order(pred: torch.Tensor, true: torch.Tensor, table: Contingency, num_old: int) -> _Sides:
    occurs = table.class_sizes > 0
    old = np.arange(len(occurs)) < num_old
    return _Sides(old & occurs, ~old & occurs, lambda: _split(pred, true, true < num_old))


def _by_flags(
    pred: torch.Tensor, true: torch.Tensor, table: Contingency, flags: torch.Tensor
) -> _Sides:
    """Follow the flags; officially a class is counted whole on every side on which it occurs."""
    classes = len(table.class_sizes)
    old, new = (
        torch.bincount(true[side], minlength=classes).cpu().numpy() > 0 for side in (flags, ~flags)
    )
    return _Sides(old, new, lambda: _split(pred, true, flags))


def _split(
    pred: torch.Tensor, true: torch.Tensor, old: torch.Tensor
) -> tuple[Contingency, Contingency]:
    return contingency(pred[old], true[old]), contingency(pred[~old], true[~old])


def _accuracies(table: Contingency, sides: _Sides, protocol: Protocol) -> Accuracies:
    assignment = table.match()
    sizes, hits = table.class_sizes, table.hits(assignment)
    recall = np.divide(hits, sizes, out=np.full(len(sizes), np.nan), where=sizes > 0)
    groups = (sizes > 0, sides.old, sides.new)
    if protocol == "v2":
        values = [_ratio(hits[group].sum(), sizes[group].sum()) for group in groups]
    elif protocol == "v2b":
        values = [_ratio(recall[group].sum(), group.sum()) for group in groups]
    elif protocol == "v1":
        parts = sides.tables()
        correct = [int(part.hits(part.match()).sum()) for part in parts]
        total = [int(part.class_sizes.sum()) for part in parts]
        values = [_ratio(sum(correct), sum(total)), *map(_ratio, correct, total)]
    else:
        raise ValueError(f"protocol {protocol!r} is unknown; use one of {get_args(Protocol)}")
    return Accuracies(values[0], values[1], values[2], assignment=assignment, recall=recall)


def _confusions(table: Contingency, assignment: NDArray[np.int64], num_old: int) -> dict[str, int]:
    """Count the four kinds of error.

    A match without a common sample is the solver's whim, not a prediction: such a cluster is new.
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


def _checked(
    preds: Ids, labels: Ids, *, num_old: int, num_classes: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both as int64 tensors on one device, or say what is wrong with them."""
    pred, true = torch.as_tensor(preds), torch.as_tensor(labels)
    if len(pred) != len(true):
        raise ValueError(f"{len(pred)} preds do not go with {len(true)} labels; give one of each")
    if not len(pred):
        raise ValueError("preds and labels are empty; an evaluation set needs a sample")
    if not 0 <= num_old <= (LARGEST_ID if num_classes is None else num_classes):
        raise ValueError(f"num_old is {num_old}; it must lie between 0 and num_classes")
    limits = (LARGEST_ID, LARGEST_ID if num_classes is None else num_classes)
    for name, ids, limit in zip(("preds", "labels"), (pred, true), limits, strict=True):
        if ids.ndim != 1 or ids.is_floating_point() or ids.is_complex():
            raise ValueError(f"{name} must be one row of integer ids, not {ids.dtype} {ids.shape}")
        low, high = (int(end) for end in ids.aminmax())
        if low < 0 or high >= limit:
            raise ValueError(f"{name} run from {low} to {high}; ids must lie in 0..{limit - 1}")
    return pred.to(true.device, torch.long), true.long()


def _checked_flags(is_old: torch.Tensor | np.ndarray, labels: torch.Tensor) -> torch.Tensor:
    flags = torch.as_tensor(is_old, device=labels.device).bool()
    if flags.shape != labels.shape:
        raise ValueError(f"{len(flags)} is_old flags do not go with {len(labels)} labels")
    return flags


def _ratio(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else math.nan
