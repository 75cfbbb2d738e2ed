"""Scores next to the accuracies of a leaderboard, from records; none of them is ranked.

The names here are the columns of CSV and JSON; docs/pages/scores.md has the formulas and sources.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache

from gcdbench.experiment.record import Record, SplitAccuracies, mentions
from gcdbench.report.collect import SPLITS, percent, reported_sets

# The epoch with the best All among those that were scored, chosen by the labels that methods do not
# see: what a paper reports that selects its checkpoint on the images it is scored on.
HIDDEN = "selected_with_hidden_labels"
GAP = f"gap_{HIDDEN}"
EPOCH = f"epoch_{HIDDEN}"
ORACLE = (HIDDEN, GAP, EPOCH)
BY_SPLIT = ("balanced", "shared", "floor", "adjusted")  # recorded as all_..., old_..., new_...
SHARES = ("many", "medium", "few", "nmi", "ari", "novelty_auroc", "ece")  # of all images
COUNTS = ("silhouette", "clusters")  # of all images, no percentages
CLASSES = ("classes", "assumed_classes", "classes_error")
NAMES = (*ORACLE, *BY_SPLIT, "unmatched", "purity", *SHARES, *COUNTS, *CLASSES)

Place = tuple[str, str, str, str]  # dataset, set, split, method


def further_scores(records: Iterable[Record]) -> dict[Place, dict[str, float]]:
    """Return the means over seeds by dataset, set, split and method; percentages if shares."""
    found: dict[Place, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        best = selected_with_hidden_labels(record)
        for name, scores in reported_sets(record).items():
            for split in SPLITS:
                kept = found[record.dataset, name, split, record.method]
                for key, recorded in _recorded_names(split):
                    if recorded in scores.rates:
                        kept[key].append(percent(scores.rates[recorded]))
                if split == "All":
                    _add(kept, _of_all_images(record, scores.rates))
                if name in best:
                    _add(kept, _selected(best[name], scores, split))
    return {
        place: {key: statistics.fmean(values) for key, values in kept.items()}
        for place, kept in found.items()
    }


def _add(kept: Mapping[str, list[float]], values: Mapping[str, float]) -> None:
    for key, value in values.items():
        kept[key].append(value)


@cache
def _recorded_names(split: str) -> tuple[tuple[str, str], ...]:
    """Return the columns that shares of a split have, and how records call them."""
    low, end = split.lower(), "" if split == "All" else f"_{split.lower()}"
    names = {**{key: f"{low}_{key}" for key in BY_SPLIT}, "purity": f"purity{end}"}
    if split == "Old":
        names["unmatched"] = "old_unmatched"
    return tuple((names | ({key: key for key in SHARES} if split == "All" else {})).items())


def _of_all_images(record: Record, rates: Mapping[str, float | None]) -> dict[str, float]:
    values = {key: rates[key] or 0.0 for key in COUNTS if key in rates}
    true, assumed = record.problem.num_classes, record.problem.assumed_classes
    error = 100 * abs(assumed - true) / true
    return values | {"classes": true, "assumed_classes": assumed, "classes_error": error}


def _selected(
    best: tuple[int, SplitAccuracies], last: SplitAccuracies, split: str
) -> dict[str, float]:
    epoch, accuracies = best
    chosen = percent(accuracies.rate(split))
    gap = chosen - percent(last.rate(split))
    return {HIDDEN: chosen, GAP: gap} | ({EPOCH: float(epoch)} if split == "All" else {})


def selected_with_hidden_labels(record: Record) -> dict[str, tuple[int, SplitAccuracies]]:
    """Return the epoch (from 1) with the best All of each reported set, and its accuracies.

    Only epochs that were scored can be chosen, among them the last one; the later of equal ones.
    Records without a scored epoch but the last have none: nothing could be selected.
    """
    scored = [p for p in record.curve if p.sets] if mentions(record.curve, "sets") else []
    rows = [(point.epoch + 1, _reported(point.sets, record)) for point in scored]
    if not rows:
        return {}
    last: dict[str, SplitAccuracies] = dict(reported_sets(record))
    rows = [row for row in rows if row[0] != record.epochs] + [(record.epochs, last)]
    best: dict[str, tuple[int, SplitAccuracies]] = {}
    for epoch, sets in rows:
        for name, scores in sets.items():
            if name in last and (name not in best or scores.all >= best[name][1].all):
                best[name] = epoch, scores
    return best


def _reported(sets: Mapping[str, SplitAccuracies], record: Record) -> dict[str, SplitAccuracies]:
    """Return the accuracies of an epoch on the sets of a leaderboard.

    A mean is that over all sets of the last epoch, or there is none.
    """
    unseen = {name for name, one in record.sets.items() if one.role == "unseen"}
    groups = {"corrupted": {n for n in record.sets if "/" in n}, "others": unseen}
    means = {
        group: _mean([sets[name] for name in sorted(names)])
        for group, names in groups.items()
        if names and names <= sets.keys()
    }
    return {n: s for n, s in sets.items() if n not in unseen and "/" not in n} | means


def _mean(members: list[SplitAccuracies]) -> SplitAccuracies:
    def of(split: str) -> float | None:
        rates = [one.rate(split) for one in members]
        known = [rate for rate in rates if rate is not None]
        return statistics.fmean(known) if len(known) == len(rates) else None

    return SplitAccuracies(of("all") or 0.0, of("old"), of("new"))


def known(values: Mapping[str, float], name: str) -> float:
    """Return a score by its name; NaN if it was not recorded."""
    return values.get(name, math.nan)
