"""Datasets, one file each; gcdbench.core.registry finds them by their file names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gcdbench.core import registry
from gcdbench.core.config import build
from gcdbench.data.problem import Dataset
from gcdbench.errors import UserError


def make_dataset(
    plugin: str, root: Path | None, config: Mapping[str, Any] | None = None, *, where: str = ""
) -> Dataset:
    """Return a dataset with its default settings or those of a suite; ``where`` is for errors."""
    cls: Any = registry.load("dataset", plugin)
    where = where or f"dataset {plugin}"
    built = build(cls.Config, config or {}, where)
    for name, value in vars(built).items():
        if name.endswith("_share") and not 0 < value <= 1:
            raise UserError(f"{where}: {name} is {value}; it is above 0 and at most 1")
    return cls(built, root)
