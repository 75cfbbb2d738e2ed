"""A search for settings: its draws as ordinary cells, their values, and the winner.

Every draw is trained on a fold of the dataset (``data/tuning/folds``); the winner's settings are
then trained on the true split. A search is a function of its description and of the records: it
holds no state of its own, so it can be interrupted, continued elsewhere and extended.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gcdbench.core.config import merge
from gcdbench.core.method_spec import MethodSpec
from gcdbench.data.tuning.names import FOLDS
from gcdbench.experiment import heartbeat, records
from gcdbench.experiment.plan import Cell, Request, fold_name, make_cells
from gcdbench.experiment.record import Record, SearchFacts
from gcdbench.experiment.tuning.criteria import CRITERIA
from gcdbench.experiment.tuning.ranges import Range, ranges_of
from gcdbench.experiment.tuning.samplers import Settings, random_draw, tpe_draw


@dataclass(frozen=True)
class Draw:
    """One choice of settings, its cells on the folds, and its value by every criterion."""

    number: int
    settings: Settings
    cells: tuple[Cell, ...]
    values: Mapping[str, float] | None = None  # None: not recorded, or failed
    seconds: float = 0.0  # of processors


@dataclass(frozen=True)
class Search:
    """The search of one method's settings on one dataset."""

    request: Request  # suite, and the settings that are fixed
    method: str
    dataset: str
    seed: int
    budget: int
    criterion: str = "hidden"
    sampler: str = "random"
    folds: int = 1  # that a draw is trained on

    @property
    def label(self) -> str:
        """How messages name the search."""
        return f"{self.method} on {self.dataset}, search {self.seed}"

    @property
    def fold_numbers(self) -> tuple[int, ...]:
        """The folds of this search: another seed begins with another one."""
        return tuple((self.seed + place) % FOLDS for place in range(self.folds))

    @cached_property
    def ranges(self) -> list[Range]:
        """The ranges that are searched."""
        return ranges_of(MethodSpec.parse(self.method), self._fixed)

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The resolved defaults of the settings that are searched, by their keys."""
        settings = self.final_cells({}, (0,))[0].settings()
        sections = {**settings["config"], "train": settings["train"]}
        return {one.key: sections[one.section][one.name] for one in self.ranges}

    @property
    def _fixed(self) -> dict[str, Mapping[str, Any]]:
        """Settings of --set that concern this method."""
        spec = MethodSpec.parse(self.method)
        used = {"train", "backbone", "task", spec.method, *spec.techniques}
        return {name: given for name, given in self.request.assignments.items() if name in used}

    def draw_cells(self, settings: Settings, number: int) -> tuple[Cell, ...]:
        """Return the cells of a draw, one for each fold; learning curves are not needed."""
        names = tuple(fold_name(self.dataset, fold) for fold in self.fold_numbers)
        quiet = merge({"train": {"eval_every": 0}}, self._fixed, settings)
        cells = self._cells(names, (self.seed,), quiet)
        return tuple(dataclasses.replace(cell, note=f"draw {number}") for cell in cells)

    def final_cells(self, settings: Settings, seeds: Sequence[int]) -> list[Cell]:
        """Return the cells of some settings on the true split."""
        return self._cells((self.dataset,), tuple(seeds), merge(self._fixed, settings))

    def _cells(
        self, datasets: tuple[str, ...], seeds: tuple[int, ...], assignments: Mapping[str, Any]
    ) -> list[Cell]:
        request = dataclasses.replace(
            self.request,
            methods=(self.method,),
            datasets=datasets,
            seeds=seeds,
            assignments=assignments,
            class_splits=(),
        )
        return make_cells(request)

    def draws(self, results: Path, failed: Collection[str] = ()) -> list[Draw]:
        """Return the draws that are known so far, with the values of those that are recorded.

        A random search knows all of them; TPE knows the next one when those before have a value or
        have failed. ``failed`` has the keys of cells that failed.
        """
        found: list[Draw] = []
        for number in range(self.budget):
            if self.sampler == "random":
                settings = random_draw(
                    self.ranges,
                    self.defaults,
                    method=self.method,
                    seed=self.seed,
                    number=number,
                )
            else:
                if any(is_open(one, failed) for one in found):
                    break
                values = [None if one.values is None else self.value(one) for one in found]
                settings = tpe_draw(self.ranges, self.defaults, values, seed=self.seed)
            found.append(
                measured(Draw(number, settings, self.draw_cells(settings, number)), results)
            )
        return found

    def winner(self, draws: Sequence[Draw]) -> Draw | None:
        """Return the draw with the highest value, the first of equal ones; None if all failed."""
        known = [one for one in draws if one.values and not math.isnan(self.value(one))]
        return max(known, key=lambda one: (self.value(one), -one.number), default=None)

    def value(self, draw: Draw) -> float:
        """Return the value of a draw by the criterion of the search; NaN if it has none."""
        return math.nan if draw.values is None else draw.values[self.criterion]

    def facts(self, draws: Sequence[Draw], winner: Draw) -> SearchFacts:
        """Return what the records of the winner say about the search."""
        return SearchFacts(
            criterion=self.criterion,
            budget=self.budget,
            sampler=self.sampler,
            seed=self.seed,
            folds=self.fold_numbers,
            draw=winner.number,
            value=self.value(winner),
            failed=sum(one.values is None for one in draws),
            cpu_seconds=sum(one.seconds for one in draws),
            settings=winner.settings,
            keys=tuple(cell.key for one in draws for cell in one.cells),
        )


def is_open(draw: Draw, failed: Collection[str]) -> bool:
    """Tell whether a draw has neither a value nor failed."""
    return draw.values is None and not any(cell.key in failed for cell in draw.cells)


def missing(draws: Sequence[Draw], results: Path, failed: Collection[str]) -> list[Cell]:
    """Return the cells that are still to be trained."""
    cells = [cell for one in draws if is_open(one, failed) for cell in one.cells]
    return [cell for cell in cells if not records.is_done(results, cell)]


def measured(draw: Draw, results: Path) -> Draw:
    """Return a draw with the means of its values over folds, if all of them are recorded."""
    values: list[dict[str, float]] = []
    seconds = 0.0
    for cell in draw.cells:
        record = records.read_done(results, cell)
        if not isinstance(record, Record):
            return draw
        predictions = records.read_predictions(records.cell_folder(results, cell), record)
        if isinstance(predictions, str):
            return draw
        values.append({name: rate(record, predictions) for name, rate in CRITERIA.items()})
        seconds += record.timing.cpu_seconds
    means = {name: statistics.fmean(one[name] for one in values) for name in CRITERIA}
    return dataclasses.replace(draw, values=means, seconds=seconds)


def attach(results: Path, cell: Cell, facts: SearchFacts) -> Record | None:
    """Add a search to the record of a cell that it chose, and return the record.

    The key does not depend on it: settings that are the defaults, or that two searches chose, are
    trained once and name both. A record that is not there, is being trained, or is another user's
    is left alone.
    """
    folder = records.cell_folder(results, cell)
    record = records.read_done(results, cell)
    if not isinstance(record, Record):
        return None
    others = tuple(one for one in record.searches if one.identity != facts.identity)
    if record.searches != (*others, facts):
        record = dataclasses.replace(record, searches=(*others, facts))
        try:
            with heartbeat.locked(folder):
                records.rewrite(folder / records.RECORD, record)
        except (heartbeat.Busy, PermissionError):
            return None
    return record
