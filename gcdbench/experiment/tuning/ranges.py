"""The settings that are searched, and their ranges: literals next to each method's defaults.

A method or technique has an attribute ``tuning``, a mapping from a setting to its range. A setting
of its own Config has no dot; others are named as in ``--set`` (``train.lr``). A range is one of

- ``("log", low, high)`` or ``("uniform", low, high)``: a number;
- ``("integer", low, high)``: a whole number, both ends included;
- ``("choice", a, b, ...)``: one of these values;
- ``("times", a, b, ...)``: the default, times one of these.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gcdbench.core import registry
from gcdbench.core.method_spec import MethodSpec
from gcdbench.core.settings import TrainConfig
from gcdbench.errors import UserError

# what every method has, unless its own ranges say otherwise
COMMON: dict[str, Any] = {
    "train.lr": ("log", 0.01, 0.2),  # 0.1 is published for most; HiLo's paper searches 0.1 to 0.01
    "train.epochs": ("times", 0.5, 1, 2),
}
KINDS = ("log", "uniform", "integer", "choice", "times")


@dataclass(frozen=True)
class Range:
    """The range of one setting."""

    section: str
    name: str
    kind: str
    values: tuple[Any, ...]

    @property
    def key(self) -> str:
        """The setting as ``--set`` names it."""
        return f"{self.section}.{self.name}"

    def at(self, share: float, default: Any) -> Any:
        """Return the value at a place of the range, from 0 to 1 (not included).

        >>> Range("train", "lr", "log", (0.01, 1.0)).at(0.5, None)
        0.1
        >>> Range("train", "epochs", "times", (0.5, 1, 2)).at(0.9, 15)
        30
        """
        if self.kind in ("choice", "times"):
            chosen = self.values[int(share * len(self.values))]
            return self.scaled(chosen, default) if self.kind == "times" else chosen
        low, high = self.values
        if self.kind == "integer":
            return int(low) + int(share * (int(high) - int(low) + 1))
        if self.kind == "log":
            return _rounded(math.exp(math.log(low) + share * (math.log(high) - math.log(low))))
        return _rounded(low + share * (high - low))

    @staticmethod
    def scaled(factor: float, default: Any) -> Any:
        """Return the default times a factor, whole and at least 1 if the default is whole."""
        return max(1, round(factor * default)) if isinstance(default, int) else factor * default


def _rounded(value: float) -> float:
    """Return a number with three digits, which is what a paper can print."""
    return float(f"{value:.3g}")


def ranges_of(spec: MethodSpec, fixed: Mapping[str, Mapping[str, Any]]) -> list[Range]:
    """Return the ranges of a method and its techniques, without settings that are fixed."""
    found: dict[str, Range] = {}
    method = registry.get("method", spec.method)
    for key, given in {**COMMON, **_tuning(method)}.items():
        one = _range(method, key, given)
        found[one.key] = one
    for name in spec.techniques:
        technique = registry.get("technique", name)
        for key, given in _tuning(technique).items():
            one = _range(technique, key, given)
            found[one.key] = one
    free = [one for one in found.values() if one.name not in fixed.get(one.section, {})]
    if not free:
        raise UserError(f"{spec.text}: --set fixes all settings that could be searched")
    return sorted(free, key=lambda one: one.key)


def _tuning(info: registry.PluginInfo) -> dict[str, Any]:
    given = info.constants.get("tuning", {})
    if not isinstance(given, dict):
        raise UserError(f"{info.path}: tuning must be a mapping from settings to ranges")
    return given


def _range(info: registry.PluginInfo, key: str, given: Any) -> Range:
    where = f"{info.path}: tuning, {key}"
    section, _, name = key.rpartition(".")
    section = section or info.name
    configs = {"train": TrainConfig, info.name: info.config}
    known = {f.name for f in dataclasses.fields(configs[section])} if section in configs else set()
    if name not in known:
        raise UserError(f"{where}: there is no such setting")
    if not isinstance(given, (list, tuple)) or len(given) < 2 or given[0] not in KINDS:
        raise UserError(f"{where}: a range is a kind ({', '.join(KINDS)}) and its values")
    kind, values = str(given[0]), tuple(given[1:])
    if kind in ("log", "uniform", "integer"):
        numbers = [v for v in values if isinstance(v, (int, float)) and math.isfinite(v)]
        if len(numbers) != 2 or len(values) != 2 or not values[0] < values[1]:
            raise UserError(f"{where}: give two numbers, the lower one first")
        if kind == "log" and values[0] <= 0:
            raise UserError(f"{where}: a range of kind log lies above 0")
    return Range(section, name, kind, values)
