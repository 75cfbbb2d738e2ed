"""Baselines in a leaderboard: rows of a CSV file that stand among the methods and have no rank.

``benchmarks/embedded/baselines.py`` writes such a file. A baseline has no cells and no records: it
is a number to read the others by, such as k-means without any training.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd

from gcdbench.errors import UserError
from gcdbench.report.collect import SPLITS
from gcdbench.report.leaderboard import ROLES, Leaderboard, Number, Standing, means_by_role
from gcdbench.report.statistics import Interval

COLUMNS = ("suite", "dataset", "baseline", "seed", "set", "role", "all", "old", "new")
UNKNOWN = Interval(math.nan, math.nan)


def with_baselines(leaderboard: Leaderboard, path: Path, *, required: bool = True) -> Leaderboard:
    """Return a leaderboard with the baselines of its suite that a CSV file holds.

    If it holds none, this is an error, or the leaderboard stays as it is if none is required.
    """
    table = read_baselines(path, leaderboard.suite)
    table = table[table["dataset"].isin(leaderboard.collection.datasets)]
    if table.empty and not required:
        return leaderboard
    if table.empty:
        raise UserError(
            f"{path}: no row of the suite {leaderboard.suite} and its datasets; "
            "benchmarks/embedded/baselines.py writes them"
        )
    if taken := set(table["method"]) & set(leaderboard.methods):
        raise UserError(f"{path}: {min(taken)!r} is the name of a method; rename the baseline")
    numbers = tuple(_numbers(leaderboard, table))
    return replace(
        leaderboard, baselines=tuple(_standings(leaderboard, table)), baseline_numbers=numbers
    )


def read_baselines(path: Path, suite: str) -> pd.DataFrame:
    """Return the rows of a suite as a table like that of a collection, in percent.

    Corruptions are averaged, as in a leaderboard.
    """
    rows = []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if missing := set(COLUMNS) - set(reader.fieldnames or ()):
                raise UserError(
                    f"{path}: no column {min(missing)!r}; expected {', '.join(COLUMNS)}"
                )
            for line in reader:
                if line["suite"] == suite:
                    rows += list(_row(line, f"{path}, line {reader.line_num}"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read as CSV ({error})") from error
    table = pd.DataFrame(
        rows, columns=["dataset", "method", "seed", "set", "role", "split", "accuracy"]
    )
    keys = [name for name in table.columns if name != "accuracy"]
    return table.groupby(keys, sort=False)["accuracy"].mean().reset_index()


def _row(line: dict[str, str], where: str) -> Iterator[tuple[object, ...]]:
    """Yield the accuracy of each split; ``where`` names the line."""
    if line["role"] not in ROLES:
        raise UserError(f"{where}: role {line['role']!r}; expected one of {', '.join(ROLES)}")
    name = "corrupted" if "/" in line["set"] else line["set"]
    for split in SPLITS:
        try:
            seed, accuracy = int(line["seed"]), float(line[split.lower()])
        except (TypeError, ValueError) as error:
            raise UserError(f"{where}: seed and {split.lower()} must be numbers") from error
        if not 0 <= accuracy <= 100:
            raise UserError(f"{where}: {split.lower()} is {accuracy}; expected a percentage")
        yield line["dataset"], line["baseline"], seed, name, line["role"], split, accuracy


def _numbers(leaderboard: Leaderboard, table: pd.DataFrame) -> Iterator[Number]:
    """Yield a number for every baseline and set of the leaderboard; without seeds if not known."""
    grouped = table.groupby(["dataset", "set", "split", "method"], sort=False)["accuracy"]
    known = {key: values.to_numpy() for key, values in grouped}
    for dataset in leaderboard.collection.datasets:
        for name, role in leaderboard.sets_of(dataset):
            for split in SPLITS:
                for baseline in dict.fromkeys(table["method"]):
                    number = Number(dataset, name, role, split, baseline, planned=0)
                    values = known.get((dataset, name, split, baseline))
                    if values is None:
                        yield number
                        continue
                    yield replace(
                        number,
                        planned=len(values),
                        seeds=len(values),
                        mean=float(values.mean()),
                        std=float(values.std(ddof=1)) if len(values) > 1 else math.nan,
                    )


def _standings(leaderboard: Leaderboard, table: pd.DataFrame) -> Iterator[Standing]:
    """Yield the means of every baseline; NaN if it lacks a dataset of the leaderboard."""
    means = means_by_role(table)
    for baseline in dict.fromkeys(table["method"]):
        own = table[table["method"] == baseline]
        whole = set(own["dataset"]) == set(leaderboard.collection.datasets)
        found = {
            role: float(m[baseline].mean()) if whole and baseline in m else math.nan
            for role, m in means.items()
        }
        yield Standing(baseline, found, UNKNOWN, math.nan, 0, 0, is_baseline=True)
