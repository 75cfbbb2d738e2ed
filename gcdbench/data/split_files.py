"""Splits as files: path, class and roles of every image, for other code bases and from them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gcdbench.data.problem import Problem
from gcdbench.errors import UserError

VERSION = 1  # of the format
ROLES = ("labelled", "unlabelled", "scored")
SET_ROLES = ("source", "shifted", "unseen", "validation")
COLUMNS = ("path", "class", "role", "sets", "label", "old", "id")
NEEDED = ("path", "class", "role")


@dataclass(frozen=True)
class SplitRow:
    """An image of a split."""

    path: str  # below the data root
    name: str  # of its class
    roles: tuple[str, ...]  # some of ROLES
    sets: tuple[str, ...] = ()  # evaluation sets in which it is scored, as name=role
    label: int | None = None  # number of its class, old ones first
    old: bool | None = None  # whether its class is old
    id: str = ""  # the name that gcdbench has for it


def rows_of(problem: Problem, root: Path | None) -> Iterator[SplitRow]:
    """Yield the images that are trained on or scored, in the order of the problem."""
    sets: dict[int, list[str]] = {}
    for name, one in problem.sets.items():
        for row in one.rows.tolist():
            sets.setdefault(row, []).append(f"{name}={one.role}")
    labelled, unlabelled = set(problem.labelled.tolist()), set(problem.unlabelled.tolist())
    for row in sorted({*labelled, *unlabelled, *sets}):
        held = (labelled, unlabelled, sets)
        label = int(problem.labels[row])
        yield SplitRow(
            path=_below(problem.images.place(row), root),
            name=problem.classes[label],
            roles=tuple(role for role, rows in zip(ROLES, held, strict=True) if row in rows),
            sets=tuple(sets.get(row, ())),
            label=label,
            old=label < problem.num_old,
            id=problem.images.ids[row],
        )


def as_csv(problem: Problem, root: Path | None) -> str:
    """Return a split as CSV; several roles or sets of an image are joined by ';'."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows_of(problem, root):
        roles, sets = ";".join(row.roles), ";".join(row.sets)
        writer.writerow([row.path, row.name, roles, sets, row.label, int(bool(row.old)), row.id])
    return file.getvalue()


def as_json(problem: Problem, root: Path | None) -> str:
    """Return a split as JSON, with its classes in order and what it was made from."""
    facts = {
        "format": f"gcdbench split {VERSION}",
        "name": problem.name,
        "fingerprint": problem.fingerprint,
        "notes": problem.notes,
        "classes": list(problem.classes),
        "num_old": problem.num_old,
        "sets": {name: one.role for name, one in problem.sets.items()},
    }
    images = []
    for row in rows_of(problem, root):
        entry = {**asdict(row), "class": row.name}
        del entry["name"]
        images.append(json.dumps(entry))
    head = json.dumps(facts, indent=1).rstrip("}").rstrip()
    return head + ',\n "images": [\n  ' + ",\n  ".join(images) + "\n ]\n}\n"


def read_split(path: Path) -> list[SplitRow]:
    """Read a split of this or another code base; raise a UserError that names the line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as a split ({error})") from error
    entries = _from_json(path, text) if text.lstrip()[:1] in "{[" else _from_csv(path, text)
    rows = [_row(path, place, entry) for place, entry in entries]
    if not rows:
        raise UserError(f"{path}: no image is listed there; a split has path, class and role")
    return rows


def _from_csv(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    lines = text.splitlines()
    kind = csv.excel_tab if lines and "\t" in lines[0] else csv.excel
    reader = csv.DictReader(lines, dialect=kind, skipinitialspace=True)
    names = [name.strip().lower() for name in reader.fieldnames or ()]
    missing = [name for name in NEEDED if name not in names]
    if missing:
        raise UserError(
            f"{path}, line 1: no column {missing[0]!r}; a split has path, class and role"
        )
    reader.fieldnames = names
    for entry in reader:
        if any(value for value in entry.values()):
            yield f"line {reader.line_num}", entry


def _from_json(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        read = json.loads(text)
        images = read["images"] if isinstance(read, dict) else read
        yield from ((f"image {i}", dict(entry)) for i, entry in enumerate(images, start=1))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a split in JSON ({error})") from error


def _row(path: Path, place: str, entry: dict[str, Any]) -> SplitRow:
    roles = _words(entry.get("roles") or entry.get("role"))
    for role in roles or [""]:
        if role not in ROLES:
            raise UserError(f"{path}, {place}: role {role!r} is none of {', '.join(ROLES)}")
    if not entry.get("path") or entry.get("class") in (None, ""):
        raise UserError(f"{path}, {place}: an image needs a path and a class")
    sets = _words(entry.get("sets")) or _words(entry.get("domain"))
    for name in sets:
        if "=" in name and name.partition("=")[2] not in SET_ROLES:
            raise UserError(
                f"{path}, {place}: set {name!r}: write name=role, {', '.join(SET_ROLES)}"
            )
    label, old = entry.get("label"), entry.get("old")
    if label not in (None, "") and not str(label).isdecimal():
        raise UserError(f"{path}, {place}: label {label!r} is no class number")
    return SplitRow(
        path=str(entry["path"]).strip(),
        name=str(entry["class"]).strip(),
        roles=tuple(roles),
        sets=tuple(sets),
        label=None if label in (None, "") else int(str(label)),
        old=None if old in (None, "") else str(old).lower() in ("1", "true", "yes"),
        id=str(entry.get("id") or ""),
    )


def _words(value: Any) -> list[str]:
    if isinstance(value, (list, tuple)):
        return [str(word).strip() for word in value]
    return [word.strip() for word in str(value or "").split(";") if word.strip()]


def class_names(rows: Sequence[SplitRow], path: Path) -> tuple[list[str], int]:
    """Return the classes of a split, old ones first, and how many are old."""
    labels: dict[str, int | None] = {}
    for row in rows:
        if labels.setdefault(row.name, row.label) != row.label:
            raise UserError(f"{path}: class {row.name!r} has two numbers; number each class once")
    old = {row.name for row in rows if row.old or "labelled" in row.roles}
    numbered = all(number is not None for number in labels.values())
    names = sorted(labels, key=lambda name: (name not in old, labels[name] if numbered else name))
    if numbered and len(set(labels.values())) < len(labels):
        raise UserError(f"{path}: two classes have one number; number each class once")
    return names, len(old)


def same_split(left: Problem, right: Problem) -> bool:
    """Tell whether two problems have the same images, classes and roles."""

    def facts(problem: Problem) -> list[Any]:
        rows = (problem.labelled, problem.unlabelled)
        sets = {name: (one.role, one.rows.tolist()) for name, one in problem.sets.items()}
        return [problem.classes, problem.num_old, [r.tolist() for r in rows], sets]

    return facts(left) == facts(right) and np.array_equal(left.labels, right.labels)


def _below(place: str, root: Path | None) -> str:
    path = Path(place)
    if root is not None and path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return place
