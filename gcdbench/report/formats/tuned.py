"""Tuned settings next to the defaults, as Markdown and CSV."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

from gcdbench.report.columns import DASH, number
from gcdbench.report.formats.data import no_formula
from gcdbench.report.titles import dataset_title, method_title
from gcdbench.report.tuning.tuned import Compared, Tuned

NOTE = (
    "All in percent. Default and tuned are scored at the last epoch, over the same seeds; the "
    "column *selected with hidden labels* is the best epoch of the default by labels that methods "
    "do not see, no result. Cost is that of the search alone, in minutes of processor time."
)
NOTHING = "No tuned settings are recorded."


def tuned_markdown(rows: Sequence[Tuned]) -> str:
    """Return the table as Markdown."""
    if not rows:
        return NOTHING
    roles = list(dict.fromkeys(role for row in rows for role in row.roles))
    head = ["dataset", "method"]
    for role in roles:
        head += [f"{role} default", "tuned", "selected with hidden labels"]
    head += ["criterion", "budget", "search", "draw", "cost", "settings"]
    lines = []
    for row in rows:
        cells = [dataset_title(row.dataset), method_title(row.method)]
        for role in roles:
            cells += compared(row.roles.get(role))
        about = row.search
        cells += [row.criterion, str(about.budget), str(about.seed), str(about.draw)]
        lines.append([*cells, f"{about.cpu_seconds / 60:.1f}", row.settings])
    rule = ["---", "---", *["---:"] * (3 * len(roles)), "---", *["---:"] * 4, "---"]
    table = "\n".join("| " + " | ".join(line) + " |" for line in (head, rule, *lines))
    return f"## Tuned settings\n\n{table}\n\n{NOTE}"


def compared(one: Compared | None) -> list[str]:
    """Return the three numbers of a role."""
    if one is None:
        return [DASH] * 3
    return [number(one.default), number(one.tuned, one.std), number(one.hidden)]


def tuned_csv(rows: Sequence[Tuned]) -> str:
    """Return one line per search and role."""
    flat = [
        {
            **{
                key: value
                for key, value in row.as_dict().items()
                if key not in ("roles", "settings")
            },
            "folds": " ".join(map(str, row.search.folds)),
            "role": role,
            "default": one.default,
            "tuned": one.tuned,
            "std": one.std,
            "selected_with_hidden_labels": one.hidden,
            "settings": row.settings,
        }
        for row in rows
        for role, one in row.roles.items()
    ]
    return draws_csv(flat)


def draws_csv(rows: Sequence[Mapping[str, Any]], *, digits: int = 6) -> str:
    """Return rows of equal keys as CSV."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(rows[0] if rows else [])
    for row in rows:
        writer.writerow([_field(value, digits) for value in row.values()])
    return buffer.getvalue()


def _field(value: Any, digits: int) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.{digits}g}" if isinstance(value, float) else no_formula(str(value))
