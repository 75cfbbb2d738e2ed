"""Collect records that differ from the requested cells in one setting only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from gcdbench.errors import UserError, unknown
from gcdbench.experiment import records
from gcdbench.experiment.plan import Cell, Request, make_cells
from gcdbench.report.collect import tidy


@dataclass(frozen=True)
class Varied:
    """Records by the value of a setting."""

    setting: str  # as ``--set`` names it
    defaults: Mapping[str, Any]  # the value that the request gives all methods, by dataset
    table: pd.DataFrame  # as of a collection, with a column ``value``


def collect_varied(request: Request, results: Path, setting: str) -> Varied:
    """Read the records that differ from the request at most in the value of one setting."""
    cells = {(c.dataset, c.spec.text, c.seed): c for c in make_cells(request)}
    path = _path(setting, next(iter(cells.values())))
    tables = []
    for _, record in records.read_all(results):
        if isinstance(record, records.Damaged):
            continue
        cell = cells.get((record["dataset"], record["method"], record["seed"]))
        if cell is not None and _differs_only_in(path, record, cell):
            value = _value(record["settings"], record["problem"], path)
            tables.append(tidy([record]).assign(value=value))
    if not tables:
        raise UserError(f"sensitivity: no record of these cells was found in {results}")
    return Varied(setting, _defaults(cells.values(), path), pd.concat(tables, ignore_index=True))


def _defaults(cells: Iterable[Cell], path: str) -> dict[str, Any]:
    """Return the value of a setting by dataset, if all methods have the same."""
    found: dict[str, set[Any]] = {}
    for cell in cells:
        found.setdefault(cell.dataset, set()).add(_value(cell.settings(), _facts(cell), path))
    return {dataset: values.pop() for dataset, values in found.items() if len(values) == 1}


def _facts(cell: Cell) -> dict[str, Any]:
    problem = cell.problem()
    return {"num_classes": problem.num_classes, "num_old": problem.num_old}


def _path(setting: str, cell: Cell) -> str:
    """Return the path of a setting in a record: ``hilo.k`` is ``config.hilo.k``."""
    known = records.flat(cell.settings())
    for path in (setting, f"config.{setting}"):
        if path in known:
            return path
    names = [name.removeprefix("config.") for name in known]
    raise unknown("setting", setting, names, "--over")


def _value(settings: Mapping[str, Any], problem: Mapping[str, Any], path: str) -> Any:
    """Return a setting's value; if it is None, as for the number of classes, the dataset's."""
    value = records.flat(settings)[path]
    if value is None:
        value = problem.get(path.rpartition(".")[2])
    return str(value) if isinstance(value, list) or value is None else value


def _differs_only_in(path: str, record: Mapping[str, Any], cell: Cell) -> bool:
    old, new = records.flat(record["settings"]), records.flat(cell.settings())
    differing = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    return differing <= {path} and record["fingerprints"] == cell.fingerprints()
