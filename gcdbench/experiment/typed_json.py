"""Dataclasses as JSON: every field is checked when they are read.

Fields with a default may be missing. A class may have a form of its own: then it has ``from_json``
and ``to_json``.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


class Mismatch(ValueError):
    """JSON that does not have the form of a class; the message says where."""


def decode(kind: Any, value: Any, where: str) -> Any:
    """Return a JSON value as the annotated type, or say what is wrong with it."""
    if hasattr(kind, "from_json"):
        return kind.from_json(value, where)
    if dataclasses.is_dataclass(kind):
        return make(typing.cast("type[Any]", kind), mapping(value, where), where)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if value is None else decode(inner[0], value, where)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise Mismatch(f"{where} is not a list")
        return tuple(decode(inner[0], one, f"{where}[{i}]") for i, one in enumerate(value))
    if origin is Mapping:
        given = mapping(value, where)
        if inner[1] is Any:
            return given
        return {name: decode(inner[1], one, f"{where}.{name}") for name, one in given.items()}
    return _scalar(kind, value, where)


def _scalar(kind: type, value: Any, where: str) -> Any:
    if kind is float and type(value) in (int, float):
        if not math.isfinite(value):
            raise Mismatch(f"{where} is {value}, which is not a finite number")
        return float(value)
    if type(value) is not kind:
        raise Mismatch(f"{where} is not {_WORDS[kind]}")
    return value


_WORDS = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}


def make(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make a dataclass of JSON values; fields with a default may be missing."""
    start = f"{where}." if where else ""
    kinds = _types(cls)  # type: ignore[arg-type]  # classes are hashable
    for name in values:
        if name not in kinds:
            raise Mismatch(f"{start}{name} is not known")
    for name in _required(cls):  # type: ignore[arg-type]
        if name not in values:
            raise Mismatch(f"{start}{name} is missing")
    return cls(**{n: decode(kinds[n], value, f"{start}{n}") for n, value in values.items()})


@cache
def _types(cls: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields; resolving the annotations takes its time."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


@cache
def _required(cls: type) -> list[str]:
    missing = dataclasses.MISSING
    every = dataclasses.fields(cls)
    return [f.name for f in every if f.default is missing and f.default_factory is missing]


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Return a value that must be a mapping."""
    if not isinstance(value, Mapping):
        raise Mismatch(f"{where} is {'missing' if value is None else 'not a mapping'}")
    return dict(value)


def encode(value: Any) -> Any:
    """Return a value made of dataclasses, mappings and sequences as JSON values."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if dataclasses.is_dataclass(value):
        return encode_fields(value)
    if isinstance(value, Mapping):
        return {name: encode(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(one) for one in value]
    return value


def encode_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass; what there is none of is left out."""
    required = _required(type(value))  # type: ignore[arg-type]
    values = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return {n: encode(v) for n, v in values.items() if n in required or v not in (None, {})}


def without_nan(value: Any) -> Any:
    """Replace NaN by None: JSON has no NaN."""
    if isinstance(value, Mapping):
        return {name: without_nan(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_nan(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value
