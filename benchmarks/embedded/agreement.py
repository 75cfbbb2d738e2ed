"""Compare the order of methods on the embedded suites with the paper's, by Kendall's tau.

    python benchmarks/embedded/agreement.py results/drawshift/records

One row per dataset and one for their mean; accuracy is that of All. Tau is 1 for the same order, 0
for no relation, -1 for the opposite one. The interval resamples the datasets and seeds here and the
paper's datasets, each with replacement, so it says how far the order can be trusted, on both sides.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from gcdbench import records
from gcdbench.report import published, statistics
from gcdbench.report.collect import tidy

METHODS = ("rankstats", "uno", "orca", "gcd", "simgcd", "uniot", "hilo")
PAPER = {"ssb_c": "SSB-C", "domainnet": "DomainNet"}  # the latter without UniOT
RESAMPLES = 10_000


def paper_accuracies(name: str, role: str) -> pd.DataFrame:
    """Return the paper's All on source or shifted images: datasets by the methods it has."""
    spellings = {published.title(method): method for method in METHODS}
    found: dict[str, dict[str, float]] = {}
    for triple in published.triples(name):
        source = triple.domain in ("original", triple.dataset.split("+")[0])
        if triple.method in spellings and not triple.variant and source == (role == "source"):
            row = found.setdefault(triple.dataset, {})
            row[spellings[triple.method]] = triple.values["All"]
    return pd.DataFrame.from_dict(found, orient="index").dropna(axis=1)


def measured(folder: Path, role: str) -> dict[str, pd.DataFrame]:
    """Return All (seeds, methods) of every recorded dataset, of the seeds that all methods have."""
    sound = [record for _, record in records.read_all(folder) if isinstance(record, dict)]
    if not sound:
        return {}
    table = statistics.scores(tidy(sound), role=role).reindex(columns=METHODS).dropna()
    return {str(name): rows for name, rows in table.groupby(level="dataset", sort=False)}


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
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("records", type=Path, help="folder with records")
    args = parser.parse_args(argv)
    ours = {role: measured(args.records, role) for role in ("source", "shifted")}
    if not ours["source"]:
        sys.exit(f"{args.records}: no seed of any dataset has records of all of {METHODS}")
    columns: dict[str, dict[str, str]] = {}
    for (name, title), (role, datasets) in product(PAPER.items(), ours.items()):
        paper = paper_accuracies(name, role)
        seeds = {dataset: x[paper.columns].to_numpy() for dataset, x in datasets.items()}
        groups = {dataset: [x] for dataset, x in seeds.items()} | {"mean": list(seeds.values())}
        columns[f"{title}, {role}"] = {
            dataset: "{:+.2f} ({:+.2f} to {:+.2f})".format(*agreement(x, paper.to_numpy()))
            for dataset, x in groups.items()
        }
    table = [["dataset", *columns], ["---"] + ["---:"] * len(columns)]
    rows = next(iter(columns.values()))
    table += [[name, *(column[name] for column in columns.values())] for name in rows]
    sys.stdout.write("".join(f"| {' | '.join(row)} |\n" for row in table))


if __name__ == "__main__":
    main(sys.argv[1:])
