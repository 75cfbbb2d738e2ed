"""Summarise the records of the embedded suites: means, significance, agreement with the papers.

    python benchmarks/embedded/reading.py results/drawshift/records \\
        --baselines results/drawshift/baselines.csv

Accuracy is that of All. Two methods are compared by a t-test over the seeds that both have, on each
dataset and on the mean of the pairs, with the 95% interval of the difference; p-values are
corrected by Holm for all that a table shows. They hold for other seeds, not for other
datasets. Kendall's tau is 1 for the same order of methods as in a paper, 0 for no relation, -1 for
the opposite one. Its interval resamples the datasets and seeds here and the paper's datasets, each
with replacement, so it shows how reliable both orders are.
``leaderboards.py write`` writes these tables to results/drawshift/reading.md.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from gcdbench.experiment import records
from gcdbench.experiment.record import Record
from gcdbench.report import paper_numbers, statistics
from gcdbench.report.baselines import read_baselines
from gcdbench.report.collect import tidy
from gcdbench.report.titles import method_title

PAPER = {"ssb_c": "SSB-C", "domainnet": "DomainNet"}  # the latter without UniOT
AGAINST = ("simgcd", "hilo")
PAIRS = ("line+solid", "line+color", "line+quickdraw")
ROLES = ("source", "shifted")
MARK = 0.05  # differences with a smaller p are marked
RESAMPLES = 10_000
Scores = dict[str, pd.DataFrame]  # dataset -> (seeds, methods), NaN where nothing is recorded


class Difference(NamedTuple):
    """How much more of All one column has than another on a dataset, by seed."""

    title: str
    dataset: str
    source: np.ndarray
    shifted: np.ndarray


def paper_accuracies(name: str, role: str, methods: Sequence[str]) -> pd.DataFrame:
    """Return HiLo's paper's All on source or shifted images: datasets by the methods it has."""
    specs = {paper_numbers.title(method): method for method in methods}
    found: dict[str, dict[str, float]] = {}
    for triple in paper_numbers.triples(name):
        source = triple.domain in ("original", triple.dataset.split("+")[0])
        if triple.method in specs and not triple.variant and source == (role == "source"):
            row = found.setdefault(triple.dataset, {})
            row[specs[triple.method]] = triple.values["All"]
    return pd.DataFrame.from_dict(found, orient="index").dropna(axis=1)


def authors_accuracies(methods: Sequence[str]) -> pd.DataFrame:
    """Return one row: All as published by the authors, the mean of CUB, Cars and Aircraft.

    These have no shift. SimGCD and HiLo are as in HiLo's paper, which prints the mean.
    """
    found = {
        triple.method.lower(): triple.values["All"]
        for triple in paper_numbers.triples("vanilla_gcd")
        if triple.dataset == "ssb" and triple.method.lower() in methods
    }
    for method in methods:
        rows = [
            paper_numbers.find(dataset, method, "original", "source", "All")
            for dataset in ("cub", "scars", "fgvc")
        ]
        values = [row.accuracy for row in rows if row is not None]
        if len(values) == len(rows):
            found[method] = float(np.mean(values))
    return pd.DataFrame([found])


def read(folder: Path) -> list[Record]:
    """Return the records of a folder that are not damaged."""
    return list(records.readable(folder))


def by_dataset(chosen: Iterable[Record], role: str) -> Scores:
    """Return All (seeds, methods) of every recorded dataset, the pairs first."""
    table = statistics.scores(tidy(list(chosen)), role=role)
    found = {
        str(name): rows.droplevel("dataset")
        for name, rows in table.groupby(level="dataset", sort=False)
    }
    return {name: found[name] for name in dict.fromkeys([*PAIRS, *found]) if name in found}


def over_datasets(tables: Scores) -> tuple[str, pd.DataFrame]:
    """Return a name for the pairs of styles, and the mean over them (seeds, methods).

    It is NaN where one of them is missing. If no pair is recorded, it is that of all datasets.
    """
    chosen = {name: table for name, table in tables.items() if name in PAIRS} or tables
    return f"mean of {len(chosen)}", sum(chosen.values()) / len(chosen)


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column is text."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


def ordered(ours: dict[str, Scores]) -> list[str]:
    """Return the methods, best first: by the mean of source and shifted images.

    Datasets are the pairs; methods that lack one of them come last.
    """
    means = pd.DataFrame([over_datasets(ours[role])[1].mean() for role in ROLES])
    ranked = means.mean(skipna=False).sort_values(ascending=False, na_position="last")
    return [str(name) for name in ranked.index]


def with_baselines(ours: dict[str, Scores], path: Path) -> dict[str, Scores]:
    """Return the scores with a column for each row of a file of baselines."""
    suites = pd.read_csv(path)["suite"].unique()
    table = pd.concat([read_baselines(path, suite) for suite in suites])
    merged: dict[str, Scores] = {}
    for role in ROLES:
        found = statistics.scores(table, role=role)
        own = {name: found[found.index.get_level_values("dataset") == name] for name in ours[role]}
        merged[role] = {
            name: pd.concat([scores, own[name].droplevel("dataset")], axis=1)
            for name, scores in ours[role].items()
        }
    return merged


def means(own: Iterable[Record], baselines: Path | None) -> str:
    """Return All on source / shifted images, the mean over seeds, of methods and baselines.

    The number of seeds is in the head, and where another one is recorded next to the mean.
    """
    ours = {role: by_dataset(own, role) for role in ROLES}
    methods = ordered(ours)
    ours = with_baselines(ours, baselines) if baselines else ours
    tables = ours["source"]
    usual = {name: int(table.count().mode().max()) for name, table in tables.items()}
    rows = []
    for row in ordered(ours):
        cells = []
        for name, table in tables.items():
            seeds = int(table[row].count())
            pair = " / ".join(f"{ours[role][name][row].mean():.1f}" for role in ROLES)
            cells.append((pair if seeds == usual[name] else f"{pair} ({seeds})") if seeds else "–")
        rows.append([method_title(row) if row in methods else row, *cells])
    counted = (f"{name} ({n} seed{'s' * (n != 1)})" for name, n in usual.items())
    return markdown(["source / shifted", *counted], rows)


def pair_differences(ours: dict[str, Scores], methods: Sequence[str]) -> list[Difference]:
    """Return what each method has more than those of AGAINST, by dataset and on their mean."""
    tables = {role: ours[role] | dict([over_datasets(ours[role])]) for role in ROLES}
    found = []
    for second, name, first in product(AGAINST, tables["source"], methods):
        if first == second or (first, second) == AGAINST or second not in methods:
            continue
        here = [tables[role][name] for role in ROLES]
        gains = [(table[first] - table[second]).dropna().to_numpy() for table in here]
        if len(gains[0]) > 1:
            title = f"{method_title(first)} - {method_title(second)}"
            found.append(Difference(title, name, *gains))
    return found


def chance(gains: np.ndarray) -> float:
    """Return p of a t-test over seeds; 1 if nothing has changed."""
    return float(stats.ttest_1samp(gains, 0.0).pvalue) if gains.any() else 1.0


def half_width(gains: np.ndarray) -> float:
    """Return half of the 95% interval of the mean, by the t distribution."""
    error = gains.std(ddof=1) / math.sqrt(len(gains))
    return float(error * stats.t.ppf(1 - statistics.ALPHA / 2, len(gains) - 1))


def corrected(found: Sequence[Difference]) -> list[tuple[float, float]]:
    """Return p of each difference on source and shifted images, corrected for all of them."""
    chances = [chance(gains) for one in found for gains in (one.source, one.shifted)]
    ps = statistics.holm(chances)
    return list(zip(ps[::2], ps[1::2], strict=True))


def differences_table(found: Sequence[Difference]) -> str:
    """Return differences, one row for each, and what seeds make of them."""
    rows = []
    for one, ps in zip(found, corrected(found), strict=True):
        row = [one.title, one.dataset]
        for gains, p in zip((one.source, one.shifted), ps, strict=True):
            row += [f"{gains.mean():+.1f} ± {half_width(gains):.1f}", f"{p:.2g}"]
        rows.append(row)
    return markdown(["difference ± 95%", "dataset", "source", "p Holm", "shifted", "p Holm"], rows)


def matrix(found: Sequence[Difference]) -> str:
    """Return differences, one row for each pair, source / shifted; * if p is below MARK."""
    cells: dict[str, dict[str, str]] = {}
    for one, ps in zip(found, corrected(found), strict=True):
        both = zip((one.source, one.shifted), ps, strict=True)
        marked = (f"{gains.mean():+.1f}{'*' * (p < MARK)}" for gains, p in both)
        cells.setdefault(one.title, {})[one.dataset] = " / ".join(marked)
    datasets = list(dict.fromkeys(one.dataset for one in found))
    rows = [[title, *(row.get(name, "–") for name in datasets)] for title, row in cells.items()]
    return markdown(["difference, source / shifted", *datasets], rows)


def tau(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Return Kendall's tau-a of rows of scores (..., methods)."""
    signs = [np.sign(x[..., :, None] - x[..., None, :]) for x in (first, second)]
    methods = first.shape[-1]
    return (signs[0] * signs[1]).sum((-2, -1)) / (methods * (methods - 1))


def resampled(rows: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
    """Return means of rows drawn with replacement (resamples, methods)."""
    return rows[rng.randint(len(rows), size=(RESAMPLES, len(rows)))].mean(1)


def agreement(ours: list[np.ndarray], paper: np.ndarray) -> tuple[float, float, float]:
    """Return tau of the means with the bounds of its 95% interval."""
    rng = np.random.RandomState(0)
    here = np.mean([seeds.mean(0) for seeds in ours], axis=0)
    drawn = np.stack([resampled(seeds, rng) for seeds in ours], axis=1)  # (resamples, datasets, m)
    chosen = rng.randint(len(ours), size=(RESAMPLES, len(ours)))
    means = np.take_along_axis(drawn, chosen[..., None], axis=1).mean(1)
    low, high = np.percentile(tau(means, resampled(paper, rng)), [2.5, 97.5])
    return float(tau(here, paper.mean(0))), float(low), float(high)


def compared(table: pd.DataFrame, paper: pd.DataFrame) -> list[str]:
    """Return the methods of a paper that have more than half of the seeds of a dataset."""
    seeds = table.reindex(columns=paper.columns).count()
    return [str(name) for name, number in seeds.items() if number > len(table) / 2]


def agreement_cell(tables: Sequence[pd.DataFrame], paper: pd.DataFrame) -> str:
    """Return tau with its interval, and the number of methods where the paper has more."""
    names = [name for name in paper.columns if all(name in compared(x, paper) for x in tables)]
    if len(names) < 3:
        return "–"
    rows = [x[names].dropna().to_numpy() for x in tables]
    found = "{:+.2f} ({:+.2f} to {:+.2f})".format(*agreement(rows, paper[names].to_numpy()))
    return found if len(names) == paper.shape[1] else f"{found} of {len(names)}"


def agreement_table(ours: dict[str, Scores], methods: Sequence[str]) -> str:
    """Return how well the order of methods agrees with the papers'."""
    papers = {
        f"{title}, {role}": (paper_accuracies(name, role, methods), role)
        for (name, title), role in product(PAPER.items(), ROLES)
    }
    papers["authors, no shift"] = (authors_accuracies(methods), "source")
    groups = {name: [name] for name in ours["source"]} | {"all": list(ours["source"])}
    columns: dict[str, list[str]] = {}
    for title, (paper, role) in papers.items():
        known = {name for table in ours[role].values() for name in compared(table, paper)}
        own = paper[[name for name in paper.columns if name in known]]
        if own.shape[1] > 2:  # two have next to no order
            columns[f"{title} ({own.shape[1]} methods)"] = [
                agreement_cell([ours[role][name] for name in group], own)
                for group in groups.values()
            ]
    rows = zip(groups, *columns.values(), strict=True)
    return markdown(["Kendall's tau", *columns], rows)


def page(own: list[Record], baselines: Path | None) -> str:
    """Return all tables under their headings."""
    ours = {role: by_dataset(own, role) for role in ROLES}
    methods = ordered(ours)
    found = pair_differences(ours, methods)
    mean = over_datasets(ours["source"])[0]
    parts = {
        "Means over seeds": means(own, baselines),
        f"Differences, {mean}": differences_table([one for one in found if one.dataset == mean]),
        f"Differences by dataset; * if p is below {MARK} after Holm's correction": matrix(
            [one for one in found if one.dataset != mean]
        ),
        "Agreement with the papers' order": agreement_table(ours, methods),
    }
    return "\n".join(f"## {title}\n\n{table}" for title, table in parts.items())


def main(argv: list[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("records", type=Path, help="folder with records")
    parser.add_argument("--baselines", type=Path, help="CSV file, as baselines.py writes it")
    args = parser.parse_args(argv)
    own = read(args.records)
    if not own:
        sys.exit(f"{args.records}: no records")
    sys.stdout.write(page(own, args.baselines))


if __name__ == "__main__":
    main(sys.argv[1:])
