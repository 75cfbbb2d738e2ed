"""Leaderboards as CSV, JSON and Markdown."""

from __future__ import annotations

import csv as csv_module
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gcdbench.report.collect import SPLITS
from gcdbench.report.leaderboard import ROLES, Board, Number, Standing
from gcdbench.report.statistics import Interval
from gcdbench.report.titles import dataset_title, method_title, set_title

DASH = "–"  # what was not measured
_FIELDS = [field.name for field in dataclasses.fields(Number) if field.name != "compared"]


def csv(board: Board) -> str:
    """Return the leaderboard as CSV, one row per number; what is missing has empty fields."""
    buffer = io.StringIO()
    writer = csv_module.writer(buffer, lineterminator="\n")
    writer.writerow(_FIELDS)
    for one in board.numbers:
        writer.writerow([_field(getattr(one, name)) for name in _FIELDS])
    return buffer.getvalue()


def _field(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.4f}" if isinstance(value, float) else no_formula(str(value))


def no_formula(text: str) -> str:
    """Return a text that spreadsheets do not compute: a quote before what begins a formula.

    >>> no_formula("=1+1"), no_formula("simgcd")
    ("'=1+1", 'simgcd')
    """
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else text


def as_text(text: str) -> str:
    """Return a text of somebody else as Markdown that shows it: no HTML, no new line or column.

    >>> as_text("<b>")
    '&lt;b&gt;'
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("|", "\\|").replace("[", "\\[").replace("`", "'")


def as_json(board: Board) -> str:
    """Return everything that a leaderboard shows, for programs."""
    data = {
        "suite": board.suite,
        "ranked_by": {"role": board.role, "split": "All"},
        "methods": [_standing(one) for one in board.standings],
        "numbers": [{name: getattr(one, name) for name in _FIELDS} for one in board.numbers],
        "comparisons": [one.__dict__ for one in board.comparisons],
        "ranking": None if board.ranking is None else board.ranking.__dict__,
        "caveats": board.caveats,
        "missing": [place._asdict() for place in board.collection.missing],
        "left_out": [one.__dict__ for one in board.collection.left_out],
    }
    return json.dumps(_plain(data), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _standing(one: Standing) -> dict[str, Any]:
    return {**one.__dict__, "title": method_title(one.method)}


def markdown(board: Board) -> str:
    """Return the leaderboard as Markdown."""
    parts = [f"# {board.suite}"]
    if board.collection.description:
        parts.append(_sentence(as_text(board.collection.description)))
    parts.append(
        "Clustering accuracy in percent, mean ± standard deviation over seeds. **Best**, "
        "*second best*."
    )
    parts.append(_overall(board))
    parts += [f"> {sentence}" for sentence in board.caveats]
    for dataset in board.collection.datasets:
        if sets := board.sets_of(dataset):
            parts += [f"## {dataset_title(dataset)}", _dataset(board, dataset, sets)]
    parts += _against_the_paper(board) + _compared(board) + _not_counted(board)
    return "\n\n".join(parts) + "\n"


def number(mean: float, std: float = math.nan) -> str:
    """Write a percentage with its deviation.

    >>> number(52.04, 0.46), number(float("nan"))
    ('52.0 ± 0.5', '–')
    """
    if math.isnan(mean):
        return DASH
    return f"{mean:.1f}" if math.isnan(std) else f"{mean:.1f} ± {std:.1f}"


def signed(value: float) -> str:
    """Write a difference with its sign.

    >>> signed(-0.04), signed(-1.26)
    ('0.0', '−1.3')
    """
    if math.isnan(value):
        return DASH
    text = f"{abs(value):.1f}"
    if text == "0.0":
        return text
    return ("−" if value < 0 else "+") + text


def p_value(p: float) -> str:
    """Write a p-value with as many digits as it deserves."""
    return DASH if math.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.2g}"


def _overall(board: Board) -> str:
    roles = [r for r in ROLES if any(not math.isnan(one.means[r]) for one in board.standings)]
    head = ["", "method", *(f"{role} All" for role in roles), "95% interval", "average rank"]
    lines = []
    for one in board.standings:
        place = DASH if one.place is None else str(one.place)
        means = [number(one.means[role]) for role in roles]
        if one.place == 1:
            counts = roles.index(board.role)
            means[counts] = f"**{means[counts]}**"
        rank = DASH if math.isnan(one.rank) else f"{one.rank:.2f}"
        cells = f"{one.recorded} of {one.planned}"
        lines.append([place, method_title(one.method), *means, _between(one.interval), rank, cells])
    return _table([*head, "cells"], lines, left=2)


def _between(interval: Interval) -> str:
    if math.isnan(interval.low):
        return DASH
    return f"{interval.low:.1f} to {interval.high:.1f}"


def _dataset(board: Board, dataset: str, sets: Sequence[tuple[str, str]]) -> str:
    columns = [(name, split) for name, _ in sets for split in SPLITS]
    head = ["method"]
    head += [*(f"{as_text(set_title(name))} {split}" for name, split in columns), "seeds"]
    lines = []
    for method in board.methods:
        rows = [board.lookup[(dataset, *column, method)] for column in columns]
        seeds, planned = max(row.seeds for row in rows), rows[0].planned
        count = str(seeds) if seeds == planned else f"{seeds} of {planned}"
        lines.append([method_title(method), *map(_marked, rows), count])
    return _table(head, lines)


def _marked(row: Number) -> str:
    text = number(row.mean, row.std)
    return f"**{text}**" if row.is_best else f"*{text}*" if row.is_second else text


def _against_the_paper(board: Board) -> list[str]:
    triples = board.published()
    if not triples:
        return []
    lines = [
        [
            dataset_title(triple[0].dataset),
            as_text(set_title(triple[0].set)),
            method_title(triple[0].method),
            " / ".join(number(one.mean) for one in triple),
            " / ".join(number(one.paper) for one in triple) + " †" * triple[0].impossible,
            " / ".join(signed(one.delta) for one in triple),
        ]
        for triple in triples
    ]
    head = ["dataset", "images", "method", "measured", "paper", "difference"]
    parts = ["## Against the paper", "All / Old / New.", _table(head, lines, left=3)]
    if any(triple[0].impossible for triple in triples):
        parts.append("† As printed, All does not lie between Old and New: one of them is wrong.")
    return [*parts, f"Measured with {', '.join(conditions(board.collection.records))}."]


def conditions(recorded: Iterable[Mapping[str, Any]]) -> list[str]:
    """Say under which settings records were made, for whom compares their numbers with others."""
    found: dict[str, set[str]] = {}
    for record in recorded:
        settings = record["settings"]
        found.setdefault("backbone", set()).add(str(settings["backbone"]["name"]))
        found.setdefault("epochs", set()).add(str(settings["train"]["epochs"]))
        if settings.get("limit"):
            found.setdefault("images per set at most", set()).add(str(settings["limit"]))
    return [f"{name} {' or '.join(sorted(values))}" for name, values in found.items()]


def _compared(board: Board) -> list[str]:
    best = board.methods[0]
    chosen = [one for one in board.comparisons if best in (one.first, one.second)]
    if not chosen:
        return []
    lines = [
        [
            method_title(one.second),
            signed(one.difference),
            f"{signed(one.interval.low)} to {signed(one.interval.high)}",
            f"{one.wins} : {one.losses}",
            p_value(one.p),
            p_value(one.p_holm),
        ]
        for one in chosen
    ]
    head = ["against", "difference", "95% interval", f"{chosen[0].unit}s won : lost", "p", "p Holm"]
    title = f"## {method_title(best)} against the others ({board.role}, All)"
    note = (
        "Intervals by bootstrap over datasets and seeds; p by Wilcoxon's signed-rank test, "
        "corrected by Holm for all pairs of methods."
    )
    return [title, _table(head, lines), note, *_friedman(board)]


def _friedman(board: Board) -> list[str]:
    ranking = board.ranking
    if ranking is None:
        return []
    text = (
        f"Friedman's test over {ranking.datasets} datasets: χ² = {ranking.chi2:.2f}, "
        f"p = {p_value(ranking.p)}{' (a rough value)' * (ranking.datasets < 10)}; average ranks "
        "that differ by less than "
        f"{ranking.critical_difference:.2f} cannot be told apart (Nemenyi, 5%)."
    )
    return [text]


def _not_counted(board: Board) -> list[str]:
    parts = []
    if board.collection.missing:
        cells = "; ".join(place.label for place in board.collection.missing)
        parts.append(f"Not recorded yet: {cells}.")
    if board.collection.left_out:
        lines = "\n".join(f"- {one.kind}: {as_text(str(one))}" for one in board.collection.left_out)
        parts.append(f"Left out:\n\n{lines}")
    return parts


def _table(head: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *lines))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _plain(value: Any) -> Any:
    """Make a value fit for JSON: no NaN and no more digits than are known."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, 6)
    return value
