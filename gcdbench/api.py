"""The benchmark as an object, for notebooks and scripts."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcdbench.core import registry
from gcdbench.errors import unknown
from gcdbench.experiment.plan import Cell, Request, make_cells

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from gcdbench.experiment.record import Record
    from gcdbench.report.collect import Collection


@dataclass(frozen=True)
class Benchmark:
    """A grid of methods, datasets and seeds of a suite, and the folder of its records.

    What is empty is the suite's default. ``settings`` is what ``--set`` is on the command line:
    ``{"train": {"lr": 0.05}}``. ``plugins`` are files with methods, techniques or datasets of your
    own. The same grid asked for on the command line has the same cells and records.
    """

    suite: str
    methods: Sequence[str] = ()
    datasets: Sequence[str] = ()
    seeds: Sequence[int] = ()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quick: bool = False
    results: str | Path = "results/runs"
    data_root: str | Path | None = None
    class_splits: Sequence[int] = ()
    plugins: Sequence[str | Path] = ()

    def cells(self) -> pd.DataFrame:
        """Return one row per cell: dataset, method, seed, state (done, waiting, ...) and key."""
        import pandas as pd

        from gcdbench.runner.status import states

        rows = [state.as_dict() for state in states(self._cells(), Path(self.results))]
        return pd.DataFrame(rows).rename(columns={"kind": "state"})[
            ["dataset", "method", "seed", "state", "detail", "key"]
        ]

    def run(
        self,
        *,
        device: str = "auto",
        jobs: int | None = None,
        workers: int = 0,
        keep_weights: bool = False,
        trackers: Sequence[str] = (),
    ) -> pd.DataFrame:
        """Train and score the cells that have no record yet; return the scores of all of them.

        The arguments are those of ``gcdbench run``; none of them can change a number. A call that
        was interrupted is resumed by the same call.
        """
        from gcdbench.experiment import records
        from gcdbench.runner.launchers import choose_launcher, get_launcher
        from gcdbench.runner.options import RunOptions, plugin_files
        from gcdbench.runner.trackers import check_trackers

        cells, results = self._cells(), Path(self.results)
        check_trackers(trackers)
        records.check_writable(results)
        options = RunOptions(
            results,
            device=device,
            jobs=jobs,
            workers=workers,
            keep_weights=keep_weights,
            trackers=tuple(trackers),
            plugins=plugin_files(),
        )
        outcome = get_launcher(choose_launcher(options)).run(cells, options)
        if outcome.failed:
            failures = "; ".join(f"{cell.label}: {why}" for cell, why in outcome.failed)
            raise RuntimeError(f"{len(outcome.failed)} of {len(cells)} cells failed: {failures}")
        return self.scores()

    def scores(self) -> pd.DataFrame:
        """Return one row per recorded cell, evaluation set and split; accuracies in percent."""
        return self._collect().table

    def leaderboard(self) -> pd.DataFrame:
        """Return one row per method, set and split: mean over seeds, interval, rank, paper."""
        import pandas as pd

        from gcdbench.report.formats import to_csv

        return pd.read_csv(io.StringIO(to_csv(self._collect())))

    def plot(self, name: str) -> Figure:
        """Return a plot of the records as a matplotlib figure: bars, drop, curves, ..."""
        from gcdbench.report.leaderboard import make_leaderboard
        from gcdbench.report.plots import PLOTS

        if name not in PLOTS:
            raise unknown("plot", name, PLOTS)
        return PLOTS[name].draw(make_leaderboard(self._collect(), str(self.suite)))

    def records(self) -> list[Record]:
        """Return the records of the grid: scores, settings, learning curve, provenance."""
        return self._collect().records

    def _cells(self) -> list[Cell]:
        return make_cells(self._request())

    def _request(self) -> Request:
        for path in self.plugins:
            registry.add_plugin(Path(path))
        return Request(
            suite=str(self.suite),
            methods=tuple(self.methods),
            datasets=tuple(self.datasets),
            seeds=tuple(self.seeds),
            assignments=self.settings,
            quick=self.quick,
            data_root=Path(self.data_root) if self.data_root is not None else None,
            class_splits=tuple(self.class_splits),
        )

    def _collect(self) -> Collection:
        from gcdbench.report.collect import collect
        from gcdbench.training.scoring.rescore import judge

        request = self._request()
        return collect(request, Path(self.results), cells=make_cells(request), judge=judge)


def load_records(results: str | Path = "results/runs") -> list[Record]:
    """Return all records below a results folder that are not damaged."""
    from gcdbench.experiment.records import readable

    return list(readable(Path(results)))
