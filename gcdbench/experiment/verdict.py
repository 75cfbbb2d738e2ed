"""What can be said of a record's scores: recomputed, only consistent in themselves, or wrong.

Nothing here imports torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np

from gcdbench.experiment.record import SPLITS, Record, SetScores

CLOSE = 1e-6  # of shares, which other machines may round otherwise


class Verdict(NamedTuple):
    """What a record's scores are worth.

    ``recomputed``: its predictions and the labels give them; ``consistent``: the labels are not
    here, and nothing in the record contradicts them; ``wrong``: they cannot be right.
    """

    kind: Literal["recomputed", "consistent", "wrong"]
    reason: str = ""  # why it is not recomputed


def contradiction(record: Record, predictions: Mapping[str, np.ndarray]) -> str:
    """Say what in a record's scores contradicts itself or the sizes of its predictions."""
    sizes = {name: len(one) for name, one in predictions.items()}
    if sizes != {name: one.n for name, one in record.sets.items()}:
        return "has predictions that do not fit its evaluation sets"
    for name, one in (*record.sets.items(), *record.summary.items()):
        is_mean = name in record.summary and name != "pooled"
        if reason := _impossible(one) or ("" if is_mean else _no_counts(one)):
            return f"has impossible scores of {name} ({reason})"
    for name, members in _groups(record).items():
        if name in record.summary and not _is_mean(record.summary[name], members):
            return f"has a mean {name!r} that is not that of its sets"
    return ""


def _impossible(one: SetScores) -> str:
    for name in SPLITS:
        share = one.rate(name)
        if share is not None and not 0 <= share <= 1 + CLOSE:
            return f"{name} is {share}"
    return "" if 0 <= one.n_old <= one.n and one.n else f"{one.n_old} of {one.n} images are old"


def _no_counts(one: SetScores) -> str:
    """Say that shares are not those of a number of images, or do not add up."""
    sizes = {"all": one.n, "old": one.n_old, "new": one.n - one.n_old}
    right = {}
    for name, size in sizes.items():
        share = one.rate(name)
        if (share is None) != (size == 0):
            return f"{name} is {share} of {size} images"
        right[name] = 0 if share is None else round(share * size)
        if share is not None and not math.isclose(share * size, right[name], abs_tol=CLOSE * size):
            return f"{name} is {share} of {size} images"
    return "" if right["all"] == right["old"] + right["new"] else "all is not old and new"


def _groups(record: Record) -> dict[str, list[SetScores]]:
    """Return the sets that each mean of a record is over."""
    groups: dict[str, list[SetScores]] = {}
    for name, one in record.sets.items():
        corruption, slash, _ = name.partition("/")
        if slash:
            groups.setdefault(corruption, []).append(one)
            groups.setdefault("corrupted", []).append(one)
        elif one.role == "unseen":
            groups.setdefault("others", []).append(one)
    return groups


def _is_mean(mean: SetScores, members: Iterable[SetScores]) -> bool:
    rows = [[one.rate(name) for name in SPLITS] for one in members]
    for name, values in zip(SPLITS, zip(*rows, strict=True), strict=True):
        known = [value for value in values if value is not None]
        found, expected = mean.rate(name), math.fsum(known) / len(known) if known else None
        if len(known) < len(values):
            expected = None  # a share that is not defined makes the mean so
        if (found is None) != (expected is None):
            return False
        if found is not None and expected is not None and abs(found - expected) > CLOSE:
            return False
    return True
