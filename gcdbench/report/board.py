"""The numbers of a leaderboard: means over seeds, intervals, ranks, and the paper beside them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from gcdbench.report import names, published, statistics
from gcdbench.report.collect import SPLITS, Collection

KEYS = ["dataset", "set", "role", "split"]
ROLES = ("source", "shifted", "unseen")


@dataclass(frozen=True)
class Board:
    """All that a leaderboard shows, computed from a collection of records."""

    suite: str
    collection: Collection
    numbers: pd.DataFrame  # one row per dataset, set, split and method, recorded or not
    overall: pd.DataFrame  # one row per method, best first; see ``_overall``
    role: str  # what methods are ranked by: All on the sets of this role

    @property
    def methods(self) -> list[str]:
        """Methods, best first; those without all datasets come last."""
        return list(self.overall.index)

    @cached_property
    def lookup(self) -> dict[tuple[str, str, str, str], Any]:
        """Rows of ``numbers`` by dataset, set, split and method."""
        rows = self.numbers.itertuples(index=False)
        return {(row.dataset, row.set, row.split, row.method): row for row in rows}

    @property
    def rows(self) -> list[str]:
        """Methods in the order of the paper's tables."""
        return names.in_order(self.methods)

    @cached_property
    def scores(self) -> pd.DataFrame:
        """What methods are compared by: one row per dataset and seed, one column per method."""
        found = statistics.scores(self.collection.table, role=self.role)
        return found[[method for method in self.methods if method in found.columns]]

    @cached_property
    def comparisons(self) -> list[statistics.Comparison]:
        """All pairs of methods, the better one first."""
        return statistics.compare(self.scores)

    @cached_property
    def ranking(self) -> statistics.Ranking | None:
        """Average ranks of the methods that have all datasets."""
        return statistics.rank(_complete(self.scores.groupby(level="dataset", sort=False).mean()))

    @cached_property
    def caveats(self) -> list[str]:
        """What may not be concluded, in sentences."""
        return statistics.caveats(self.scores)

    def sets_of(self, dataset: str) -> list[tuple[str, str]]:
        """Evaluation sets of a dataset with their roles: source, shifted, unseen."""
        rows = self.numbers[self.numbers["dataset"] == dataset]
        pairs = dict.fromkeys(zip(rows["set"], rows["role"], strict=True))
        return sorted(pairs, key=lambda pair: ROLES.index(pair[1]))

    def comparison(self, first: str, second: str) -> statistics.Comparison | None:
        """Return the comparison of two methods in the order in which it was made."""
        wanted = {first, second}
        return next((one for one in self.comparisons if {one.first, one.second} == wanted), None)


def is_best(row: Any) -> bool:
    """Tell whether a row of ``numbers`` is the best of two or more."""
    return row.rank == 1 and row.compared > 1


def is_second(row: Any) -> bool:
    """Tell whether a row of ``numbers`` is the second best of three or more."""
    return row.rank == 2 and row.compared > 2


def make(collection: Collection, suite: str) -> Board:
    """Compute a leaderboard."""
    roles = set(collection.table["role"])
    role = "shifted" if "shifted" in roles else "source"
    return Board(suite, collection, _numbers(collection), _overall(collection, role), role)


def _numbers(collection: Collection) -> pd.DataFrame:
    """Return mean, deviation, seeds, interval, rank and the paper's number of every number.

    What is planned and not recorded has a row too, with NaN.
    """
    table = collection.table
    summary = _summary(table)
    every = _all_rows(collection)
    out = every.merge(summary, on=[*KEYS, "method"], how="left", sort=False)
    out["seeds"] = out["seeds"].fillna(0).astype(int)
    together = out.round({"mean": 9}).groupby(KEYS, sort=False)["mean"]
    out["rank"] = together.rank(ascending=False, method="min").fillna(0).astype(int)
    out["compared"] = together.transform("count").astype(int)  # methods that have the number
    found = [
        published.find(row.dataset, row.method, row.set, row.role, row.split)
        for row in out.itertuples()
    ]
    out["paper"] = [np.nan if one is None else one.accuracy for one in found]
    out["delta"] = out["mean"] - out["paper"]
    out["impossible"] = [one is not None and one.impossible for one in found]
    return out


def _summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return mean, deviation, number of seeds and interval per dataset, set, split and method."""
    rows = []
    for key, group in table.groupby([*KEYS, "method"], sort=False)["accuracy"]:
        values = group.dropna().to_numpy()
        spread = values.std(ddof=1) if len(values) > 1 else np.nan
        mean = values.mean() if len(values) else np.nan
        rows.append((*key, mean, spread, len(values), values))
    columns = [*KEYS, "method", "mean", "std", "seeds", "values"]
    out = pd.DataFrame(rows, columns=columns)
    out[["low", "high"]] = np.nan
    for seeds, group in out[out["seeds"] > 1].groupby("seeds"):
        bounds = statistics.intervals(np.stack(group["values"].to_list()), (int(seeds),))
        out.loc[group.index, ["low", "high"]] = bounds
    return out.drop(columns="values")


def _all_rows(collection: Collection) -> pd.DataFrame:
    """Return dataset, set, role, split, method and planned seeds of all numbers to be."""
    sets = collection.table[["dataset", "set", "role"]].drop_duplicates()
    planned = pd.DataFrame(collection.planned, columns=["dataset", "method", "seed"])
    counts = planned.groupby(["dataset", "method"], sort=False).size().rename("planned")
    methods = names.in_order(planned["method"])
    rows = [
        (dataset, row.set, row.role, split, method, int(counts.get((dataset, method), 0)))
        for dataset in collection.datasets
        for row in sets[sets["dataset"] == dataset].itertuples()
        for split in SPLITS
        for method in methods
    ]
    return pd.DataFrame(rows, columns=[*KEYS, "method", "planned"])


def _overall(collection: Collection, role: str) -> pd.DataFrame:
    """Return one row per method: means over datasets, interval, average rank and what is missing.

    Columns: one per role with the mean of All over datasets; low, high (interval of the ranked
    role); rank (average over datasets), place; recorded, planned (cells). The means and ranks of a
    method that lacks a dataset which others have are NaN: they would not be comparable.
    """
    methods = names.in_order(place.method for place in collection.planned)
    out = pd.DataFrame(index=pd.Index(methods, name="method"))
    for name in ROLES:
        means = statistics.scores(collection.table, role=name).groupby(level="dataset").mean()
        complete = _complete(means.reindex(columns=methods))
        out[name] = complete.mean() if len(complete) else np.nan
    scores = statistics.scores(collection.table, role=role)
    ranked = out.index[out[role].notna()]
    bounds = {method: _interval(scores[method]) for method in ranked}
    out["low"] = pd.Series({m: b.low for m, b in bounds.items()}, dtype=float)
    out["high"] = pd.Series({m: b.high for m, b in bounds.items()}, dtype=float)
    means = scores[list(ranked)].groupby(level="dataset").mean()
    out["rank"] = means.round(9).rank(axis=1, ascending=False).mean().astype(float)
    out["place"] = out[role].rank(ascending=False, method="min").astype("Int64")
    planned = pd.Series([place.method for place in collection.planned]).value_counts()
    missing = pd.Series([place.method for place in collection.missing], dtype=object).value_counts()
    out["planned"] = planned.reindex(out.index, fill_value=0)
    out["recorded"] = out["planned"] - missing.reindex(out.index, fill_value=0)
    return out.sort_values(role, ascending=False, kind="stable", na_position="last")


def _complete(means: pd.DataFrame) -> pd.DataFrame:
    """Keep the methods (columns) that have all datasets."""
    return means.loc[:, means.notna().all()]


def _interval(scores: pd.Series) -> statistics.Interval:
    rows = [group.to_numpy() for _, group in scores.groupby(level="dataset", sort=False)]
    return statistics.bootstrap(rows)
