"""The numbers of a table: those recorded by its cells, and those printed in the paper."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.experiment.index import Index
from gcdbench.experiment.plan import Cell
from gcdbench.experiment.record import SPLITS as FIELDS
from gcdbench.experiment.record import Record
from gcdbench.paper_tables.differences import Difference, Scores, differences
from gcdbench.paper_tables.tables import SPLITS, Entry, Panel, Plan, identity
from gcdbench.report import paper_numbers
from gcdbench.report.collect import Judge, LeftOut, Verdicts, percent
from gcdbench.report.titles import set_title


@dataclass(frozen=True)
class Number:
    """An accuracy in percent: measured over seeds, and as the paper prints it; NaN if absent."""

    mean: float = math.nan
    std: float = math.nan
    paper: float = math.nan
    impossible: bool = False  # the paper's own All does not lie between its Old and New

    @property
    def delta(self) -> float:
        """Measured minus paper."""
        return self.mean - self.paper


@dataclass(frozen=True)
class Line:
    """A row of a table in one panel."""

    entry: Entry
    seeds: int  # recorded ones
    numbers: dict[tuple[str, str], Number]  # by evaluation set and split
    cpu_seconds: float = math.nan  # median over the recorded cells


@dataclass(frozen=True)
class Block:
    """A panel of a table with its lines."""

    panel: Panel
    columns: dict[str, str]  # evaluation set -> title
    lines: list[Line]


@dataclass(frozen=True)
class Result:
    """A table with its numbers."""

    plan: Plan
    blocks: list[Block]
    recorded: list[Record]  # records that were used
    left_out: list[LeftOut] = field(default_factory=list)  # records with wrong scores
    differences: list[Difference] = field(default_factory=list)  # if the table asks for them

    @property
    def name(self) -> str:
        """How files of the table are called."""
        return self.plan.table.name + ("-embedded" * (self.plan.scale == "embedded"))


def gather(plan: Plan, results: Path, judge: Judge | None = None) -> Result:
    """Return a table with the numbers of its records and of the paper.

    ``judge`` computes the scores of a record again: records with other scores are left out.
    """
    with Index(results) as index:
        verdicts = Verdicts(index, judge) if judge else None
        read = ((key, _read(index, cell, verdicts)) for key, cell in plan.cells.items())
        found = {key: record for key, record in read if record is not None}
    by_panel: dict[str, list[Entry]] = {}
    for entry in plan.entries:
        by_panel.setdefault(entry.panel.title, []).append(entry)
    blocks = [_block(plan, entries, found) for entries in by_panel.values()]
    left_out = verdicts.left_out if verdicts else []
    compared = plan.entries if plan.table.compare else []
    found_differences = differences([(one, _seeds(one, found, plan)) for one in compared])
    return Result(plan, blocks, list(found.values()), left_out, found_differences)


def _read(index: Index, cell: Cell, verdicts: Verdicts | None) -> Record | None:
    try:
        record = records.read_done(index.results, cell, read=index.read)
    except UserError:  # the dataset is missing, so the key is unknown
        return None
    if not isinstance(record, Record):
        return None
    path = records.cell_folder(index.results, cell) / records.RECORD
    wrong = verdicts is not None and verdicts.of(path, record, cell).kind == "wrong"
    return None if wrong else record


def _block(plan: Plan, entries: list[Entry], found: Mapping[str, Record]) -> Block:
    panel, table = entries[0].panel, plan.table
    printed = _printed(plan, panel)
    measured = [list(_seeds(entry, found, plan).values()) for entry in entries]
    columns = {t.domain: t.title for triples in printed.values() for t in triples.values()}
    if not columns:
        names = dict.fromkeys(name for one in measured for scores in one for name in scores)
        columns = {name: set_title(name) for name in names}
    lines = []
    for entry, scores in zip(entries, measured, strict=True):
        paper = printed.get(entry.row.paper, {})
        numbers = {
            (name, split): _number(scores, paper.get(name), name, split)
            for name in columns
            for split in table.splits
        }
        lines.append(Line(entry, len(scores), numbers, _cpu_seconds(entry, found)))
    return Block(panel, columns, lines)


def _printed(plan: Plan, panel: Panel) -> dict[tuple[str, str], dict[str, paper_numbers.Triple]]:
    """Return the paper's numbers of a panel by row (method, variant) and evaluation set."""
    found: dict[tuple[str, str], dict[str, paper_numbers.Triple]] = {}
    if panel.paper:
        for triple in (t for name in plan.table.paper for t in paper_numbers.triples(name)):
            if triple.dataset == panel.paper:
                found.setdefault((triple.method, triple.variant), {})[triple.domain] = triple
    rows = {entry.row.paper for entry in plan.entries if entry.panel == panel}
    return {row: domains for row, domains in found.items() if row in rows}


def _seeds(entry: Entry, found: Mapping[str, Record], plan: Plan) -> dict[int, Scores]:
    """Return the scores of every seed for which all datasets of the panel are recorded."""
    seeds = {}
    for seed, cells in entry.cells.items():
        here = [found[key] for cell in cells if (key := identity(cell)) in found]
        if len(here) == len(cells):
            seeds[seed] = _mean([columns_of(record, plan.table.columns) for record in here])
    return seeds


def _cpu_seconds(entry: Entry, found: Mapping[str, Record]) -> float:
    """Return the median time of the recorded cells of a row."""
    keys = (identity(cell) for cells in entry.cells.values() for cell in cells)
    times = [found[key].timing.cpu_seconds for key in keys if key in found]
    return statistics.median(times) if times else math.nan


def _mean(datasets: list[Scores]) -> Scores:
    """Average the evaluation sets that all datasets have."""
    return {
        name: {
            split: _mean_share([scores[name][split] for scores in datasets])
            for split in map(str.lower, SPLITS)
        }
        for name in datasets[0]
        if all(name in scores for scores in datasets)
    }


def _mean_share(shares: list[float | None]) -> float | None:
    known = [share for share in shares if share is not None]
    return statistics.fmean(known) if len(known) == len(shares) else None


def _number(
    seeds: list[Scores], paper: paper_numbers.Triple | None, name: str, split: str
) -> Number:
    values = [percent(s[name][split.lower()]) for s in seeds if name in s]
    return Number(
        mean=statistics.fmean(values) if values else math.nan,
        std=statistics.stdev(values) if len(values) > 1 else math.nan,
        paper=math.nan if paper is None else paper.values[split],
        impossible=paper is not None and paper.impossible,
    )


def columns_of(record: Record, kinds: Iterable[str]) -> Scores:
    """Return the evaluation sets of a record that make the columns, by the paper's names."""
    sets, summary = record.sets, record.summary
    by_role = {
        role: {n: s for n, s in sets.items() if s.role == role and "/" not in n}
        for role in ("source", "shifted", "unseen")
    }
    corruptions = dict.fromkeys(n.partition("/")[0] for n in sets if "/" in n)
    if corruptions:
        by_role["shifted"]["corrupted"] = summary["corrupted"]
    by_kind = {
        **by_role,
        "others": {"others": summary["others"]} if "others" in summary else {},
        "corruptions": {name: summary[name] for name in corruptions},
    }
    chosen = (item for kind in kinds for item in by_kind[kind].items())
    return {
        paper_numbers.normal_name(name): {split: scores.rate(split) for split in FIELDS}
        for name, scores in chosen
    }
