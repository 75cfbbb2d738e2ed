"""Classes that are chosen by name: the project's own, and those of installed packages.

Launchers and trackers are such classes. Methods, techniques and datasets are not: their settings
are read without importing them (``gcdbench.core.registry``).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gcdbench.core.registry import ENDINGS, entry_points
from gcdbench.errors import UserError, unknown


@dataclass(frozen=True)
class Extensions:
    """The classes of one kind; packages add theirs through the entry-point group."""

    kind: str  # as in the flag of the command line
    own: Mapping[str, str]  # name -> location of the class, which is imported when it is used

    @property
    def group(self) -> str:
        """Return the name of the entry-point group."""
        return f"gcdbench.{self.kind}s"

    def names(self) -> list[str]:
        """Return the names of all classes, those of installed packages included."""
        return sorted({*self.own, *(point.name for point in entry_points(self.group))})

    def load(self, name: str) -> Any:
        """Return the class of a name; one of a package that fails in any way is a UserError."""
        if name in self.own:
            module, _, attribute = self.own[name].partition(":")
            return getattr(importlib.import_module(module), attribute)
        for point in entry_points(self.group):
            if point.name == name:
                try:
                    return point.load()
                except ENDINGS as error:
                    raise UserError(
                        f"--{self.kind} {name}: {point.value} cannot be loaded "
                        f"({type(error).__name__}: {error})"
                    ) from error
        raise unknown(self.kind, name, self.names())
