"""Typed configuration: frozen dataclasses filled from YAML and ``--set``.

Unknown keys and wrong types are refused, and the message says where they are. YAML is read by the
rules of YAML 1.2 where versions 1.1 and 1.2 differ: ``1e-3`` is a number, ``no`` is a word,
``010`` is ten. A key that is given twice is an error.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

import yaml

from gcdbench.errors import UserError, unknown

T = TypeVar("T")


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2 scalars and without silent duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key, mark = self.construct_object(key_node, deep=True), key_node.start_mark
            if not isinstance(key, Hashable):
                raise yaml.MarkedYAMLError(problem="a key must be a word", problem_mark=mark)
            if key in seen:
                raise UserError(f"{mark.name}, line {mark.line + 1}: key {key!r} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|false|True|False", "tfTF"),
    ("null", r"null|~|", "n~\0"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
        "-+.0123456789",
    ),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), [*_first, ""]
    )
_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))


def parse_yaml(text: str, where: str) -> Any:
    """Read YAML text; ``where`` names it in errors."""
    try:
        loader = _Loader(text)  # refuses control characters
        loader.name = where
        return loader.get_single_data()
    except UserError:
        raise
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{where}{line}: not valid YAML ({error.problem})") from error
    except RecursionError as error:
        raise UserError(f"{where}: not valid YAML (nested too deeply)") from error
    except Exception as error:  # a value that is not what its tag says fails in many ways
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{where}: not valid YAML ({reason})") from error


def load_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds one mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    data = parse_yaml(text, str(path))
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a mapping of keys to values at the top level")
    return data


def check_keys(data: Any, known: Iterable[str], where: str, needed: Iterable[str] = ()) -> None:
    """Raise a UserError unless ``data`` is a mapping with known keys and all needed ones."""
    if not isinstance(data, Mapping):
        raise UserError(f"{where}: expected a mapping")
    for key in data:
        if key not in known:
            raise unknown("key", str(key), known, where)
    for key in needed:
        if key not in data:
            raise UserError(f"{where}: the key {key!r} is missing")


def parse_assignments(assignments: typing.Iterable[str]) -> dict[str, dict[str, Any]]:
    """Turn ``--set`` arguments into ``{section: {key: value}}``.

    >>> parse_assignments(["train.lr=1e-3", "hilo.preset=released"])
    {'train': {'lr': 0.001}, 'hilo': {'preset': 'released'}}
    """
    sections: dict[str, dict[str, Any]] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key):
            raise UserError(f"--set {text!r}: write section.key=value, for example train.lr=0.05")
        if key in sections.setdefault(section, {}):
            raise UserError(f"--set {name.strip()} is given twice")
        sections[section][key] = parse_yaml(value, f"--set {name.strip()}")
    return sections


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge mappings into a new one, nested mappings too; later values win."""
    out: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
            out[key] = merge(out[key], value) if both else value
    return out


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make a config dataclass from plain values, checking every key and type.

    A class with a field ``preset`` may name sets of values in ``presets`` (name -> key -> value):
    those of the chosen preset replace the defaults, and ``values`` override both.
    """
    types_ = _types(cls)  # type: ignore[arg-type]  # classes are hashable
    for key in values:
        if key not in types_:
            raise unknown("key", str(key), types_, where)
    values = {**_preset(cls, values), **values}
    given = {key: coerce(value, types_[key], f"{where}.{key}") for key, value in values.items()}
    required = [
        f.name
        for f in dataclasses.fields(cls)  # type: ignore[arg-type]
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    for name in required:
        if name not in given:
            raise UserError(f"{where}: the key {name!r} is missing")
    try:
        return cls(**given)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{where}: {error}") from error


@functools.cache
def _types(cls: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields; cached, because resolving annotations is slow."""
    hints = typing.get_type_hints(cls, localns=vars(typing))
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _preset(cls: type, values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of the chosen preset; an unknown name is refused later, by its type."""
    name = values.get("preset", getattr(cls, "preset", None))
    presets: Mapping[str, Mapping[str, Any]] = getattr(cls, "presets", {})
    return presets.get(str(name), {})


def coerce(value: Any, kind: Any, where: str) -> Any:
    """Return the value converted to the annotated type, or raise a UserError."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        if value in args:
            return value
        raise UserError(f"{where}: expected one of {', '.join(map(str, args))}, got {value!r}")
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        return coerce(value, next(a for a in args if a is not type(None)), where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise UserError(f"{where}: expected a list, got {value!r}")
        return tuple(coerce(v, args[0], f"{where}[{i}]") for i, v in enumerate(value))
    if kind is Any or (isinstance(value, bool) and kind is bool):
        return value
    if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise UserError(f"{where}: the number is too large") from error
    if kind in (int, str) and isinstance(value, kind) and not isinstance(value, bool):
        return value
    expected = {float: "a number", int: "a whole number", bool: "true or false", str: "a word"}
    raise UserError(f"{where}: expected {expected.get(kind, kind)}, got {value!r}")


def plain(config: Any) -> dict[str, Any]:
    """Return a config dataclass as a mapping that JSON can hold."""
    return {
        f.name: list(v) if isinstance(v := getattr(config, f.name), tuple) else v
        for f in dataclasses.fields(config)
    }
