"""Leaderboards as CSV, JSON and Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from gcdbench.report.board import ROLES, Board, is_best, is_second
from gcdbench.report.collect import SPLITS
from gcdbench.report.names import dataset_title, method_title, set_title
from gcdbench.report.statistics import Comparison

DASH = "–"  # what was not measured


def csv(board: Board) -> str:
    """Return the leaderboard as CSV, one row per number; what is missing has empty fields."""
    table = board.numbers.drop(columns="compared")
    table = table.assign(rank=table["rank"].astype("Int64").replace(0, pd.NA))
    return table.to_csv(index=False, float_format="%.4f", lineterminator="\n")


def as_json(board: Board) -> str:
    """Return everything that a leaderboard shows, for programs."""
    ranking = board.ranking
    data = {
        "suite": board.suite,
        "ranked_by": {"role": board.role, "split": "All"},
        "methods": _rows(board.overall.reset_index()),
        "numbers": _rows(board.numbers.drop(columns="compared")),
        "comparisons": [_comparison(one) for one in board.comparisons],
        "ranking": None if ranking is None else _plain(ranking.__dict__),
        "caveats": board.caveats,
        "missing": [place._asdict() for place in board.collection.missing],
        "left_out": [one.__dict__ for one in board.collection.left_out],
    }
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def markdown(board: Board) -> str:
    """Return the leaderboard as Markdown."""
    parts = [f"# {board.suite}"]
    if board.collection.description:
        parts.append(_sentence(board.collection.description))
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
    roles = [role for role in ROLES if board.overall[role].notna().any()]
    head = ["", "method", *(f"{role} All" for role in roles), "95% interval", "average rank"]
    lines = []
    for method, row in board.overall.iterrows():
        place = DASH if pd.isna(row["place"]) else str(row["place"])
        means = [_ranked(row[role], role == board.role, place) for role in roles]
        interval = DASH if math.isnan(row["low"]) else f"{row['low']:.1f} to {row['high']:.1f}"
        rank = DASH if math.isnan(row["rank"]) else f"{row['rank']:.2f}"
        cells = f"{row['recorded']} of {row['planned']}"
        lines.append([place, method_title(str(method)), *means, interval, rank, cells])
    return _table([*head, "cells"], lines, left=2)


def _ranked(mean: float, counts: bool, place: str) -> str:
    return f"**{number(mean)}**" if counts and place == "1" else number(mean)


def _dataset(board: Board, dataset: str, sets: Sequence[tuple[str, str]]) -> str:
    columns = [(name, split) for name, _ in sets for split in SPLITS]
    head = ["method", *(f"{set_title(name)} {split}" for name, split in columns), "seeds"]
    lines = []
    for method in board.methods:
        rows = [board.lookup[dataset, *column, method] for column in columns]
        seeds, planned = max(row.seeds for row in rows), rows[0].planned
        count = str(seeds) if seeds == planned else f"{seeds} of {planned}"
        lines.append([method_title(method), *map(_marked, rows), count])
    return _table(head, lines)


def _marked(row: Any) -> str:
    text = number(row.mean, row.std)
    return f"**{text}**" if is_best(row) else f"*{text}*" if is_second(row) else text


def _against_the_paper(board: Board) -> list[str]:
    known = board.numbers[board.numbers["paper"].notna() & board.numbers["mean"].notna()]
    if known.empty:
        return []
    lines = []
    for (dataset, name, method), rows in known.groupby(["dataset", "set", "method"], sort=False):
        by_split = {row.split: row for row in rows.itertuples()}
        triple = [by_split[split] for split in SPLITS if split in by_split]
        lines.append(
            [
                dataset_title(dataset),
                set_title(name),
                method_title(method),
                " / ".join(number(row.mean) for row in triple),
                " / ".join(number(row.paper) for row in triple) + " †" * triple[0].impossible,
                " / ".join(signed(row.delta) for row in triple),
            ]
        )
    head = ["dataset", "images", "method", "measured", "paper", "difference"]
    parts = ["## Against the paper", "All / Old / New.", _table(head, lines, left=3)]
    if known["impossible"].any():
        parts.append("† As printed, All does not lie between Old and New: one of them is wrong.")
    return [*parts, f"Measured with {', '.join(conditions(board))}."]


def conditions(board: Board) -> list[str]:
    """Say under which settings the numbers were measured, for whom compares them with others."""
    found: dict[str, set[str]] = {}
    for record in board.collection.records:
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
        f"p = {p_value(ranking.p)}; average ranks that differ by less than "
        f"{ranking.critical_difference:.2f} cannot be told apart (Nemenyi, 5%)."
    )
    return [text]


def _not_counted(board: Board) -> list[str]:
    parts = []
    if board.collection.missing:
        cells = "; ".join(place.label for place in board.collection.missing)
        parts.append(f"Not recorded yet: {cells}.")
    if board.collection.left_out:
        lines = "\n".join(f"- {one.kind}: {one}" for one in board.collection.left_out)
        parts.append(f"Left out:\n\n{lines}")
    return parts


def _table(head: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *lines))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."


def _comparison(one: Comparison) -> dict[str, Any]:
    return _plain({**one.__dict__, "interval": list(one.interval)})


def _rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [_plain(row) for row in table.astype(object).to_dict("records")]


def _plain(value: Any) -> Any:
    """Make a value fit for JSON: no NaN, no numpy types, no more digits than are known."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return None
    return round(float(value), 6) if isinstance(value, float) else value
