"""Which record answers for which cell: by its key, or by all that makes the key but the code."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from gcdbench.core import registry
from gcdbench.core.settings import BackboneConfig, TaskConfig, TrainConfig
from gcdbench.experiment.plan import Cell
from gcdbench.experiment.record import Record
from gcdbench.experiment.records import flat


def is_of(record: Record, cell: Cell) -> bool:
    """Tell whether a record is that of a cell: the key and all that it was made of are the same."""
    if record.key != cell.key or record.fingerprints != cell.fingerprints():
        return False
    settings = cell.settings()
    return record.settings == settings or record.settings == json.loads(json.dumps(settings))


def same_data(record: Record, cell: Cell, *, any_code: bool) -> bool:
    """Tell whether split and weights are the same, and the code unless any will do."""
    wanted, found = cell.fingerprints(), dict(record.fingerprints)
    if any_code:
        found["code"] = wanted["code"]
    return found == wanted


def differing(record: Record, cell: Cell, *, any_code: bool) -> set[str]:
    """Return the settings, by their paths, in which a record differs from a cell.

    If it may be of any code, settings that the present code does not have do not count, nor those
    that were added since and have their default in the cell.
    """
    old, new = flat(record.settings), flat(json.loads(json.dumps(cell.settings())))
    names = {name for name in old.keys() | new.keys() if old.get(name) != new.get(name)}
    if any_code:
        names = {n for n in names if n in new and (n in old or not _is_default(cell, n, new[n]))}
    return names


def _is_default(cell: Cell, path: str, value: Any) -> bool:
    """Tell whether a setting has the default that its class gives it."""
    section, _, name = path.rpartition(".")
    configs: dict[str, Any] = {
        "train": TrainConfig,
        "backbone": BackboneConfig,
        "task": TaskConfig,
        f"source.{cell.source}": registry.get("dataset", cell.source).config,
        f"config.{cell.spec.method}": registry.get("method", cell.spec.method).config,
    }
    for technique in cell.spec.techniques:
        configs[f"config.{technique}"] = registry.get("technique", technique).config
    fields = dataclasses.fields(configs[section]) if section in configs else ()
    usual = [field for field in fields if field.name == name]
    return any(_plain(field.default) == value for field in usual)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
