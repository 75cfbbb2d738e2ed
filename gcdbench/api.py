"""The main verbs of the command line as functions, for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcdbench.experiment.plan import Request, make_cells

if TYPE_CHECKING:
    import pandas as pd

    from gcdbench.experiment.record import Record


def run(
    suite: str,
    methods: Iterable[str] = (),
    *,
    datasets: Iterable[str] = (),
    seeds: Iterable[int] = (),
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    quick: bool = False,
    results: str | Path = "results/runs",
    data_root: str | Path | None = None,
    device: str = "auto",
    keep_weights: bool = False,
) -> pd.DataFrame:
    """Run the cells that have no record yet and return the accuracies of all of them.

    ``settings`` is what ``--set`` is on the command line: ``{"train": {"lr": 0.05}}``. The table
    has one row per cell, evaluation set and split, in percent. ``keep_weights`` stores the trained
    weights next to each record, for plots of single cells.
    """
    from gcdbench.report.collect import collect
    from gcdbench.runner.launchers.local import LocalLauncher
    from gcdbench.runner.options import RunOptions
    from gcdbench.training.scoring.rescore import judge

    request = Request(
        suite,
        tuple(methods),
        tuple(datasets),
        tuple(seeds),
        settings or {},
        quick,
        Path(data_root) if data_root is not None else None,
    )
    cells = make_cells(request)
    options = RunOptions(Path(results), device=device, keep_weights=keep_weights)
    outcome = LocalLauncher().run(cells, options)
    if outcome.failed:
        failures = "; ".join(f"{cell.label}: {why}" for cell, why in outcome.failed)
        raise RuntimeError(f"{len(outcome.failed)} of {len(cells)} cells failed: {failures}")
    return collect(request, Path(results), cells=cells, judge=judge).table


def load_records(results: str | Path = "results/runs") -> list[Record]:
    """Return all records below a results folder that are not damaged."""
    from gcdbench.experiment.records import readable

    return list(readable(Path(results)))
