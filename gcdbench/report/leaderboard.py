"""Compute the numbers of a leaderboard: means over seeds, intervals, ranks, the paper's numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from gcdbench.experiment.record import Record, mentions
from gcdbench.report import paper_numbers, statistics, titles
from gcdbench.report.collect import SPLITS, Collection
from gcdbench.report.further_scores import further_scores
from gcdbench.report.submissions import sentences
from gcdbench.report.tuning.tuned import Tuned, tuned

Key = tuple[Any, ...]  # dataset, set, split, method
SMOKE = "A smoke test, not a result: with --quick a method sees a few images for one epoch."
ROLES = ("source", "shifted", "unseen", "validation")


@dataclass(frozen=True)
class Number:
    """A method's accuracy on an evaluation set of a dataset, in percent; NaN if not recorded."""

    dataset: str
    set: str
    role: str
    split: str
    method: str
    planned: int  # seeds
    seeds: int = 0  # recorded ones
    mean: float = math.nan
    std: float = math.nan  # over seeds
    low: float = math.nan  # 95% interval of the mean, over seeds
    high: float = math.nan
    rank: int | None = None  # among the methods that have this number
    compared: int = 0  # number of these methods
    paper: float = math.nan
    delta: float = math.nan  # mean - paper
    impossible: bool = False  # the paper's own All does not lie between its Old and New
    further: Mapping[str, float] = field(default_factory=dict)  # see ``further_scores``

    @property
    def is_best(self) -> bool:
        """Whether it is the best of two or more."""
        return self.rank == 1 and self.compared > 1

    @property
    def is_second(self) -> bool:
        """Whether it is the second best of three or more."""
        return self.rank == 2 and self.compared > 2


@dataclass(frozen=True)
class Standing:
    """A method over all datasets; its means are NaN if it lacks a dataset that others have."""

    method: str
    means: Mapping[str, float]  # of All, by role
    interval: statistics.Interval  # of the mean that methods are ranked by
    rank: float  # average over datasets
    recorded: int  # cells
    planned: int
    place: int | None = None
    unconfirmed: int = 0  # cells whose scores could not be recomputed from predictions and labels
    submission: str = ""  # verified or self-reported, of a method that others have trained
    is_baseline: bool = False  # no method: it has no cells, place or rank

    @property
    def title(self) -> str:
        """The name that tables show."""
        return self.method if self.is_baseline else titles.method_title(self.method)

    @property
    def drop(self) -> float:
        """The accuracy that the shift costs, in points."""
        return self.means["source"] - self.means["shifted"]


@dataclass(frozen=True)
class Leaderboard:
    """A leaderboard, computed from a collection of records."""

    suite: str
    collection: Collection
    role: str  # methods are ranked by All on the sets of this role
    numbers: list[Number]  # of every dataset, set, split and method, recorded or not
    standings: list[Standing]  # best first; those without all datasets come last
    smoke: bool = False  # of ``--quick``: nothing is ranked, compared or set against the paper
    baselines: tuple[Standing, ...] = ()  # see ``baselines.with_baselines``
    baseline_numbers: tuple[Number, ...] = ()

    @property
    def table_rows(self) -> list[Standing]:
        """Methods and baselines, best first; those without all datasets come last."""
        rows = [*self.standings, *self.baselines]
        if not self.baselines:
            return rows
        means = [(one, one.means[self.role]) for one in rows]
        return [one for one, _ in sorted(means, key=lambda pair: _descending(pair[1]))]

    @property
    def methods(self) -> list[str]:
        """Methods, best first."""
        return [standing.method for standing in self.standings]

    @property
    def rows(self) -> list[str]:
        """Methods in the order of the paper's tables."""
        return titles.in_order(self.methods)

    @property
    def incomplete(self) -> list[str]:
        """Methods that lack a dataset which others have: their means are not comparable."""
        return [one.method for one in self.standings if math.isnan(one.means[self.role])]

    @cached_property
    def lookup(self) -> dict[tuple[str, str, str, str], Number]:
        """Numbers by dataset, set, split and method."""
        numbers = (*self.numbers, *self.baseline_numbers)
        return {(n.dataset, n.set, n.split, n.method): n for n in numbers}

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Scores by which methods are compared: a row per dataset and seed, a column per method."""
        found = statistics.scores(self.collection.table, role=self.role)
        return found[[method for method in self.methods if method in found.columns]]

    @cached_property
    def comparisons(self) -> list[statistics.Comparison]:
        """All pairs of methods, the better one first."""
        return [] if self.smoke else statistics.compare(self.scores)

    @cached_property
    def ranking(self) -> statistics.Ranking | None:
        """Average ranks of the methods that have all datasets."""
        return None if self.smoke else statistics.rank(_complete(_by_dataset(self.scores)))

    @cached_property
    def tuned(self) -> list[Tuned]:
        """Methods with settings that searches chose; never ranked together with the others."""
        return tuned(self)

    @cached_property
    def caveats(self) -> list[str]:
        """What may not be concluded, in sentences."""
        recorded = self.collection.records
        if self.smoke:
            return [SMOKE, *_unreadable(recorded), *_by_others(self.collection)]
        return [
            *statistics.caveats(self.scores),
            *_without_new_classes(recorded),
            *_unreadable(recorded),
            *_variants(recorded),
            *_by_others(self.collection),
        ]

    def sets_of(self, dataset: str) -> list[tuple[str, str]]:
        """Evaluation sets of a dataset with their roles, in the order of ``ROLES``."""
        pairs = dict.fromkeys((n.set, n.role) for n in self.numbers if n.dataset == dataset)
        return sorted(pairs, key=lambda pair: ROLES.index(pair[1]))

    def published(self) -> list[tuple[Number, Number, Number]]:
        """Return the measured triples (All, Old, New) for which the paper prints a number."""
        triples = []
        for number in self.numbers:
            if number.split == SPLITS[0] and not math.isnan(number.delta):
                place = number.dataset, number.set
                old, new = (self.lookup[(*place, s, number.method)] for s in SPLITS[1:])
                triples.append((number, old, new))
        return triples


def make_leaderboard(collection: Collection, suite: str, *, smoke: bool = False) -> Leaderboard:
    """Return the leaderboard of a collection of records; ``smoke``: of a run with ``--quick``."""
    role = "shifted" if "shifted" in set(collection.table["role"]) else "source"
    numbers, standings = _numbers(collection), _standings(collection, role)
    if smoke:
        nan = math.nan
        numbers = [replace(n, rank=None, paper=nan, delta=nan, impossible=False) for n in numbers]
        by_method = {one.method: replace(one, place=None, rank=math.nan) for one in standings}
        standings = [by_method[method] for method in titles.in_order(by_method)]
    return Leaderboard(suite, collection, role, numbers, standings, smoke)


def _by_others(collection: Collection) -> list[str]:
    """Say which scores could not be recomputed, and which rows were trained by others."""
    methods = {place.method for place in collection.planned}
    named = {method: titles.method_title(method) for method in methods}
    return [*_unconfirmed(collection), *sentences(collection.submissions, named)]


def _unconfirmed(collection: Collection) -> list[str]:
    """Say which scores could not be recomputed, if any."""
    datasets = sorted({place.dataset for place in collection.unconfirmed})
    if not datasets:
        return []
    return [
        f"‡ The scores of {len(collection.unconfirmed)} of {len(collection.records)} cells (on "
        f"{', '.join(datasets)}) could not be recomputed from predictions and labels, since the "
        "images or labels that they were made with are not here. They do not contradict themselves."
    ]


def _unreadable(recorded: Iterable[Record]) -> list[str]:
    """Say in which cells images could not be read."""
    cells = [
        f"{record.problem.unreadable.count} in {record.label}"
        for record in recorded
        if record.problem.unreadable is not None
    ]
    if not cells:
        return []
    return [f"Images could not be read and were scored as grey squares: {'; '.join(cells)}."]


FEW = 0.005  # share of unlabelled images predicted new, as good as none


def _without_new_classes(recorded: Iterable[Record]) -> list[str]:
    """Say which methods predict no new class, by what they report of their last epoch."""
    shares: dict[str, list[float]] = {}
    for record in recorded:
        if not mentions(record.curve, "predicted_new"):
            continue
        share = record.curve[-1].diagnostics.get("predicted_new")
        if share is not None:
            shares.setdefault(record.method, []).append(share)
    none = [titles.method_title(name) for name, found in shares.items() if max(found) < FEW]
    return [
        f"{name} predicts no new class for the unlabelled images: its accuracy on new classes is "
        "what the assignment of old clusters to them gives."
        for name in none
    ]


def _variants(recorded: Iterable[Record]) -> list[str]:
    """Return a sentence on datasets with other pixels or without some images, if any."""
    said = {}
    for record in recorded:
        notes = record.problem.notes
        made = notes.get("corrupted", "")
        other = [made] if made.startswith("made ") and "JPEG quality 85" not in made else []
        other += [made] if made.startswith("stored") else []
        other += [f"without {notes['excluded']}"] if "excluded" in notes else []
        if other:
            said[record.dataset] = f"{record.dataset} ({', '.join(other)})"
    if not said:
        return []
    return [f"Variants of the benchmark, not comparable with others: {'; '.join(said.values())}."]


def _numbers(collection: Collection) -> list[Number]:
    keys = ["dataset", "set", "split", "method"]
    grouped = collection.table.groupby(keys, sort=False)["accuracy"]
    values = {key: group.dropna().to_numpy() for key, group in grouped}
    bounds = _intervals(values)
    further = further_scores(collection.records)
    numbers = []
    for number in _planned_numbers(collection):
        key = (number.dataset, number.set, number.split, number.method)
        number = _with_paper(number)
        if len(found := values.get(key, np.empty(0))):
            number = _measured(number, found, bounds.get(key, (math.nan, math.nan)))
            number = replace(number, further=further.get(key, {}))
        numbers.append(number)
    return _with_ranks(numbers)


def _planned_numbers(collection: Collection) -> Iterator[Number]:
    """Yield the numbers of all planned cells, without values: by dataset, set, split, method."""
    sets = collection.table[["dataset", "set", "role"]].drop_duplicates().to_numpy().tolist()
    seeds = Counter((place.dataset, place.method) for place in collection.planned)
    methods = titles.in_order(place.method for place in collection.planned)
    for dataset in collection.datasets:
        for owner, name, role in sets:
            if owner == dataset:
                for split in SPLITS:
                    for method in methods:
                        planned = seeds[dataset, method]
                        yield Number(dataset, name, role, split, method, planned)


def _intervals(values: Mapping[Key, np.ndarray]) -> dict[Key, tuple[float, float]]:
    """Return the interval of each mean; means over equally many seeds are resampled together."""
    by_count: dict[int, list[Key]] = {}
    for key, found in values.items():
        by_count.setdefault(len(found), []).append(key)
    bounds: dict[Key, tuple[float, float]] = {}
    for count, keys in by_count.items():
        if count > 1:
            rows = statistics.intervals(np.stack([values[key] for key in keys]), (count,))
            bounds |= {key: (low, high) for key, (low, high) in zip(keys, rows, strict=True)}
    return bounds


def _measured(number: Number, values: np.ndarray, bounds: tuple[float, float]) -> Number:
    mean = float(values.mean())
    return replace(
        number,
        seeds=len(values),
        mean=mean,
        std=float(values.std(ddof=1)) if len(values) > 1 else math.nan,
        low=float(bounds[0]),
        high=float(bounds[1]),
        delta=mean - number.paper,
    )


def _with_paper(number: Number) -> Number:
    found = paper_numbers.find(number.dataset, number.method, number.set, number.role, number.split)
    if found is None:
        return number
    return replace(number, paper=found.accuracy, impossible=found.impossible)


def _with_ranks(numbers: list[Number]) -> list[Number]:
    means: dict[tuple[str, str, str], list[float]] = {}
    for number in numbers:
        if number.seeds:
            key = number.dataset, number.set, number.split
            means.setdefault(key, []).append(round(number.mean, 9))
    ranked = []
    for number in numbers:
        others = means.get((number.dataset, number.set, number.split), [])
        better = sum(mean > round(number.mean, 9) for mean in others)
        rank = 1 + better if number.seeds else None
        ranked.append(replace(number, rank=rank, compared=len(others)))
    return ranked


def _standings(collection: Collection, role: str) -> list[Standing]:
    planned = Counter(place.method for place in collection.planned)
    missing = Counter(place.method for place in collection.missing)
    unconfirmed = Counter(place.method for place in collection.unconfirmed)
    scores = statistics.scores(collection.table, role=role)
    means = means_by_role(collection.table)
    ranks = means[role].round(9).rank(axis=1, ascending=False).mean()
    standings = [
        Standing(
            method=method,
            means={
                name: float(m[method].mean()) if method in m else math.nan
                for name, m in means.items()
            },
            interval=_interval(scores, method) if method in means[role] else _UNKNOWN,
            rank=float(ranks.get(method, math.nan)),
            recorded=planned[method] - missing[method],
            planned=planned[method],
            unconfirmed=unconfirmed[method],
            submission=one.status if (one := collection.submissions.get(method)) else "",
        )
        for method in titles.in_order(planned)
    ]
    scored = [s for s in standings if not math.isnan(s.means[role])]
    scored.sort(key=lambda standing: -standing.means[role])
    placed = [
        replace(one, place=1 + sum(other.means[role] > one.means[role] for other in scored))
        for one in scored
    ]
    return placed + [standing for standing in standings if standing not in scored]


_UNKNOWN = statistics.Interval(math.nan, math.nan)


def means_by_role(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return All by role: a row per dataset, a column per method that has all datasets."""
    return {role: _complete(_by_dataset(statistics.scores(table, role=role))) for role in ROLES}


def _descending(mean: float) -> float:
    """Return a key that sorts the highest mean first and what is not known last."""
    return math.inf if math.isnan(mean) else -mean


def _by_dataset(scores: pd.DataFrame) -> pd.DataFrame:
    return scores.groupby(level="dataset", sort=False).mean()


def _complete(means: pd.DataFrame) -> pd.DataFrame:
    """Keep the methods (columns) that have all datasets."""
    return means.loc[:, means.notna().all()]


def _interval(scores: pd.DataFrame, method: str) -> statistics.Interval:
    groups = scores[method].groupby(level="dataset", sort=False)
    return statistics.bootstrap([group.tolist() for _, group in groups])
