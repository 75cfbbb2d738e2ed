"""Tables in the paper's layout: a line as printed, a line as measured, and the difference."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from gcdbench.paper_tables.results import Block, Line, Number, Result
from gcdbench.report.columns import DASH, number, signed
from gcdbench.report.formats.data import no_formula
from gcdbench.report.formats.markdown import conditions
from gcdbench.report.titles import dataset_title, set_title

_FIELDS = (
    *("table", "scale", "dataset", "row", "method", "set", "split"),
    *("measured", "std", "seeds", "planned", "paper", "delta", "impossible", "cpu_seconds"),
)


def markdown(result: Result) -> str:
    """Return a table as Markdown with aligned columns, readable in a terminal."""
    table, plan = result.plan.table, result.plan
    parts = [f"# {table.name}: {table.title}", _about(result)]
    for block in result.blocks:
        parts += [f"## {dataset_title(block.panel.title)}", _block(block, cost=table.cost)]
    if result.differences:
        parts += ["## Differences", _compared(result)]
    numbers = [n for b in result.blocks for line in b.lines for n in line.numbers.values()]
    if any(one.impossible for one in numbers):
        parts.append("† As printed, All does not lie between Old and New: one of them is wrong.")
    if plan.left_out:
        parts.append("Left out:\n\n" + "\n".join(f"- {reason}" for reason in plan.left_out))
    if result.recorded:
        parts.append(f"Measured with {', '.join(conditions(result.recorded))}.")
    return "\n\n".join(parts) + "\n"


def to_csv(result: Result) -> str:
    """Return a table as CSV, one row per number; what is missing has empty fields."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(_FIELDS)
    for block in result.blocks:
        for line in block.lines:
            entry = line.entry
            place = (result.plan.table.name, result.plan.scale, block.panel.title, entry.row.name)
            for (name, split), one in line.numbers.items():
                measured = [_field(one.mean), _field(one.std), line.seeds, len(entry.cells)]
                paper = [_field(one.paper), _field(one.delta), one.impossible]
                words = map(no_formula, (*place, entry.row.spec, name, split))
                writer.writerow([*words, *measured, *paper, _field(line.cpu_seconds)])
    return buffer.getvalue()


def _field(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4f}"


def _about(result: Result) -> str:
    """Return a few sentences on what the table shows."""
    table, plan = result.plan.table, result.plan
    text = "Clustering accuracy in percent"
    if any(len(entry.cells) > 1 for entry in plan.entries):
        text += ", mean ± standard deviation over seeds"
    text += f". {len(result.recorded)} of {len(plan.cells)} cells are recorded."
    if plan.scale == "embedded" and table.paper:
        text += (
            " These are the paper's rows, named as there, on the embedded drawings: other data,"
            " another backbone, shorter training. The paper's numbers do not apply there."
        )
    elif table.label and not table.paper:
        text += f" The paper ({table.label}) prints no numbers for it."
    elif table.label:
        text += f" The paper's are from {table.label}."
    return f"{text} {table.note}".strip()


def _block(block: Block, *, cost: bool) -> str:
    if not block.columns:
        names = "\n".join(f"- {line.entry.row.name}" for line in block.lines)
        return f"Nothing is recorded yet of\n\n{names}"
    keys = list(block.lines[0].numbers)
    head = ["", ""]
    for name, split in keys:
        first = split == keys[0][1]
        head.append(f"{block.columns[name]} {split}" if first else split)
    rows = [row for line in block.lines for row in _lines(line, cost=cost)]
    head += ["CPU s per cell"] * cost
    if all(row[1] == "measured" for row in rows):  # the kind of row need not be shown
        return _aligned(head[1:], [[row[0], *row[2:]] for row in rows], left=1)
    return _aligned(head, rows, left=2)


def _compared(result: Result) -> str:
    """Return the differences between rows of one method as a table, with what they are."""
    about = (
        "All of a row minus All of the first row of its method on equal seeds, mean ± standard "
        "deviation in points; p of a paired t-test over seeds, corrected by Holm for all "
        f"{len(result.differences)} differences."
    )
    rows = [
        [
            f"{one.row} - {one.first}",
            dataset_title(one.panel),
            set_title(one.set),
            str(one.seeds),
            f"{signed(one.mean)} ± {one.std:.1f}",
            f"{one.p:.2g}",
        ]
        for one in result.differences
    ]
    head = ["", "dataset", "set", "seeds", "difference", "p"]
    return f"{about}\n\n{_aligned(head, rows, left=3)}"


def _lines(line: Line, *, cost: bool) -> list[list[str]]:
    """Return the lines of a row: paper, measured and difference, as far as known."""
    numbers = list(line.numbers.values())
    printed = any(not math.isnan(one.paper) for one in numbers)
    planned = len(line.entry.cells)
    some = "" if line.seeds in (0, planned) else f" ({line.seeds} of {planned} seeds)"
    rows = []
    if printed:
        rows.append(["paper", *(_as_printed(one) for one in numbers)])
    if line.seeds or not printed:
        rows.append([f"measured{some}", *(number(one.mean, one.std) for one in numbers)])
    if line.seeds and printed:
        rows.append(["difference", *(signed(one.delta) for one in numbers)])
    if cost:
        time = DASH if math.isnan(line.cpu_seconds) else f"{line.cpu_seconds:.0f}"
        rows = [[*row, time if row[0].startswith("measured") else ""] for row in rows]
    return [[line.entry.row.name if i == 0 else "", *row] for i, row in enumerate(rows)]


def _as_printed(one: Number) -> str:
    return DASH if math.isnan(one.paper) else f"{one.paper:.1f}" + " †" * one.impossible


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> str:
    """Return a Markdown table with aligned columns."""
    widths = [max(3, *(len(row[i]) for row in (head, *rows))) for i in range(len(head))]
    rule = ["-" * w if i < left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "\n".join(
        "| "
        + " | ".join(
            cell.ljust(w) if i < left else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in (head, rule, *rows)
    )
