r"""Leaderboards as LaTeX, laid out like the tables of the field's papers.

Needs \usepackage{booktabs} and \usepackage{graphicx}.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from gcdbench.report.collect import SPLITS
from gcdbench.report.columns import AGAINST_PAPER, Column, shown_in
from gcdbench.report.leaderboard import SMOKE, Leaderboard, Number
from gcdbench.report.titles import dataset_title, method_title, set_title

WIDEST = 18  # number columns: three datasets with two evaluation sets each
_ESCAPES = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "−": "$-$",
}
Block = tuple[str, list[str]]  # a dataset and its evaluation sets


def as_latex(leaderboard: Leaderboard) -> str:
    """Return the leaderboard as LaTeX tables: all numbers, and a comparison with the paper."""
    head = [
        f"% {escape(leaderboard.suite)}: made by gcdbench from its records.",
        r"% Needs \usepackage{booktabs} and \usepackage{graphicx}.",
    ]
    blocks = [(d, [n for n, _ in leaderboard.sets_of(d)]) for d in leaderboard.collection.datasets]
    tables = [_numbers(leaderboard, chunk, part) for part, chunk in enumerate(_chunks(blocks))]
    return "\n".join(head) + "\n" + "\n".join([*tables, *_paper(leaderboard)])


def escape(text: str) -> str:
    """Return plain text with LaTeX's special characters escaped.

    >>> print(escape("50 % of a_b"))
    50 \\% of a\\_b
    """
    shown = "".join(c if c.isprintable() else " " for c in text)  # an empty line ends a caption
    return "".join(_ESCAPES.get(character, character) for character in shown)


def _chunks(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """Yield groups of datasets, each small enough for one table."""
    chunk: list[Block] = []
    for block in blocks:
        if not block[1]:
            continue
        if chunk and _width([*chunk, block]) > WIDEST:
            yield chunk
            chunk = []
        chunk.append(block)
    if chunk:
        yield chunk


def _width(chunk: Sequence[Block]) -> int:
    return sum(len(SPLITS) * len(sets) for _, sets in chunk)


def _numbers(leaderboard: Leaderboard, chunk: Sequence[Block], part: int) -> str:
    columns = [(d, name, split) for d, sets in chunk for name in sets for split in SPLITS]
    datasets = [(escape(dataset_title(d)), len(SPLITS) * len(sets)) for d, sets in chunk]
    sets = [(escape(set_title(name)), len(SPLITS)) for _, names in chunk for name in names]
    lines = [
        rf"\begin{{tabular}}{{l{'c' * len(columns)}}}",
        r"\toprule",
        *_spanning(datasets),
        *_spanning(sets),
        _row(["Methods", *(split for *_, split in columns)]),
        r"\midrule",
    ]
    for method in leaderboard.rows:
        rows = [leaderboard.lookup[(*column, method)] for column in columns]
        lines.append(_row([escape(method_title(method)), *map(_number, rows)]))
    lines += [r"\midrule"] if leaderboard.baselines else []
    for baseline in leaderboard.baselines:
        rows = [leaderboard.lookup[(*column, baseline.method)] for column in columns]
        lines.append(_row([escape(baseline.title), *map(_number, rows)]))
    lines += [r"\bottomrule", r"\end{tabular}"]
    seeds = max(number.planned for number in leaderboard.numbers)
    over = f"mean and (small) standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    caption = (
        f"{escape(leaderboard.suite)}: clustering accuracy (\\%), {over}. "
        f"{SMOKE if leaderboard.smoke else 'Best in bold, second best underlined.'}"
    )
    if any(0 < number.seeds < number.planned for number in leaderboard.numbers):
        caption += r" $^{n/m}$ Only n of m planned seeds are recorded."
    return _table(lines, caption, f"tab:{leaderboard.suite}" + (f"-{part + 1}" if part else ""))


def _paper(leaderboard: Leaderboard) -> list[str]:
    """Return a table of measured and published numbers, if there are any."""
    known = leaderboard.published()
    if not known:
        return []
    columns = shown_in("latex", AGAINST_PAPER)
    groups = [(column.name.capitalize(), len(SPLITS)) for column in columns]
    lines = [
        rf"\begin{{tabular}}{{lll{'c' * len(SPLITS) * len(columns)}}}",
        r"\toprule",
        *_spanning(groups, first=4),
        _row(["Dataset", "Images", "Methods", *SPLITS * len(columns)]),
    ]
    before = None
    for triple in known:
        first = triple[0]
        place = dataset_title(first.dataset), set_title(first.set)
        if place != before:
            lines.append(r"\midrule")
        titles = [*(place if place != before else ("", "")), method_title(first.method)]
        before = place
        cells = [cell for column in columns for cell in _cells(column, triple)]
        lines.append(_row([*map(escape, titles), *cells]))
    lines += [r"\bottomrule", r"\end{tabular}"]
    caption = (
        f"{escape(leaderboard.suite)}: measured and published accuracy (\\%). "
        r"$^\dagger$ As printed, All does not lie between Old and New."
    )
    return [_table(lines, caption, f"tab:{leaderboard.suite}-paper")]


def _spanning(groups: Sequence[tuple[str, int]], first: int = 2) -> list[str]:
    """Return a row of headings over several columns each, with rules below them."""
    cells, rules, start = [""] * (first - 1), [], first
    for title, width in groups:
        cells.append(rf"\multicolumn{{{width}}}{{c}}{{{title}}}")
        rules.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    return [_row(cells), " ".join(rules)]


def _number(row: Number) -> str:
    if math.isnan(row.mean):
        return "--"
    text = f"{row.mean:.1f}"
    if row.is_best:
        text = rf"\textbf{{{text}}}"
    elif row.is_second:
        text = rf"\underline{{{text}}}"
    if not math.isnan(row.std):
        text = rf"{text}\,{{\scriptsize {row.std:.1f}}}"
    return text if row.seeds == row.planned else rf"{text}$^{{{row.seeds}/{row.planned}}}$"


def _cells(column: Column[Number], triple: Sequence[Number]) -> list[str]:
    """Write a column's values for All, Old and New."""
    values = [column.value(number) for number in triple]
    pattern = "${:+.1f}$" if column.format == "difference" else "{:.1f}"
    cells = ["--" if math.isnan(value) else pattern.format(value) for value in values]
    if column.marked is not None and column.marked(triple[0]):
        cells[0] += r"$^\dagger$"
    return cells


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _table(tabular: Sequence[str], caption: str, label: str) -> str:
    lines = [
        r"\begin{table*}[t]",
        r"\centering",
        rf"\caption{{{caption}}}",
        rf"\label{{{re.sub(r'[^A-Za-z0-9:.+-]', '-', label)}}}",
        r"\smallskip",
        r"\setlength{\tabcolsep}{3.5pt}",
        r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}{%",
        *tabular[:-1],
        tabular[-1] + "}",
        r"\end{table*}",
    ]
    return "\n".join(lines) + "\n"
