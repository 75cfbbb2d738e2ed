"""Leaderboards for programs: CSV and JSON."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

from gcdbench.core.json_text import json_text
from gcdbench.report.columns import NUMBERS, Column, Row, shown_in, standing_columns
from gcdbench.report.leaderboard import Leaderboard


def as_csv(leaderboard: Leaderboard) -> str:
    """Return the leaderboard as CSV, one row per number; what is missing has empty fields."""
    columns = shown_in("csv", NUMBERS)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([column.name for column in columns])
    for one in (*leaderboard.numbers, *leaderboard.baseline_numbers):
        writer.writerow([_field(column.value(one)) for column in columns])
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


def as_json(leaderboard: Leaderboard) -> str:
    """Return everything that a leaderboard shows as JSON."""
    standings = shown_in("json", standing_columns(leaderboard))
    numbers, ranking = shown_in("json", NUMBERS), leaderboard.ranking
    data: dict[str, Any] = {
        "suite": leaderboard.suite,
        "ranked_by": {"role": leaderboard.role, "split": "All"},
        "methods": [_fields(standings, one) for one in leaderboard.standings],
        "numbers": [_fields(numbers, one) for one in leaderboard.numbers],
        "tuned": [one.as_dict() for one in leaderboard.tuned],
        "comparisons": [one.__dict__ for one in leaderboard.comparisons],
        "ranking": None if ranking is None else ranking.__dict__,
        "caveats": leaderboard.caveats,
        "missing": [place._asdict() for place in leaderboard.collection.missing],
        "left_out": [one.__dict__ for one in leaderboard.collection.left_out],
    }
    if leaderboard.baselines:
        data["baselines"] = [_fields(standings, one) for one in leaderboard.baselines]
        data["baseline_numbers"] = [_fields(numbers, one) for one in leaderboard.baseline_numbers]
    return json_text(data, decimals=6) + "\n"


def _fields(columns: list[Column[Row]], row: Row) -> dict[str, Any]:
    return {column.name: column.value(row) for column in columns}
