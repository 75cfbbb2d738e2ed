"""The paper's printed numbers, and which of them a measured number is compared with."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "paper"
TOLERANCE = 0.05  # points; each of All, Old and New is printed with one decimal
_MAIN = ("ssb_c.csv", "domainnet.csv")
# names in suites and records -> name in the paper
_ALIASES = {
    "cars-c": "scars-c",
    "stanford-cars-c": "scars-c",
    "aircraft-c": "fgvc-c",
    "fgvc-aircraft-c": "fgvc-c",
    "speckle_noise": "speckle",
}


@dataclass(frozen=True)
class Published:
    """A number of the paper."""

    accuracy: float  # percent, as printed
    table: str  # the paper's LaTeX label
    impossible: bool  # All does not lie between Old and New, so the triple cannot be right


def find(dataset: str, method: str, evaluated: str, role: str, split: str) -> Published | None:
    """Return the paper's number for a spec on an evaluation set of a dataset, if it has one.

    >>> find("cub-c", "hilo", "corrupted", "shifted", "All").accuracy
    52.0
    """
    name = normal_name(dataset)
    domain = _source_domain(name) if role == "source" else normal_name(evaluated)
    for row in _rows_of().get(_sorted_changes(method), ()):
        number = _numbers().get((name, *row, domain, split))
        if number is not None:
            return number
    return _reported().get((name, method, split)) if role == "source" else None


@dataclass(frozen=True)
class Triple:
    """All, Old and New of one row of a table of the paper on one evaluation set."""

    dataset: str  # as suites name it
    method: str
    variant: str
    domain: str  # as records name it: corrupted, painting, fog, ...
    title: str  # of the domain, as printed
    values: dict[str, float]  # by split, in percent
    impossible: bool


@cache
def triples(name: str) -> tuple[Triple, ...]:
    """Return the numbers of one file, in the order in which the paper prints them.

    >>> triples("ncdd")[0].values
    {'All': 19.3, 'Old': 22.0, 'New': 15.4}
    """
    found: dict[tuple[str, str, str, str], dict[str, float]] = {}
    titles: dict[str, str] = {}
    for row in _read(FOLDER / f"{name}.csv"):
        found.setdefault(_place(row), {})[row["split"]] = float(row["acc"])
        titles[normal_name(row["eval_domain"])] = row["eval_domain"]
    return tuple(
        Triple(*place, titles[place[-1]], values, _impossible(values))
        for place, values in found.items()
    )


def title(method: str) -> str | None:
    """Return the paper's name of a method that it has, given without techniques."""
    rows = _rows_of().get(method, ())
    return rows[0][0] if rows else None


def order() -> list[str]:
    """Return the methods (specs without techniques) in the order of the paper's rows."""
    return [name for name in _rows_of() if not re.search("[+-]", name)]


def dataset_title(dataset: str) -> str | None:
    """Return the paper's name of a dataset of a suite that it has."""
    return _titles().get(normal_name(dataset))


@cache
def _rows_of() -> dict[str, list[tuple[str, str]]]:
    """Rows of the paper (method, variant) by spec."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for row in _read(FOLDER / "names.csv"):
        key = _sorted_changes(row["spec"])
        rows.setdefault(key, []).append((row["method"], row["variant"]))
    return rows


@cache
def _numbers() -> dict[tuple[str, str, str, str, str], Published]:
    """Published numbers by dataset, method, variant, evaluated domain and split."""
    triples: dict[tuple[str, ...], dict[str, float]] = {}
    for row in _accuracies():
        triple = (row["table"], *_place(row))
        triples.setdefault(triple, {})[row["split"]] = float(row["acc"])
    found: dict[tuple[str, str, str, str, str], Published] = {}
    for (table, dataset, method, variant, domain), values in triples.items():
        flag = _impossible(values)
        for split, value in values.items():
            key = (dataset, method, variant, domain, split)
            found.setdefault(key, Published(value, table, flag))
    return found


@cache
def _reported() -> dict[tuple[str, str, str], Published]:
    """Numbers that authors of newer methods report, by dataset without a shift, method and split.

    Where they report several, those with the given number of classes.
    """
    names = {"cub": "cub", "cars": "scars", "aircraft": "fgvc"}
    return {
        (names[row["dataset"]], row["method"], split): Published(
            float(row[split.lower()]), row["source"], False
        )
        for row in _read(FOLDER / "published_methods.csv")
        if row["classes"] != "estimated"
        for split in ("All", "Old", "New")
    }


@cache
def _titles() -> dict[str, str]:
    return {_paper_dataset(row): _printed_dataset(row) for row in _accuracies()}


def _accuracies() -> Iterator[dict[str, str]]:
    # a number that several tables print is taken from its main table
    paths = sorted(FOLDER.glob("*.csv"), key=lambda path: (path.name not in _MAIN, path.name))
    for path in paths:
        rows = _read(path)
        if rows and "acc" in rows[0]:
            yield from rows


def _read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _place(row: dict[str, str]) -> tuple[str, str, str, str]:
    return _paper_dataset(row), row["method"], row["variant"], normal_name(row["eval_domain"])


def _paper_dataset(row: dict[str, str]) -> str:
    """Return a dataset's name in suites: DomainNet's are named by the domains trained on."""
    return normal_name(_printed_dataset(row))


def _printed_dataset(row: dict[str, str]) -> str:
    return row["train_domains"] if row["dataset"] == "DomainNet" else row["dataset"]


def _source_domain(dataset: str) -> str:
    return dataset.split("+")[0] if "+" in dataset else "original"


def _impossible(values: dict[str, float]) -> bool:
    low, high = sorted((values["Old"], values["New"]))
    return not low - TOLERANCE - 1e-9 <= values["All"] <= high + TOLERANCE + 1e-9


def normal_name(name: str) -> str:
    """Return the common name of a dataset or domain, whose names differ in suites and the paper.

    >>> normal_name("Speckle"), normal_name("speckle_noise"), normal_name("Real+Painting")
    ('speckle', 'speckle', 'real+painting')
    """
    plain = name.strip().lower().replace(" ", "_")
    return _ALIASES.get(plain, plain)


def _sorted_changes(spec: str) -> str:
    """Return a spec with its techniques sorted."""
    method, *changes = re.split(r"(?=[+-])", spec)
    return method + "".join(sorted(changes))


@cache
def references() -> dict[str, dict[str, str]]:
    """Return author, title, note (where it appeared) and year of the papers of methods."""
    with (FOLDER / "references.csv").open(newline="", encoding="utf-8") as file:
        return {
            row["method"]: {
                "author": row["authors"],
                "title": row["title"],
                "note": row["venue"],
                "year": row["year"],
            }
            for row in csv.DictReader(file)
        }
