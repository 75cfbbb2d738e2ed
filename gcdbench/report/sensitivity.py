"""Collect records that differ from the requested cells in one setting only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from gcdbench.errors import UserError, unknown
from gcdbench.experiment import records
from gcdbench.experiment.index import Index
from gcdbench.experiment.plan import Cell, Request, make_cells
from gcdbench.report.collect import Judge, Verdicts, tidy
from gcdbench.report.matching import differing, same_data


@dataclass(frozen=True)
class Varied:
    """Records by the value of a setting."""

    setting: str  # as ``--set`` names it
    defaults: Mapping[str, Any]  # the value that the request gives all methods, by dataset
    table: pd.DataFrame  # as of a collection, with a column ``value``


def collect_varied(
    request: Request,
    results: Path,
    setting: str,
    *,
    any_code: bool = False,
    judge: Judge | None = None,
) -> Varied:
    """Read the records that would be the request's but for the value of one setting.

    ``judge`` computes the scores of a record again: records with other scores are left out.
    """
    cells = {(c.dataset, c.spec.text, c.seed): c for c in make_cells(request)}
    path = _path(setting, next(iter(cells.values())))
    tables = []
    with Index(results) as index:
        verdicts = Verdicts(index, judge) if judge else None
        for place, record in index.all():
            if isinstance(record, records.Damaged):
                continue
            cell = cells.get((record.dataset, record.method, record.seed))
            if cell is None or not same_data(record, cell, any_code=any_code):
                continue
            if not differing(record, cell, any_code=any_code) <= {path}:
                continue
            if verdicts is None or verdicts.of(place, record, cell).kind != "wrong":
                value = _value(record.settings, record.problem.num_classes, path)
                tables.append(tidy([record]).assign(value=value))
    if not tables:
        raise UserError(f"sensitivity: no record of these cells was found in {results}")
    return Varied(setting, _defaults(cells.values(), path), pd.concat(tables, ignore_index=True))


def _defaults(cells: Iterable[Cell], path: str) -> dict[str, Any]:
    """Return the value of a setting by dataset, if all methods have the same."""
    found: dict[str, set[Any]] = {}
    for cell in cells:
        value = _value(cell.settings(), cell.problem().num_classes, path)
        found.setdefault(cell.dataset, set()).add(value)
    return {dataset: values.pop() for dataset, values in found.items() if len(values) == 1}


def _path(setting: str, cell: Cell) -> str:
    """Return the path of a setting in a record: ``hilo.k`` is ``config.hilo.k``."""
    known = records.flat(cell.settings())
    for path in (setting, f"config.{setting}"):
        if path in known:
            return path
    names = [name.removeprefix("config.") for name in known]
    raise unknown("setting", setting, names, "--over")


def _value(settings: Mapping[str, Any], num_classes: int, path: str) -> Any:
    """Return a setting's value; a number of classes that is not set is that of the data."""
    value = records.flat(settings)[path]
    if value is None and path == "task.num_classes":
        value = num_classes
    return str(value) if isinstance(value, list) or value is None else value
