"""Tables of the paper as data: rows x datasets x columns, and their cells.

A table is a YAML file in benchmarks/paper (its README says how one is written). Cells are those of
the ordinary plan: two tables that ask for the same experiment share the cell, and nothing is
trained twice. Nothing here imports torch or needs a dataset.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

from gcdbench.core.config import check_keys, load_yaml, merge
from gcdbench.core.method_spec import MethodSpec
from gcdbench.core.paths import bundled
from gcdbench.core.suites import Suite
from gcdbench.errors import UserError, unknown
from gcdbench.experiment.plan import Cell, Request, make_cells

FOLDER = bundled("benchmarks") / "paper"
SCALES = ("paper", "embedded")
# evaluation sets that can be columns; shifted is the mean over corruptions if there are any
COLUMNS = ("source", "shifted", "others", "unseen", "corruptions")
SPLITS = ("All", "Old", "New")
_TABLE_KEYS = {
    *("title", "label", "note", "paper", "variant", "variants", "columns", "splits", "seeds"),
    *("panels", "rows", "cost", "compare"),
}
_PANEL_KEYS = {"suite", "datasets", "mean", "paper", "rows"}
_ROW_KEYS = {"method", "paper", "set", "embedded"}


@dataclass(frozen=True)
class Row:
    """A line of a table: a method under some settings."""

    name: str
    spec: str
    paper: tuple[str, str]  # method and variant in the paper's numbers
    settings: Mapping[str, Mapping[str, Any]]
    embedded: Mapping[str, Mapping[str, Any]] | None  # settings there; None: not there


@dataclass(frozen=True)
class Panel:
    """A block of columns: a dataset, or the mean over several."""

    title: str
    paper: str  # the dataset's name in the paper's numbers
    suite: str
    datasets: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Table:
    """A table or figure of the paper."""

    name: str
    title: str
    label: str  # in the paper
    note: str
    paper: tuple[str, ...]  # files of the paper's numbers; none for a figure
    columns: tuple[str, ...]
    splits: tuple[str, ...]
    seeds: tuple[int, ...]
    panels: tuple[Panel, ...]
    cost: bool = False  # whether the table shows the time of a cell
    compare: bool = False  # whether rows are compared with the first one of their method


@dataclass(frozen=True)
class Entry:
    """A row in a panel, with its cells by seed: one of each dataset that is averaged."""

    row: Row
    panel: Panel
    cells: Mapping[int, tuple[Cell, ...]]


@dataclass(frozen=True)
class Plan:
    """A table with its cells."""

    table: Table
    scale: str
    entries: list[Entry] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # what has no counterpart at this scale

    @property
    def cells(self) -> dict[str, Cell]:
        """All distinct cells by their identity."""
        return distinct(c for e in self.entries for cells in e.cells.values() for c in cells)


@dataclass(frozen=True)
class Choice:
    """What the command line changes in a table."""

    scale: Literal["paper", "embedded"] = "paper"
    datasets: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    assignments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quick: bool = False
    data_root: Path | None = None


def tables() -> dict[str, Path]:
    """Tables of the project by name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.yaml"))}


def identity(cell: Cell) -> str:
    """Return the settings of a cell as text, which identify the experiment.

    Unlike the key this needs no data on disk. Cells of equal settings have equal keys: the rest of
    a key (data, weights, code) is a function of the settings.
    """
    return json.dumps(cell.settings(), sort_keys=True)


def distinct(cells: Iterable[Cell]) -> dict[str, Cell]:
    """Return cells without repetition, by their identity."""
    return {identity(cell): cell for cell in cells}


def load(name: str) -> Table:
    """Read a table of the project by name, or a user's by the path of its YAML file."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else tables().get(name)
    if path is None:
        raise unknown("table", name, tables())
    data = load_yaml(path)
    check_keys(data, _TABLE_KEYS, str(path), needed=("title", "panels"))
    columns = tuple(data.get("columns", ("source", "shifted")))
    for column in columns:
        if column not in COLUMNS:
            raise unknown("column", column, COLUMNS, str(path))
    files = data.get("paper", ())
    return Table(
        name=path.stem,
        title=data["title"],
        label=str(data.get("label", "")),
        note=str(data.get("note", "")).strip(),
        paper=(files,) if isinstance(files, str) else tuple(files),
        columns=columns,
        splits=tuple(data.get("splits", SPLITS)),
        seeds=tuple(data.get("seeds", (0, 1, 2))),  # the paper averages three runs
        panels=tuple(p for entry in data["panels"] for p in _panels(entry, data, path)),
        cost=bool(data.get("cost", False)),
        compare=bool(data.get("compare", False)),
    )


def _panels(entry: Mapping[str, Any], table: Mapping[str, Any], path: Path) -> list[Panel]:
    """Read a part of the list of panels: one panel for each dataset, or one for their mean."""
    check_keys(entry, _PANEL_KEYS, f"{path}: panels", needed=("suite",))
    suite = _suite(str(entry["suite"]))
    datasets = tuple(entry.get("datasets", Suite.load(suite).datasets))
    rows = tuple(_rows(entry.get("rows", table.get("rows", {})), table, path))
    if not rows:
        raise UserError(f"{path}: a table needs 'rows', its own or in every panel")
    if "mean" in entry:
        title = str(entry["mean"])
        return [Panel(title, entry.get("paper", title), suite, datasets, rows)]
    return [Panel(name, entry.get("paper", name), suite, (name,), rows) for name in datasets]


def _rows(rows: Mapping[str, Any], table: Mapping[str, Any], path: Path) -> Iterable[Row]:
    """Read rows, each under every variant if the table has variants."""
    variants = table.get("variants") or {None: {}}
    for name, entry in rows.items():
        check_keys(entry, _ROW_KEYS, f"{path}: rows.{name}", needed=("method",))
        for variant, change in variants.items():
            check_keys(change, {"set", "embedded"}, f"{path}: variants.{variant}")
            default = table.get("variant", "") if variant is None else variant
            printed = entry.get("paper", name)
            both = (printed, default) if isinstance(printed, str) else tuple(printed)
            parts = [part.get("embedded", {}) for part in (entry, change)]
            yield Row(
                name=str(name) if variant is None else f"{name}, {variant}",
                spec=str(entry["method"]),
                paper=(str(both[0]), str(both[1])),
                settings=merge(entry.get("set", {}), change.get("set", {})),
                embedded=None if False in parts else merge(*parts),
            )


def make_plans(chosen: Iterable[Table], choice: Choice) -> list[Plan]:
    """Return the cells of tables, on the paper's datasets or on the embedded ones."""
    chosen = list(chosen)
    _check_choice(chosen, choice)
    return [make_plan(table, choice) for table in chosen]


def make_plan(table: Table, choice: Choice) -> Plan:
    """Return the cells of one table."""
    plan, seen = Plan(table, choice.scale), set()
    for original in table.panels:
        panel = at_scale(original, choice.scale)
        if panel is None:
            plan.left_out.append(f"{original.title}: nothing stands for it at this scale")
        elif panel.datasets in seen and choice.scale != "paper":
            plan.left_out.append(f"{original.title}: {panel.title} stands for another one already")
        elif not choice.datasets or set(panel.datasets) & set(choice.datasets):
            seen.add(panel.datasets)
            for row in panel.rows:
                plan.entries.append(Entry(row, panel, _cells(table, panel, row, choice)))
    if choice.scale == "embedded":
        absent = {r.name: r for p in table.panels for r in p.rows if r.embedded is None}
        plan.left_out.extend(f"{name}: only on the paper's datasets" for name in absent)
    return plan


def at_scale(panel: Panel, scale: str) -> Panel | None:
    """Return a panel, or its replacement on the embedded suites; None if there is none."""
    known = stand_ins()
    own = [[panel.suite, name] for name in panel.datasets]
    if scale == "paper" or all(pair in known.values() for pair in own):
        return panel
    pairs = [known[name] for name in panel.datasets if name in known]
    if not pairs:
        return None
    names = tuple(dict.fromkeys(name for _, name in pairs))
    rows = tuple(row for row in panel.rows if row.embedded is not None)
    return Panel(" and ".join(names), "", _suite(pairs[0][0]), names, rows)


@cache
def stand_ins() -> dict[str, list[str]]:
    """Return suite and dataset on the embedded drawings for each dataset of the paper."""
    return load_yaml(FOLDER / "suites" / "stand_ins.yaml")


def _suite(name: str) -> str:
    """Return a suite's name or path; files are searched in the folder of the tables."""
    return str(FOLDER / name) if (FOLDER / name).is_file() else name


def _cells(table: Table, panel: Panel, row: Row, choice: Choice) -> dict[int, tuple[Cell, ...]]:
    settings = row.settings
    if choice.scale == "embedded":
        settings = merge(settings, row.embedded or {})
    used = _sections([row])
    given = {part: values for part, values in choice.assignments.items() if part in used}
    request = Request(
        suite=panel.suite,
        methods=(row.spec,),
        datasets=panel.datasets,
        seeds=choice.seeds or table.seeds,
        assignments=merge(settings, given),
        quick=choice.quick,
        data_root=choice.data_root,
    )
    by_seed: dict[int, tuple[Cell, ...]] = {}
    for cell in make_cells(request):
        named = replace(cell, note=row.name) if settings else cell
        by_seed[cell.seed] = (*by_seed.get(cell.seed, ()), named)
    return by_seed


def _check_choice(chosen: Iterable[Table], choice: Choice) -> None:
    """Refuse datasets and settings that no row of the tables has: they would do nothing."""
    panels = [at_scale(panel, choice.scale) for table in chosen for panel in table.panels]
    there = [panel for panel in panels if panel is not None]
    known = dict.fromkeys(name for panel in there for name in panel.datasets)
    for name in choice.datasets:
        if name not in known:
            raise unknown("dataset", name, known)
    used = _sections(row for panel in there for row in panel.rows)
    for section in choice.assignments:
        if section not in used:
            raise unknown("section", section, used, "--set")


def _sections(rows: Iterable[Row]) -> set[str]:
    used = {"train", "backbone", "task"}
    for row in rows:
        spec = MethodSpec.parse(row.spec)
        used |= {spec.method, *spec.techniques}
    return used
