"""Summarise what HiLo's critic sees in training, from the diagnostics in records.

    python benchmarks/embedded/critic.py results/drawshift/information

Estimates of the mutual information are given above independence, -2 ln 2: "middle" is the mean of
the middle half of the epochs, "lowest" that of any epoch and seed. The spread of the domain
projection is the share of its energy that varies between images; 0 is a constant.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gcdbench.experiment import records
from gcdbench.experiment.record import Record

INDEPENDENCE = -2 * math.log(2)
COLUMNS = ("dataset", "domain contrast", "seeds", "first", "middle", "last", "lowest", "spread")


def variant(record: Record) -> str:
    """Return the domain contrast of a cell, or that it has no mutual information."""
    config = record.settings["config"]["hilo"]
    return config["domain_contrast"] if config["information_weight"] else "no information"


def curves(found: Sequence[Record], name: str) -> np.ndarray:
    """Return a diagnostic (seeds, epochs)."""
    return np.array([[point.diagnostics[name] for point in one.curve] for one in found])


def row(found: Sequence[Record]) -> list[str]:
    """Return the numbers of the seeds of one variant on one dataset."""
    above = curves(found, "critic_estimate") - INDEPENDENCE
    spread = curves(found, "domain_spread")[:, -1].mean()
    quarter = above.shape[1] // 4
    middle = above[:, quarter : above.shape[1] - quarter].mean()
    numbers = (above[:, 0].mean(), middle, above[:, -1].mean(), above.min())
    return [str(len(found)), *(f"{number:+.3f}" for number in numbers), f"{spread:.2f}"]


def main(folder: Path) -> None:
    """Print a table in Markdown."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records.readable(folder):
        if record.method == "hilo":
            groups[record.dataset, variant(record)].append(record)
    print(f"| {' | '.join(COLUMNS)} |\n| --- | --- |{' ---: |' * (len(COLUMNS) - 2)}")
    for (dataset, name), found in sorted(groups.items()):
        print(f"| {dataset} | {name} | {' | '.join(row(found))} |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
