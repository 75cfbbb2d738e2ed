"""Build the page from a leaderboard."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from gcdbench import __version__
from gcdbench.report.collect import SPLITS
from gcdbench.report.columns import (
    AGAINST_PAPER,
    FURTHER_ON_PAGE,
    number,
    p_value,
    shown_in,
    signed,
    standing_columns,
)
from gcdbench.report.formats.markdown import conditions
from gcdbench.report.further_scores import CLASSES
from gcdbench.report.leaderboard import Leaderboard, Number
from gcdbench.report.page import figures
from gcdbench.report.page.data import as_script, page_data
from gcdbench.report.statistics import Comparison
from gcdbench.report.titles import dataset_title, method_title, set_title

TEMPLATES = Path(__file__).resolve().parent / "templates"


@dataclass(frozen=True)
class SetColumn:
    """An evaluation set of a dataset, as a column of the leaderboard."""

    dataset: str
    set: str
    role: str


def page(leaderboard: Leaderboard, *, command: str = "", home: str = "") -> str:
    """Return the whole page; the same records give the same bytes. ``home`` leads to its site."""
    data = page_data(leaderboard)
    return render(
        "page.html.j2",
        **_table(leaderboard),
        css=raw("page.css"),
        js=raw("page.js"),
        colours=Markup(figures.styles(leaderboard)),
        data=Markup(as_script(data)),
        problems=data["problems"],
        figures=figures.figures(leaderboard),
        facts=_facts(leaderboard),
        matrix=_matrix(leaderboard),
        further=_further(leaderboard),
        further_columns=shown_in("page", FURTHER_ON_PAGE),
        published=leaderboard.published(),
        against_paper=shown_in("page", AGAINST_PAPER),
        conditions=conditions(leaderboard.collection.records),
        command=command,
        home=home,
        version=__version__,
    )


def render(template: str, **values: Any) -> str:
    """Return a filled-in template."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "method": method_title,
        "dataset": dataset_title,
        "set": set_title,
        "signed": signed,
        "number": number,
        "p": p_value,
    }
    environment.tests["unknown"] = math.isnan
    return environment.get_template(template).render(**values)


def _table(leaderboard: Leaderboard) -> dict[str, Any]:
    columns = [
        SetColumn(dataset, name, role)
        for dataset in leaderboard.collection.datasets
        for name, role in leaderboard.sets_of(dataset)
    ]
    spans = {
        d: len(leaderboard.sets_of(d))
        for d in leaderboard.collection.datasets
        if leaderboard.sets_of(d)
    }
    overall = shown_in("page", standing_columns(leaderboard))
    return {
        "leaderboard": leaderboard,
        "columns": columns,
        "spans": spans,
        "standing_columns": overall,
        "splits": SPLITS,
        "kinds": figures.class_of(leaderboard),
        "numbers": _triples(leaderboard, columns),
        "means": {
            (method, role): [_mean(leaderboard, method, role, split) for split in SPLITS]
            for method in (one.method for one in leaderboard.table_rows)
            for role in (column.role for column in overall if column.role)
        },
        "longest": _longest(leaderboard),
    }


def _triples(
    leaderboard: Leaderboard, columns: Iterable[SetColumn]
) -> dict[tuple[str, str, str], list[Number]]:
    """Return All, Old and New by method, dataset and set."""
    return {
        (method, column.dataset, column.set): [
            leaderboard.lookup[column.dataset, column.set, split, method] for split in SPLITS
        ]
        for method in (one.method for one in leaderboard.table_rows)
        for column in columns
    }


def _further(leaderboard: Leaderboard) -> list[dict[str, Number]]:
    """Return the numbers by split of all sets and methods for which further scores are known."""
    return [
        {split: leaderboard.lookup[one.dataset, one.set, split, one.method] for split in SPLITS}
        for one in leaderboard.numbers
        if one.split == SPLITS[0] and one.further.keys() - set(CLASSES)
    ]


def _mean(leaderboard: Leaderboard, method: str, role: str, split: str) -> float:
    """Return the mean over datasets of the mean over a role's sets; NaN if one is missing."""
    by_dataset = []
    for dataset in leaderboard.collection.datasets:
        sets = [name for name, other in leaderboard.sets_of(dataset) if other == role]
        values = [leaderboard.lookup[dataset, name, split, method].mean for name in sets]
        if values:
            by_dataset.append(sum(values) / len(values))
    return sum(by_dataset) / len(by_dataset) if by_dataset else math.nan


def _longest(leaderboard: Leaderboard) -> int:
    """Return the end of the scale on which intervals are drawn, a multiple of ten."""
    ends = [max(one.means[leaderboard.role], one.interval.high) for one in leaderboard.table_rows]
    return 10 * math.ceil(max((end for end in ends if not math.isnan(end)), default=10) / 10)


def _matrix(leaderboard: Leaderboard) -> dict[tuple[str, str], tuple[Comparison, int]]:
    """Return the comparison of each pair of methods in both orders, with its sign (1 or -1)."""
    found = {}
    for one in leaderboard.comparisons:
        found[one.first, one.second] = one, 1
        found[one.second, one.first] = one, -1
    return found


def _facts(leaderboard: Leaderboard) -> list[tuple[str, str]]:
    """Return names and values of the facts at the top of the page."""
    collection = leaderboard.collection
    planned, missing = len(collection.planned), len(collection.missing)
    seeds = sorted({place.seed for place in collection.planned})
    made = [record.provenance for record in collection.records]
    commits = {one.git.commit[:10] for one in made if one.git is not None}
    versions = {one.versions.get("gcdbench", "") for one in made}
    devices = {one.device for one in made}
    return [
        ("methods", str(len(leaderboard.methods))),
        ("datasets", str(len(collection.datasets))),
        ("seeds", _seeds(seeds)),
        ("cells", f"{planned - missing} of {planned} recorded" if missing else str(planned)),
        ("measured with", ", ".join(conditions(leaderboard.collection.records))),
        ("gcdbench", _join(versions) + (f" ({_join(commits)})" if commits else "")),
        ("device", _join(devices)),
    ]  # fmt: skip


def _seeds(seeds: list[int]) -> str:
    many = len(seeds) > 2 and seeds == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}–{seeds[-1]}" if many else ", ".join(map(str, seeds))


def _join(values: Iterable[str]) -> str:
    return ", ".join(sorted(filter(None, values)))


def raw(name: str) -> Markup:
    """Return the content of a file next to the templates, not to be escaped."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))
