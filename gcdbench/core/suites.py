"""Suites: YAML files that name datasets and the settings that differ from the defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gcdbench.core import registry
from gcdbench.core.config import check_keys, coerce, load_yaml, merge
from gcdbench.core.names import OWN, check_name
from gcdbench.core.paths import bundled
from gcdbench.errors import UserError, unknown

_SECTIONS = {"train", "backbone", "task", "methods", "techniques"}
_SUITE_KEYS = _SECTIONS | {
    *("description", "homepage", "seeds", "datasets", "default_methods", "quick", "extends"),
}
_DATASET_KEYS = _SECTIONS | {"source", "config", "limit", "exclude"}
_QUICK_KEYS = _SECTIONS | {"limit"}
_PRESET_KEYS = {"train", "backbone", "config", "techniques"}
_METHOD_KEYS = {"train", "backbone", "config", "presets"}


def suites() -> dict[str, Path]:
    """Return the project's suites by name."""
    return {path.stem: path for path in sorted(bundled("benchmarks").glob("*.yaml"))}


@dataclass(frozen=True)
class Suite:
    """A named list of datasets with the settings that differ from the defaults."""

    name: str
    data: dict[str, Any]
    named: tuple[tuple[str, str, str], ...] = ()  # place, kind and name of what it has settings for

    @classmethod
    def load(cls, name: str, *, extended_by: tuple[Path, ...] = ()) -> Suite:
        """Read a suite of the project by name, or a user's by the path of its YAML file."""
        path = Path(name) if name.endswith((".yaml", ".yml")) else suites().get(name)
        if path is None:
            raise unknown("suite", name, suites())
        data = dict(_read(path, _stamp(path)))
        check_keys(data, _SUITE_KEYS, str(path))
        if not isinstance(data.get("datasets"), dict) or not data["datasets"]:
            raise UserError(f"{path}: a suite needs a mapping 'datasets' with at least one entry")
        named = [*_check_suite(data, path)]
        for entry in data["datasets"].values():
            if "exclude" in entry:  # next to the suite
                entry["exclude"] = str(path.parent / Path(entry["exclude"]).expanduser())
        if "extends" in data:
            if path.resolve() in extended_by:
                raise UserError(f"{path}: extends: the suites extend each other in a loop")
            chain = (*extended_by, path.resolve())
            base = cls.load(str(data["extends"]), extended_by=chain)
            inherited = {key: base.data[key] for key in base.data if key in _SECTIONS | {"quick"}}
            data = merge(inherited, data)
            named += base.named
        return cls(check_name(path.stem, f"--suite {path}"), data, tuple(named))

    @property
    def description(self) -> str:
        """One line on what the suite is."""
        return str(self.data.get("description", "")).strip()

    @property
    def datasets(self) -> dict[str, dict[str, Any]]:
        """Settings by dataset name."""
        return dict(self.data["datasets"])

    def check_names(self) -> None:
        """Raise a UserError for settings of unknown methods and techniques: they have no effect."""
        for where, kind, name in self.named:
            if not registry.exists(kind, name):  # a broken one is reported when it is used
                raise unknown(kind, name, registry.available(kind), where)


@cache
def _read(path: Path, stamp: tuple[int, int] | None) -> Mapping[str, Any]:
    """Read a suite's file; one command does so once, whoever asks."""
    return load_yaml(path)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file does, or None if there is none."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_mtime_ns, facts.st_size


def _check_suite(data: Mapping[str, Any], path: Path) -> Iterator[tuple[str, str, str]]:
    """Check the types of all that a suite's file holds; yield what it has settings for."""
    for key in ("description", "homepage", "extends"):
        coerce(data.get(key, ""), str, f"{path}: {key}")
    for key, kind in (("seeds", tuple[int, ...]), ("default_methods", tuple[str, ...])):
        if key in data and not coerce(data[key], kind, f"{path}: {key}"):
            raise UserError(f"{path}: {key} needs at least one entry")
    yield from _check_settings(data, f"{path}: ")
    quick = data.get("quick", {})
    check_keys(quick, _QUICK_KEYS, f"{path}: quick")
    yield from _check_settings(quick, f"{path}: quick.")
    for dataset, entry in data["datasets"].items():
        where = f"{path}: datasets.{dataset}"
        coerce(dataset, str, f"{path}: a dataset's name")
        check_name(dataset, f"{path}: datasets", own=OWN)
        check_keys(entry, _DATASET_KEYS, where)
        if "source" not in entry:
            raise UserError(f"{where} needs a 'source'")
        coerce(entry["source"], str, f"{where}.source")
        coerce(entry.get("exclude", ""), str, f"{where}.exclude")
        _check_mapping(entry.get("config", {}), f"{where}.config")
        yield from _check_settings(entry, f"{where}.")


def _check_settings(data: Mapping[str, Any], place: str) -> Iterator[tuple[str, str, str]]:
    """Check what a suite, a dataset and ``quick`` may all set; ``place`` comes before a key."""
    for section in sorted(_SECTIONS):
        _check_mapping(data.get(section, {}), f"{place}{section}")
    for method, entry in data.get("methods", {}).items():
        check_keys(entry, _METHOD_KEYS, f"{place}methods.{method}")
        for key, values in entry.items():
            _check_mapping(values, f"{place}methods.{method}.{key}")
        yield f"{place}methods", "method", str(method)
        for name, preset in entry.get("presets", {}).items():
            where = f"{place}methods.{method}.presets.{name}"
            check_keys(preset, _PRESET_KEYS, where)
            for key, values in preset.items():
                _check_mapping(values, f"{where}.{key}")
            yield from _check_techniques(preset, f"{where}.")
    yield from _check_techniques(data, place)
    limit = coerce(data.get("limit"), int | None, f"{place}limit")
    if limit is not None and limit < 1:
        raise UserError(f"{place}limit: expected at least 1, got {limit}")


def _check_techniques(data: Mapping[str, Any], place: str) -> Iterator[tuple[str, str, str]]:
    """Check the settings of techniques."""
    for technique, entry in data.get("techniques", {}).items():
        _check_mapping(entry, f"{place}techniques.{technique}")
        yield f"{place}techniques", "technique", str(technique)


def _check_mapping(value: Any, where: str) -> None:
    """Raise a UserError unless the value is a mapping with words as keys."""
    if not isinstance(value, Mapping):
        raise UserError(f"{where}: expected a mapping of keys to values, got {value!r}")
