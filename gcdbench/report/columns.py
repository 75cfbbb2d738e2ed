"""The columns of a leaderboard, and how their values are written.

A column is one entry of one of the lists below; every output shows the entries that name it. The
tables of single datasets are not in these lists: their columns are the evaluation sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar

from gcdbench.report.further_scores import GAP, HIDDEN
from gcdbench.report.further_scores import NAMES as FURTHER
from gcdbench.report.leaderboard import ROLES, Leaderboard, Number, Standing
from gcdbench.report.statistics import Interval
from gcdbench.report.submissions import MARKS

DASH = "–"  # what was not measured
Output = Literal["md", "csv", "latex", "json", "page"]
Format = Literal["plain", "accuracy", "difference", "rank", "interval"]
Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """A column: its heading, its value in a row, and the outputs that have it."""

    name: str
    value: Callable[[Row], Any]
    outputs: Sequence[Output]
    format: Format = "plain"
    short: str = ""  # heading on the page, if it is not the name
    role: str = ""  # whose mean it is, if it is one
    marked: Callable[[Row], bool] | None = None  # rows whose value gets a dagger

    def text(self, row: Row) -> str:
        """Return the value as Markdown and the page write it."""
        return WRITERS[self.format](self.value(row))


def shown_in(output: Output, columns: Sequence[Column[Row]]) -> list[Column[Row]]:
    """Return the columns of an output."""
    return [column for column in columns if output in column.outputs]


def _further(name: str) -> Callable[[Number], float]:
    return lambda one: one.further.get(name, math.nan)


def _further_of(split: str, name: str) -> Callable[[Mapping[str, Number]], float]:
    return lambda splits: splits[split].further.get(name, math.nan)


# one row per number
NUMBERS: tuple[Column[Number], ...] = tuple(
    Column(name, attrgetter(name), ("csv", "json"))
    for name in (
        *("dataset", "set", "role", "split", "method", "planned", "seeds"),
        *("mean", "std", "low", "high", "rank", "paper", "delta", "impossible"),
    )
) + tuple(Column(name, _further(name), ("csv", "json")) for name in FURTHER)

# one row per method and set, of All or of Old; what stands next to the accuracy of the last epoch
FURTHER_ON_PAGE: tuple[Column[Mapping[str, Number]], ...] = tuple(
    Column(title, _further_of(split, name), ("page",), "difference" if name == GAP else "accuracy")
    for title, split, name in (
        ("best epoch, selected with hidden labels", "All", HIDDEN),
        ("its gap to the last epoch", "All", GAP),
        ("random clusters", "All", "floor"),
        ("adjusted for them", "All", "adjusted"),
        ("mean over classes", "All", "balanced"),
        ("one assignment for all domains", "All", "shared"),
        ("old, not matched", "Old", "unmatched"),
        ("AUROC of novelty", "All", "novelty_auroc"),
        ("calibration error", "All", "ece"),
        ("purity of neighbours", "All", "purity"),
        ("error of the number of classes", "All", "classes_error"),
    )
)

# one row per number that the paper prints, in three splits
AGAINST_PAPER: tuple[Column[Number], ...] = (
    Column("measured", attrgetter("mean"), ("md", "latex", "page"), "accuracy"),
    Column(
        "paper",
        attrgetter("paper"),
        ("md", "latex", "page"),
        "accuracy",
        marked=attrgetter("impossible"),
    ),
    Column("difference", attrgetter("delta"), ("md", "latex", "page"), "difference"),
)


def standing_columns(leaderboard: Leaderboard) -> list[Column[Standing]]:
    """Return the columns of the table over all datasets, one row per method.

    There is a column of means for each role of which something was measured.
    """
    roles = [role for role in ROLES if any(_measured(one, role) for one in leaderboard.standings)]
    means = [
        Column[Standing](f"{r} All", _mean_of(r), ("md", "page"), "accuracy", short=r, role=r)
        for r in roles
    ]
    return [
        Column("", attrgetter("place"), ("md",)),
        Column("method", lambda one: one.title + _mark(one), ("md",)),
        *means,
        Column("method", attrgetter("method"), ("json",)),
        Column("means", attrgetter("means"), ("json",)),
        Column("interval", attrgetter("interval"), ("json",)),
        Column("95% interval", attrgetter("interval"), ("md", "page"), "interval"),
        Column("rank", attrgetter("rank"), ("json",)),
        Column("average rank", attrgetter("rank"), ("md", "page"), "rank", short="rank"),
        Column("cells", _cells, ("md",)),
        Column("recorded", attrgetter("recorded"), ("json",)),
        Column("planned", attrgetter("planned"), ("json",)),
        Column("place", attrgetter("place"), ("json",)),
        Column("title", attrgetter("title"), ("json",)),
    ]


def _cells(standing: Standing) -> str:
    if standing.is_baseline:
        return "baseline"
    return f"{standing.recorded} of {standing.planned}"


def _mark(standing: Standing) -> str:
    """Return the marks of a method: scores that were not recomputed, training by others."""
    other = f" {MARKS[standing.submission]}" if standing.submission else ""
    return " ‡" * bool(standing.unconfirmed) + other


def _measured(standing: Standing, role: str) -> bool:
    return not math.isnan(standing.means[role])


def _mean_of(role: str) -> Callable[[Standing], float]:
    return lambda standing: standing.means[role]


def number(mean: float, std: float = math.nan) -> str:
    """Write a percentage with its deviation.

    >>> number(52.04, 0.46), number(float("nan"))
    ('52.0 ± 0.5', '–')
    """
    if math.isnan(mean):
        return DASH
    return f"{mean:.1f}" if math.isnan(std) else f"{mean:.1f} ± {std:.1f}"


def signed(value: float) -> str:
    """Write a difference with its sign.

    >>> signed(-0.04), signed(-1.26)
    ('0.0', '−1.3')
    """
    if math.isnan(value):
        return DASH
    text = f"{abs(value):.1f}"
    if text == "0.0":
        return text
    return ("−" if value < 0 else "+") + text


def p_value(p: float) -> str:
    """Write a p-value with two digits."""
    return DASH if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.2g}"


def _between(interval: Interval) -> str:
    return DASH if math.isnan(interval.low) else f"{interval.low:.1f} to {interval.high:.1f}"


WRITERS: dict[Format, Callable[[Any], str]] = {
    "plain": lambda value: DASH if value is None else str(value),
    "accuracy": number,
    "difference": signed,
    "rank": lambda rank: DASH if math.isnan(rank) else f"{rank:.2f}",
    "interval": _between,
}
