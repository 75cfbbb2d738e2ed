"""Dataclasses as JSON: every field is checked when they are read.

Fields with a default may be missing. A class may keep what is no field of its own in one of its
fields, a mapping: then it names that field in ``rest``. How a type is read is found out once, since
results folders may hold ten thousand records.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")
Reader = Callable[[Any], Any]


class Mismatch(ValueError):
    """JSON that does not have the form of a class; the message says where."""


class _Wrong(Exception):
    """A value of the wrong form; every level that it passes adds its name to the path."""

    def __init__(self, text: str, path: str = "") -> None:
        self.text, self.path = text, path

    def below(self, name: str) -> _Wrong:
        self.path = name + self.path
        return self


def decode(kind: Any, value: Any, where: str) -> Any:
    """Return a JSON value as the annotated type, or say what is wrong with it."""
    try:
        return _reader(kind)(value)
    except _Wrong as wrong:
        raise Mismatch(f"{where}{wrong.path} {wrong.text}".lstrip(".")) from None


def make(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Make a dataclass of JSON values; fields with a default may be missing."""
    return typing.cast("T", decode(cls, values, where))


@cache
def _reader(kind: Any) -> Reader:
    """Return the function that reads and checks a type."""
    if dataclasses.is_dataclass(kind):
        return _of_class(typing.cast("type[Any]", kind))
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return _optional(_reader(inner[0]))
    if origin in (tuple, Sequence):
        return _of_items(_reader(inner[0]))
    if origin is Mapping:
        return _as_mapping if inner[1] is Any else _of_values(_reader(inner[1]))
    return _number if kind is float else _of_kind(kind)


def _of_class(cls: type[Any]) -> Reader:
    kinds: dict[str, Any] = types_of(cls)  # type: ignore[arg-type]  # classes are hashable
    readers = {name: _reader(kind) for name, kind in kinds.items()}
    required = _required(cls)  # type: ignore[arg-type]
    rest: str = getattr(cls, "rest", "")
    of_rest = _reader(typing.get_args(kinds[rest])[1]) if rest else None
    readers.pop(rest, None)

    def read(value: Any) -> Any:
        found: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for name, one in _as_mapping(value).items():
            try:
                if name in readers:
                    found[name] = readers[name](one)
                elif of_rest is not None:
                    others[name] = of_rest(one)
                else:
                    raise _Wrong("is not known")
            except _Wrong as wrong:
                raise wrong.below(f".{name}") from None
        for name in required:
            if name not in found:
                raise _Wrong("is missing", f".{name}")
        return cls(**found, **{rest: others}) if rest else cls(**found)

    return read


def _optional(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def _of_items(read: Reader) -> Reader:
    def read_all(value: Any) -> Any:
        if not isinstance(value, (list, tuple)):
            raise _Wrong("is not a list")
        place = 0
        try:
            found = []
            for place, one in enumerate(value):  # noqa: B007  # named if it is wrong
                found.append(read(one))
        except _Wrong as wrong:
            raise wrong.below(f"[{place}]") from None
        return tuple(found)

    return read_all


def _of_values(read: Reader) -> Reader:
    def read_all(value: Any) -> Any:
        found = _as_mapping(value)
        name = ""
        try:
            for name, one in found.items():
                found[name] = read(one)
        except _Wrong as wrong:
            raise wrong.below(f".{name}") from None
        return found

    return read_all


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise _Wrong("is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _Wrong(f"is {number}, which is not a finite number")
    return number


def _of_kind(kind: type) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise _Wrong(f"is not {_WORDS[kind]}")
        return value

    return read


_WORDS = {int: "a whole number", str: "a text", bool: "true or false"}


def _as_mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _Wrong("is missing" if value is None else "is not a mapping")
    return dict(value)


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Return a value that must be a mapping."""
    found: dict[str, Any] = decode(Mapping[str, Any], value, where)
    return found


@cache
def types_of(cls: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields; resolving the annotations takes its time."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


@cache
def _required(cls: type) -> list[str]:
    missing = dataclasses.MISSING
    every = dataclasses.fields(cls)
    return [f.name for f in every if f.default is missing and f.default_factory is missing]


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
