"""Splits as files: path, class and roles of every image, for other code bases and from them."""

from __future__ import annotations

import csv
import io
import json
import posixpath
from collections.abc import Iterable, Iterator, Sequence
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
# other code bases' names of the columns that are needed, if the first one is not there
NEEDED = {
    "path": ("path", "image_path", "file_path", "filepath", "filename", "file", "image", "img"),
    "class": ("class", "class_name", "category", "species", "target", "label"),
    "role": ("role", "roles", "split", "set", "subset"),
}
SPELLINGS = {"labeled": "labelled", "unlabeled": "unlabelled"}


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
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{path}: cannot be read as a split ({reason})") from error
    is_json = text.lstrip().startswith(("{", "["))
    rows = [_row(path, *entry) for entry in (_from_json if is_json else _from_csv)(path, text)]
    if not rows:
        raise UserError(f"{path}: no image is listed there; a split has path, class and role")
    return rows


def _from_csv(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    lines = text.splitlines()
    if not lines:
        return
    mark = next((mark for mark in ("\t", ",", ";") if mark in lines[0]), ",")
    reader = csv.DictReader(lines, delimiter=mark, skipinitialspace=True)
    reader.fieldnames = _columns(path, "line 1", reader.fieldnames or ())
    for entry in reader:
        if None in entry:
            raise UserError(f"{path}, line {reader.line_num}: more values than there are columns")
        if any(value for value in entry.values()):
            yield f"line {reader.line_num}", entry


def _from_json(path: Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        read = json.loads(text)
        images = _json_images(read) if isinstance(read, dict) else read
        entries = [dict(entry) for entry in images]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not a split in JSON, a list of objects with path, class and role ({error})"
        ) from error
    for number, entry in enumerate(entries, start=1):
        place = f"image {number}"
        yield place, dict(zip(_columns(path, place, entry), entry.values(), strict=True))


def _json_images(read: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the images of an object: its list of images, its columns, or a list for each role."""
    if "images" in read:
        return read["images"]
    if set(map(str.lower, read)) <= {*ROLES, *SPELLINGS}:
        return [{**entry, "role": role} for role, some in read.items() for entry in some]
    columns = {k: list(v.values()) if isinstance(v, dict) else v for k, v in read.items()}
    table = zip(*columns.values(), strict=True)  # as pandas writes it
    return [dict(zip(columns, values, strict=True)) for values in table]


def _columns(path: Path, place: str, names: Iterable[Any]) -> list[str]:
    """Return the names of columns as they are here; raise a UserError if one is not there."""
    found = [str(name).strip().lower().replace(" ", "_") for name in names]
    for name, others in NEEDED.items():
        there = next((other for other in others if other in found), None)
        if there is None:
            listed = ", ".join(map(repr, found)) or "nothing"
            raise UserError(
                f"{path}, {place}: no column {name!r} among {listed}; a split has path, class and "
                "role"
            )
        found[found.index(there)] = name
    return found


def _row(path: Path, place: str, entry: dict[str, Any]) -> SplitRow:
    roles = [SPELLINGS.get(role.lower(), role.lower()) for role in _words(entry.get("role"))]
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
        path=_posix(str(entry["path"]).strip()),
        name=str(entry["class"]).strip(),
        roles=tuple(roles),
        sets=tuple(sets),
        label=None if label in (None, "") else int(str(label)),
        old=None if old in (None, "") else str(old).lower() in ("1", "true", "yes"),
        id=str(entry.get("id") or ""),
    )


def _posix(path: str) -> str:
    r"""Return a path in one spelling, so that no image is there twice.

    >>> _posix("./photo//ant/1.jpg"), _posix(r"photo\ant\1.jpg")
    ('photo/ant/1.jpg', 'photo/ant/1.jpg')
    """
    return posixpath.normpath(path if "/" in path else path.replace("\\", "/"))


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
