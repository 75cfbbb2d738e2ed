"""Clustering accuracy: match predicted clusters to true classes, then count.

Everything here is a pure function of predictions and labels, computed from one contingency table:
``w[p, t]`` samples of class ``t`` were put into cluster ``p``. Old classes come first
(``label < num_old``) unless the caller passes explicit flags.

Protocols (Vaze et al., "Generalized Category Discovery", CVPR 2022, and its successors):

- ``v2``, the standard: one assignment of clusters to classes over all samples, then Old and New.
- ``v1``: Old and New are assigned separately, so one cluster may serve both; never below v2.
- ``v2b``: the assignment of v2, then the unweighted mean of the recalls of the classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union, get_args

import numpy as np
from numpy.typing import NDArray

from gcdbench.ops.contingency import Contingency, Row, contingency, occurrences

if TYPE_CHECKING:
    import torch

Protocol = Literal["v1", "v2", "v2b"]
Ids: TypeAlias = Union["torch.Tensor", np.ndarray, list[int]]  # tensors are counted on their device

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


def accuracies(
    *,
    preds: Ids,
    labels: Ids,
    num_old: int,
    num_classes: int | None = None,
    is_old: Ids | None = None,
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
    pred, true = checked_ids(preds, labels, num_old=num_old, num_classes=num_classes)
    table = contingency(pred, true)
    if is_old is None:
        sides = by_order(pred, true, table, num_old)
    else:
        sides = _by_flags(pred, true, table, _checked_flags(is_old, true))
    return by_protocol(table, sides, protocol)


@dataclass(frozen=True)
class _Sides:
    """Which classes are counted as old and as new, and how to get a table of either side."""

    old: NDArray[np.bool_]
    new: NDArray[np.bool_]
    tables: Callable[[], tuple[Contingency, Contingency]]


def by_order(pred: Row, true: Row, table: Contingency, num_old: int) -> _Sides:
    """Return the sides of a table in which the old classes come first."""
    occurs = table.class_sizes > 0
    old = np.arange(len(occurs)) < num_old
    return _Sides(old & occurs, ~old & occurs, lambda: _split(pred, true, true < num_old))


def _by_flags(pred: Row, true: Row, table: Contingency, flags: Row) -> _Sides:
    """Return the sides by flags; as in the official code, a class may be on both sides."""
    classes = len(table.class_sizes)
    old, new = (occurrences(true[side], classes) > 0 for side in (flags, ~flags))
    return _Sides(old, new, lambda: _split(pred, true, flags))


def _split(pred: Row, true: Row, old: Any) -> tuple[Contingency, Contingency]:
    return contingency(pred[old], true[old]), contingency(pred[~old], true[~old])


def by_protocol(table: Contingency, sides: _Sides, protocol: Protocol) -> Accuracies:
    """Return the accuracies of a table under a protocol."""
    assignment = table.match()
    sizes, hits = table.class_sizes, table.hits(assignment)
    recall = np.divide(hits, sizes, out=np.full(len(sizes), np.nan), where=sizes > 0)
    groups = (sizes > 0, sides.old, sides.new)
    if protocol == "v2":
        values = [ratio(hits[group].sum(), sizes[group].sum()) for group in groups]
    elif protocol == "v2b":
        values = [ratio(recall[group].sum(), group.sum()) for group in groups]
    elif protocol == "v1":
        parts = sides.tables()
        correct = [int(part.hits(part.match()).sum()) for part in parts]
        total = [int(part.class_sizes.sum()) for part in parts]
        values = [ratio(sum(correct), sum(total)), *map(ratio, correct, total)]
    else:
        raise ValueError(f"protocol {protocol!r} is unknown; use one of {get_args(Protocol)}")
    return Accuracies(values[0], values[1], values[2], assignment=assignment, recall=recall)


def checked_ids(
    preds: Ids, labels: Ids, *, num_old: int, num_classes: int | None
) -> tuple[Row, Row]:
    """Return both as int64 arrays, or tensors on one device; raise a ValueError if invalid."""
    pred, true = _row(preds), _row(labels)
    if len(pred) != len(true):
        raise ValueError(f"{len(pred)} preds do not go with {len(true)} labels; give one of each")
    if not len(pred):
        raise ValueError("preds and labels are empty; an evaluation set needs a sample")
    if not 0 <= num_old <= (LARGEST_ID if num_classes is None else num_classes):
        raise ValueError(f"num_old is {num_old}; it must lie between 0 and num_classes")
    limits = (LARGEST_ID, LARGEST_ID if num_classes is None else num_classes)
    for name, ids, limit in zip(("preds", "labels"), (pred, true), limits, strict=True):
        if ids.ndim != 1 or not _are_whole(ids):
            shape = tuple(ids.shape)
            raise ValueError(f"{name} must be one row of integer ids, not {ids.dtype} {shape}")
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= limit:
            raise ValueError(f"{name} run from {low} to {high}; ids must lie in 0..{limit - 1}")
    return _like(pred, true), true.astype(np.int64) if _is_array(true) else true.long()


def _checked_flags(is_old: Ids, labels: Row) -> Row:
    flags = _row(is_old)
    if flags.shape != labels.shape:
        raise ValueError(f"{len(flags)} is_old flags do not go with {len(labels)} labels")
    return _like(flags, labels) != 0


def _row(ids: Ids) -> Any:
    """Return tensors as they are, anything else as an array."""
    return ids if hasattr(ids, "detach") else np.asarray(ids)


def _is_array(ids: Any) -> bool:
    return isinstance(ids, np.ndarray)


def _are_whole(ids: Any) -> bool:
    if _is_array(ids):
        return ids.dtype.kind in "iub"
    return not (ids.is_floating_point() or ids.is_complex())


def _like(ids: Any, other: Any) -> Any:
    """Return ids as int64 of the other's kind, on its device."""
    if _is_array(other):
        return (ids if _is_array(ids) else ids.cpu().numpy()).astype(np.int64)
    if _is_array(ids):
        return other.new_tensor(ids).long()
    return ids.to(other.device).long()


def ratio(part: float, whole: float) -> float:
    """Return the quotient, or NaN if the denominator is zero."""
    return float(part) / float(whole) if whole else math.nan
