"""Tables of what cells will cost, for ``plan``, ``show`` and ``reproduce --list``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gcdbench.cli.arguments import aligned, counted
from gcdbench.experiment.plan import Cell
from gcdbench.runner.cost import CPU, CostModel, Estimate, amount, duration, scientific

Groups: TypeAlias = "dict[tuple[str, ...], list[Row]]"
SCREEN = 14  # rows of a table that leave room for the notes on a screen of 24 lines


@dataclass(frozen=True)
class Row:
    """A planned cell."""

    cell: Cell
    key: str | None  # None if its data is not there
    done: bool
    cost: Estimate

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        cell = self.cell
        named = {"dataset": cell.dataset, "method": cell.spec.text, "seed": cell.seed}
        return {**named, "key": self.key, "done": self.done, **self.cost.as_dict()}


@dataclass(frozen=True)
class Total:
    """The cost of several cells; what is not known of any of them is None."""

    images: int
    flops: float | None
    seconds: float | None
    some: bool = False  # whether the time of some of them is not known

    @classmethod
    def of(cls, costs: Iterable[Estimate]) -> Total:
        """Add costs up."""
        costs = list(costs)
        seconds = [cost.seconds for cost in costs if cost.seconds is not None]
        flops = [cost.flops for cost in costs if cost.flops is not None]
        return cls(
            sum(cost.images for cost in costs),
            sum(flops) if len(flops) == len(costs) else None,
            sum(seconds) if seconds else None,
            0 < len(seconds) < len(costs),
        )

    @property
    def time(self) -> str:
        """The time in words."""
        return "?" if self.seconds is None else f"{'over ' * self.some}{duration(self.seconds)}"

    @property
    def words(self) -> list[str]:
        """Images, FLOPs and time, a question mark for what is not known."""
        flops = "?" if self.flops is None else scientific(self.flops)
        return [amount(self.images), flops, self.time]


def summary(rows: Sequence[Row], model: CostModel) -> str:
    """Return one screen: a line per dataset and method, or one table for each of both."""
    left = [row for row in rows if not row.done]
    pairs = _grouped(rows, lambda row: (row.cell.dataset, row.cell.spec.text))
    if len(pairs) <= SCREEN:
        names = ["dataset", "method"]
        tables = [_table(names, pairs, model)]
    else:
        by_dataset = _grouped(rows, lambda row: (row.cell.dataset,))
        by_method = _grouped(rows, lambda row: (row.cell.spec.text,))
        tables = [_table(["dataset"], by_dataset, model), _table(["method"], by_method, model)]
    counts = f"{counted(len(rows), 'cell')}, {len(rows) - len(left)} done"
    if left:
        counts += f"; {_sentence(left, model)}"
    return "\n\n".join([*tables, "\n".join([counts, *notes([r.cost for r in left], model)])])


def every_cell(rows: Sequence[Row], model: CostModel) -> str:
    """Return one line per cell."""
    lines = [["dataset", "method", "seed", "key", "images", "FLOPs", f"on {model.device}", ""]]
    for row in rows:
        cost = ["", "", "done"] if row.done else Total.of([row.cost]).words
        basis = "" if row.done or not row.cost.measured else row.cost.basis
        named = [row.cell.dataset, row.cell.spec.text, str(row.cell.seed), row.key or "-"]
        lines.append([*named, *cost, basis])
    left = [row for row in rows if not row.done]
    total = f"{counted(len(rows), 'cell')}, {len(rows) - len(left)} done"
    table = aligned(lines, left=(0, 1, 3, 7))
    return "\n".join([*table, total, *notes([row.cost for row in left], model)])


def _sentence(left: Sequence[Row], model: CostModel) -> str:
    """Return the cost of all cells that are to be done."""
    total = Total.of(row.cost for row in left)
    text = f"{total.words[0]} images, {total.words[1]} FLOPs"
    if total.seconds is not None:
        text += f", {total.time} on one {model.device}"
    if model.device != CPU:
        on_cpu = model.on_cpu
        here = Total.of(on_cpu.estimate(row.cell) for row in left)
        text += "" if here.seconds is None else f", {here.time} of one process on a CPU"
    return text


def _grouped(rows: Sequence[Row], key: Callable[[Row], tuple[str, ...]]) -> Groups:
    groups: Groups = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def _table(names: list[str], groups: Groups, model: CostModel) -> str:
    cells = [[*names, "cells", "done", "images", "FLOPs", "a cell", f"all on {model.device}"]]
    for group, rows in list(groups.items())[:SCREEN]:
        left = [row for row in rows if not row.done]
        counts = [str(len(rows)), str(len(rows) - len(left))]
        cells.append([*group, *counts, *(_cost(left) if left else ["-"] * 4)])
    lines = aligned(cells, left=range(len(names)))
    if len(groups) > SCREEN:
        lines.append(f"... and {len(groups) - SCREEN} more; --cells lists every cell")
    return "\n".join(lines)


def _cost(left: Sequence[Row]) -> list[str]:
    """Return images, FLOPs, the longest time of a cell and the time of all."""
    images, flops, time = Total.of(row.cost for row in left).words
    longest = max(left, key=lambda row: row.cost.seconds or 0.0)
    return [images, flops, Total.of([longest.cost]).time, time]


def notes(costs: Iterable[Estimate], model: CostModel) -> list[str]:
    """Return what the times are based on."""
    found, device = list(costs), model.device
    told = []
    guessed = {cost.basis for cost in found if not cost.measured and cost.seconds is not None}
    for basis in guessed:
        told += [
            f"{device}: {basis},",
            "with images loaded fast enough; all passes of the backbone are counted.",
            "--on names another GPU; gcdbench doctor measures this machine.",
        ]
    if any(cost.measured for cost in found):
        told.append(f"{device}: from records made on it, of the same method if there are any.")
    for basis in {cost.basis for cost in found if cost.seconds is None}:
        told.append(f"?: {basis}.")
    return told
