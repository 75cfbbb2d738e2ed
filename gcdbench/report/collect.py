"""From records to one tidy table; what cannot be trusted is named and left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from gcdbench import records
from gcdbench.errors import UserError
from gcdbench.plan import Cell, Request, Spelling, Suite, make_cells

COLUMNS = ["dataset", "method", "seed", "set", "role", "split", "accuracy"]


@dataclass
class Collection:
    """The records of a request, and what was left out."""

    table: pd.DataFrame  # one row per record, evaluation set and split; accuracies in percent
    records: list[dict[str, Any]] = field(default_factory=list)
    missing: list[Cell] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # sentences: damaged, stale


def collect(request: Request, results: Path) -> Collection:
    """Read the records of exactly the requested cells; all recorded methods if none is named."""
    found = list(records.read_all(results))
    sound = [r for _, r in found if not isinstance(r, records.Damaged)]
    left_out = [f"{r.path} {r.reason}" for _, r in found if isinstance(r, records.Damaged)]
    if not request.methods:
        request = _with_recorded_methods(request, sound)
    cells = {cell.key: cell for cell in make_cells(request)}
    by_key = {record["key"]: record for record in sound}
    chosen = [by_key[key] for key in cells if key in by_key]
    wanted = {(c.dataset, c.spelling.text, c.seed): c for c in cells.values()}
    for path, record in found:
        if isinstance(record, records.Damaged) or record["key"] in cells:
            continue
        if cell := wanted.get((record["dataset"], record["method"], record["seed"])):
            left_out.append(f"{path} is of another version ({differences(record, cell)})")
    return Collection(
        table=_tidy(chosen),
        records=chosen,
        missing=[cell for key, cell in cells.items() if key not in by_key],
        left_out=left_out,
    )


def differences(record: dict[str, Any], cell: Cell) -> str:
    """Say what distinguishes a record from the cell of the same name."""
    reasons = [
        f"{name} changed"
        for name, value in cell.fingerprints().items()
        if record["fingerprints"].get(name) != value
    ]
    old, new = _flat(record["settings"]), _flat(cell.settings())
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            reasons.append(f"{name} {old.get(name)} instead of {new.get(name)}")
    return ", ".join(reasons)


def _flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(settings, dict):
        return {prefix: settings}
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _with_recorded_methods(request: Request, sound: Sequence[dict[str, Any]]) -> Request:
    datasets = Suite.load(request.suite).datasets
    spellings = sorted({r["method"] for r in sound if r["dataset"] in datasets})
    known = []
    for text in spellings:
        try:
            known.append(Spelling.parse(text).text)
        except UserError:  # a plug-in that is not here now
            continue
    if not known:
        raise UserError(
            f"no records of suite {request.suite} were found; "
            f"make some with: gcdbench run --suite {request.suite}"
        )
    fields = {**request.__dict__, "methods": tuple(known)}
    return Request(**fields)


def _tidy(chosen: Sequence[dict[str, Any]]) -> pd.DataFrame:
    rows = [
        {
            "dataset": record["dataset"],
            "method": record["method"],
            "seed": record["seed"],
            "set": name,
            "role": scores["role"],
            "split": split.capitalize(),
            "accuracy": float("nan") if scores[split] is None else 100 * scores[split],
        }
        for record in chosen
        for name, scores in _reported(record).items()
        for split in ("all", "old", "new")
    ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _reported(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the sets of a leaderboard: source, shifted domains, and the means of the others."""
    sets = {n: s for n, s in record["sets"].items() if s["role"] != "unseen" and "/" not in n}
    for name, role in (("corrupted", "shifted"), ("others", "unseen")):
        if name in record["summary"]:
            sets[name] = {"role": role, **record["summary"][name]}
    return sets
