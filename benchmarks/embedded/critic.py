"""Summarise what HiLo's critic sees in training, from the diagnostics in records.

    python benchmarks/embedded/critic.py results/drawshift/records results/drawshift/variants

The cells are those of the table hilo_information, made by the present code. Estimates of the mutual
information are given above independence, -2 ln 2: "middle" is the mean of the middle half of the
epochs, "lowest" that of any epoch and seed. The spread of the domain projection is the share of its
energy that varies between images; 0 is a constant.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gcdbench.experiment import records
from gcdbench.experiment.record import Record
from gcdbench.paper_tables.tables import Choice, load, make_plan

INDEPENDENCE = -2 * math.log(2)
COLUMNS = ("dataset", "cells", "seeds", "first", "middle", "last", "lowest", "spread")


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


def main(folders: Sequence[Path]) -> None:
    """Print a table in Markdown."""
    print(f"| {' | '.join(COLUMNS)} |\n| --- | --- |{' ---: |' * (len(COLUMNS) - 2)}")
    for entry in make_plan(load("hilo_information"), Choice()).entries:
        cells = [cell for by_seed in entry.cells.values() for cell in by_seed]
        read = [records.read_done(folder, cell) for cell in cells for folder in folders]
        if found := [record for record in read if isinstance(record, Record)]:
            print(f"| {entry.panel.title} | {entry.row.name} | {' | '.join(row(found))} |")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
