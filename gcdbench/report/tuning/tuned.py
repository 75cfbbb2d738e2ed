"""Tuned settings next to the defaults: what a search chose, what it brought and what it cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gcdbench.experiment.record import Record, SearchFacts
from gcdbench.experiment.tuning.samplers import flat_settings
from gcdbench.report.collect import percent, reported_sets
from gcdbench.report.further_scores import HIDDEN

if TYPE_CHECKING:
    from gcdbench.report.leaderboard import Leaderboard

ROLES = ("source", "shifted", "unseen")
ORACLE = "oracle"  # the criterion that reads hidden labels


@dataclass(frozen=True)
class Compared:
    """All on the sets of a role, in percent: with default and with tuned settings."""

    default: float
    tuned: float
    std: float  # of tuned, over seeds
    hidden: float  # default settings, best epoch: selected with hidden labels


@dataclass(frozen=True)
class Tuned:
    """A method on a dataset with the settings that a search chose."""

    dataset: str
    method: str
    search: SearchFacts
    seeds: int  # recorded ones
    roles: Mapping[str, Compared]

    @property
    def criterion(self) -> str:
        """The criterion, with a warning if it reads hidden labels."""
        name = self.search.criterion
        return f"{name} (selected with hidden labels)" if name == ORACLE else name

    @property
    def settings(self) -> str:
        """What was chosen, in words."""
        found = flat_settings(self.search.settings)
        return ", ".join(f"{key}={value}" for key, value in found.items()) or "the defaults"

    def as_dict(self) -> dict[str, Any]:
        """Return the row for programs."""
        about = self.search
        return {
            "dataset": self.dataset,
            "method": self.method,
            "criterion": self.criterion,
            "budget": about.budget,
            "sampler": about.sampler,
            "search_seed": about.seed,
            "folds": list(about.folds),
            "draw": about.draw,
            "failed_draws": about.failed,
            "value": about.value,
            "cpu_seconds": about.cpu_seconds,
            "settings": flat_settings(about.settings),
            "seeds": self.seeds,
            "roles": {role: one.__dict__ for role, one in self.roles.items()},
        }


def tuned(board: Leaderboard) -> list[Tuned]:
    """Return a row for every search whose winner is recorded, by dataset, method and search."""
    groups: dict[tuple[Any, ...], list[tuple[Record, SearchFacts]]] = {}
    for record, search in board.collection.tuned:
        key = record.dataset, record.method, search.identity
        groups.setdefault(key, []).append((record, search))
    places = {(place.dataset, place.method): None for place in board.collection.planned}
    order = {place: number for number, place in enumerate(places)}
    found = [_row(board, members) for members in groups.values()]
    return sorted(
        found, key=lambda one: (order[one.dataset, one.method], one.criterion, one.search.seed)
    )


def _row(board: Leaderboard, members: Sequence[tuple[Record, SearchFacts]]) -> Tuned:
    first, search = members[0]
    chosen = [record for record, _ in members]
    roles = {
        role: _compared(board, first, chosen, role)
        for role in ROLES
        if any(one == role for _, one in board.sets_of(first.dataset))
    }
    return Tuned(first.dataset, first.method, search, len(chosen), roles)


def _compared(board: Leaderboard, first: Record, chosen: Sequence[Record], role: str) -> Compared:
    names = [name for name, one in board.sets_of(first.dataset) if one == role]
    numbers = [board.lookup[first.dataset, name, "All", first.method] for name in names]
    values = [_mean(percent(reported_sets(record)[n].all) for n in names) for record in chosen]
    return Compared(
        default=_mean(one.mean for one in numbers),
        tuned=_mean(values),
        std=statistics.stdev(values) if len(values) > 1 else math.nan,
        hidden=_mean(one.further.get(HIDDEN, math.nan) for one in numbers),
    )


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.fmean(found) if found else math.nan
