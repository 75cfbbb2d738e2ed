"""Summarise the records of the embedded suites: means, significance, agreement with the paper.

    python benchmarks/embedded/reading.py results/drawshift/records results/drawshift/variants

Accuracy is that of All. Pairs of methods are compared on each dataset by a t-test over the seeds
that both have, corrected by Holm for all rows; it holds for other seeds, not for other datasets.
Kendall's tau is 1 for the same order of methods as in the paper, 0 for no relation, -1 for the
opposite one. Its interval resamples the datasets and seeds here and the paper's datasets, each with
replacement, so it shows how reliable both orders are. The second folder, which is optional, holds
variants of the methods (other techniques, other settings); each is compared with the method that
it varies.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from gcdbench.core.method_spec import MethodSpec
from gcdbench.experiment import records
from gcdbench.experiment.record import Record
from gcdbench.report import paper_numbers, statistics
from gcdbench.report.collect import tidy

METHODS = ("rankstats", "uno", "orca", "gcd", "simgcd", "uniot", "hilo")
PAPER = {"ssb_c": "SSB-C", "domainnet": "DomainNet"}  # the latter without UniOT
PAIRS = (("hilo", "simgcd"), ("hilo", "gcd"), ("gcd", "simgcd"))
RESAMPLES = 10_000
Scores = dict[str, pd.DataFrame]  # dataset -> (seeds, methods)


class Difference(NamedTuple):
    """How much more of All one column has than another on a dataset, by seed."""

    title: str
    dataset: str
    source: np.ndarray
    shifted: np.ndarray


def paper_accuracies(name: str, role: str) -> pd.DataFrame:
    """Return the paper's All on source or shifted images: datasets by the methods it has."""
    specs = {paper_numbers.title(method): method for method in METHODS}
    found: dict[str, dict[str, float]] = {}
    for triple in paper_numbers.triples(name):
        source = triple.domain in ("original", triple.dataset.split("+")[0])
        if triple.method in specs and not triple.variant and source == (role == "source"):
            row = found.setdefault(triple.dataset, {})
            row[specs[triple.method]] = triple.values["All"]
    return pd.DataFrame.from_dict(found, orient="index").dropna(axis=1)


def read(folder: Path) -> list[Record]:
    """Return the records of a folder that are not damaged."""
    return list(records.readable(folder))


def by_dataset(chosen: Iterable[Record], role: str) -> Scores:
    """Return All (seeds, methods) of every recorded dataset."""
    table = statistics.scores(tidy(list(chosen)), role=role)
    return {str(name): rows for name, rows in table.groupby(level="dataset", sort=False)}


def measured(chosen: list[Record], role: str) -> Scores:
    """Return All (seeds, methods) of every dataset, of the seeds that all methods have."""
    found = by_dataset(chosen, role).items()
    complete = ((name, rows.reindex(columns=METHODS).dropna()) for name, rows in found)
    return {name: rows for name, rows in complete if len(rows)}


def variant_title(record: Record, own: Record) -> str:
    """Name a variant by its spec and the settings in which it differs from the method."""
    here, there = (one.config(own.method) for one in (record, own))
    changed = [key for key in here if here[key] != there.get(key)]
    changed = ["preset"] if "preset" in changed else changed  # the others follow from it
    return ", ".join([record.method, *(f"{key} {here[key]}" for key in changed)])


def variant_differences(own: list[Record], variants: list[Record]) -> list[Difference]:
    """Return what variants have more than the methods that they vary, on the seeds of both."""
    samples = {record.method: record for record in own}
    named, varied = [], {}
    for record in variants:
        method = MethodSpec.parse(record.method).method
        if method not in samples:
            continue
        title = variant_title(record, samples[method])
        varied[title] = method
        named.append(replace(record, method=title))
    tables = [by_dataset([*own, *named], role) for role in ("source", "shifted")]
    found = []
    for (title, method), dataset in product(varied.items(), tables[0]):
        gains = [(t[dataset][title] - t[dataset][method]).dropna().to_numpy() for t in tables]
        if len(gains[0]) > 1:  # one seed tells nothing of others
            found.append(Difference(f"{title} - {method}", dataset, *gains))
    return sorted(found, key=lambda one: one.title)


def show(head: list[str], rows: list[list[str]]) -> None:
    """Print a table."""
    table = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    sys.stdout.write("".join(f"| {' | '.join(row)} |\n" for row in table) + "\n")


def show_means(ours: dict[str, Scores]) -> None:
    """Print All on source / shifted images, the mean over seeds."""
    datasets = list(ours["source"])
    seeds = [f"{name}, {len(ours['source'][name])} seeds" for name in datasets]
    rows = []
    for method in METHODS:
        pairs = ([ours[role][name][method].mean() for role in ours] for name in datasets)
        rows.append([paper_numbers.title(method), *(f"{a:.1f} / {b:.1f}" for a, b in pairs)])
    show(["source / shifted", *seeds], rows)


def pair_differences(ours: dict[str, Scores]) -> list[Difference]:
    """Return the differences between some methods on each dataset."""
    return [
        Difference(
            f"{paper_numbers.title(first)} - {paper_numbers.title(second)}",
            name,
            *((ours[role][name][first] - ours[role][name][second]).to_numpy() for role in ours),
        )
        for (first, second), name in product(PAIRS, ours["source"])
    ]


def chance(gains: np.ndarray) -> float:
    """Return p of a t-test over seeds; 1 if nothing has changed."""
    return float(stats.ttest_1samp(gains, 0.0).pvalue) if gains.any() else 1.0


def show_differences(found: list[Difference]) -> None:
    """Print differences, and what seeds make of them."""
    both = [gains for one in found for gains in (one.source, one.shifted)]
    chances = statistics.holm([chance(gains) for gains in both])
    cells = [
        [f"{gains.mean():+.1f} ± {gains.std(ddof=1):.1f}", f"{p:.2g}"]
        for gains, p in zip(both, chances, strict=True)
    ]
    rows = [
        [one.title, one.dataset, *source, *shifted]
        for one, source, shifted in zip(found, cells[::2], cells[1::2], strict=True)
    ]
    show(["difference, mean ± deviation", "dataset", "source", "p Holm", "shifted", "p Holm"], rows)


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


def main(argv: list[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("records", type=Path, help="folder with records")
    parser.add_argument("variants", type=Path, nargs="?", help="folder with records of variants")
    args = parser.parse_args(argv)
    own = read(args.records)
    ours = {role: measured(own, role) for role in ("source", "shifted")}
    if not ours["source"]:
        sys.exit(f"{args.records}: no seed of any dataset has records of all of {METHODS}")
    show_means(ours)
    show_differences(pair_differences(ours))
    columns: dict[str, dict[str, str]] = {}
    for (name, title), (role, datasets) in product(PAPER.items(), ours.items()):
        paper = paper_accuracies(name, role)
        seeds = {dataset: x[paper.columns].to_numpy() for dataset, x in datasets.items()}
        groups = {dataset: [x] for dataset, x in seeds.items()} | {"mean": list(seeds.values())}
        columns[f"{title}, {role}"] = {
            dataset: "{:+.2f} ({:+.2f} to {:+.2f})".format(*agreement(x, paper.to_numpy()))
            for dataset, x in groups.items()
        }
    names = next(iter(columns.values()))
    rows = [[name, *(column[name] for column in columns.values())] for name in names]
    show(["Kendall's tau", *columns], rows)
    if args.variants:
        show_differences(variant_differences(own, read(args.variants)))


if __name__ == "__main__":
    main(sys.argv[1:])
