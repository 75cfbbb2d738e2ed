"""Leaderboards as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gcdbench.experiment.record import Record
from gcdbench.report.collect import SPLITS
from gcdbench.report.columns import (
    AGAINST_PAPER,
    DASH,
    Column,
    number,
    p_value,
    shown_in,
    signed,
    standing_columns,
)
from gcdbench.report.formats.tuned import tuned_markdown
from gcdbench.report.further_scores import GAP, HIDDEN
from gcdbench.report.leaderboard import Leaderboard, Number
from gcdbench.report.titles import dataset_title, method_title, set_title

FLOOR = "random clusters"


def as_text(text: str) -> str:
    """Return a text of somebody else as Markdown that shows it: no HTML, no new line or column.

    >>> as_text("<b>")
    '&lt;b&gt;'
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return text.replace("|", "\\|").replace("[", "\\[").replace("`", "'")


def as_markdown(leaderboard: Leaderboard) -> str:
    """Return the leaderboard as Markdown."""
    parts = [f"# {leaderboard.suite}"]
    if leaderboard.collection.description:
        parts.append(_sentence(as_text(leaderboard.collection.description)))
    marked = "" if leaderboard.smoke else " **Best**, *second best*."
    parts.append(f"Clustering accuracy in percent, mean ± standard deviation over seeds.{marked}")
    parts.append(_overall(leaderboard))
    parts += [f"> {sentence}" for sentence in leaderboard.caveats]
    for dataset in leaderboard.collection.datasets:
        if sets := leaderboard.sets_of(dataset):
            parts += [f"## {dataset_title(dataset)}", _dataset(leaderboard, dataset, sets)]
            parts += _selected_with_hidden_labels(leaderboard, dataset, sets)
    parts += [tuned_markdown(leaderboard.tuned)] if leaderboard.tuned else []
    parts += _against_the_paper(leaderboard) + _compared(leaderboard) + _not_counted(leaderboard)
    return "\n\n".join(parts) + "\n"


def _overall(leaderboard: Leaderboard) -> str:
    columns = shown_in("md", standing_columns(leaderboard))
    lines = []
    for one in leaderboard.table_rows:
        cells = [as_text(c.text(one)) if one.is_baseline else c.text(one) for c in columns]
        if one.place == 1:
            ranked = [column.role for column in columns].index(leaderboard.role)
            cells[ranked] = f"**{cells[ranked]}**"
        lines.append(cells)
    return _table([column.name for column in columns], lines, left=2)


def _dataset(leaderboard: Leaderboard, dataset: str, sets: Sequence[tuple[str, str]]) -> str:
    columns = [(name, split) for name, _ in sets for split in SPLITS]
    head = ["method"]
    head += [*(f"{as_text(set_title(name))} {split}" for name, split in columns), "seeds"]
    lines = []
    for one in leaderboard.table_rows:
        rows = [leaderboard.lookup[(dataset, *column, one.method)] for column in columns]
        seeds, planned = max(row.seeds for row in rows), rows[0].planned
        count = str(seeds) if seeds == planned else f"{seeds} of {planned}"
        lines.append([as_text(one.title), *map(_marked, rows), count])
    if not any(one.method == FLOOR for one in leaderboard.baselines):
        lines += _floor(leaderboard, dataset, columns)
    return _table(head, lines)


def _floor(
    leaderboard: Leaderboard, dataset: str, columns: Sequence[tuple[str, str]]
) -> list[list[str]]:
    """Return the row of random clusters, if it is known."""
    values = []
    for name, split in columns:
        rows = (leaderboard.lookup[dataset, name, split, method] for method in leaderboard.methods)
        values.append(
            next((v for row in rows if (v := row.further.get("floor")) is not None), None)
        )
    if all(value is None for value in values):
        return []
    return [[FLOOR, *(DASH if v is None else number(v) for v in values), ""]]


def _selected_with_hidden_labels(
    leaderboard: Leaderboard, dataset: str, sets: Sequence[tuple[str, str]]
) -> list[str]:
    """Return a footnote on what choosing the epoch by the hidden labels would have given."""
    parts = []
    for name, _ in sets:
        found = [
            f"{method_title(method)} {number(one.further[HIDDEN])} ({signed(one.further[GAP])})"
            for method in leaderboard.methods
            if HIDDEN in (one := leaderboard.lookup[dataset, name, SPLITS[0], method]).further
        ]
        if found:
            parts.append(f"{as_text(set_title(name))}: {', '.join(found)}")
    if not parts:
        return []
    return [
        "Best scored epoch, selected with hidden labels, and its gap to the last one (All; never "
        f"ranked). {'. '.join(parts)}."
    ]


def _marked(row: Number) -> str:
    text = number(row.mean, row.std)
    return f"**{text}**" if row.is_best else f"*{text}*" if row.is_second else text


def _against_the_paper(leaderboard: Leaderboard) -> list[str]:
    triples = leaderboard.published()
    if not triples:
        return []
    columns = shown_in("md", AGAINST_PAPER)
    lines = []
    for triple in triples:
        first = triple[0]
        place = [
            dataset_title(first.dataset),
            as_text(set_title(first.set)),
            method_title(first.method),
        ]
        lines.append([*place, *(_triple(column, triple) for column in columns)])
    head = ["dataset", "images", "method", *(column.name for column in columns)]
    parts = ["## Against the paper", "All / Old / New.", _table(head, lines, left=3)]
    if any(triple[0].impossible for triple in triples):
        parts.append("† As printed, All does not lie between Old and New: one of them is wrong.")
    return [*parts, f"Measured with {', '.join(conditions(leaderboard.collection.records))}."]


def _triple(column: Column[Number], triple: Sequence[Number]) -> str:
    """Write a column's values for All, Old and New into one cell."""
    dagger = column.marked is not None and column.marked(triple[0])
    return " / ".join(column.text(one) for one in triple) + " †" * dagger


def conditions(recorded: Iterable[Record]) -> list[str]:
    """Say under which settings records were made, for whom compares their numbers with others."""
    found: dict[str, set[str]] = {}
    for record in recorded:
        found.setdefault("backbone", set()).add(record.backbone_name)
        found.setdefault("epochs", set()).add(str(record.epochs))
        if record.limit:
            found.setdefault("images per set at most", set()).add(str(record.limit))
    return [f"{name} {' or '.join(sorted(values))}" for name, values in found.items()]


def _compared(leaderboard: Leaderboard) -> list[str]:
    best = leaderboard.methods[0]
    chosen = [one for one in leaderboard.comparisons if best in (one.first, one.second)]
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
    title = f"## {method_title(best)} against the others ({leaderboard.role}, All)"
    note = (
        "Intervals by bootstrap over datasets and seeds; p by Wilcoxon's signed-rank test, "
        "corrected by Holm for all pairs of methods."
    )
    return [title, _table(head, lines), note, *_friedman(leaderboard)]


def _friedman(leaderboard: Leaderboard) -> list[str]:
    ranking = leaderboard.ranking
    if ranking is None:
        return []
    text = (
        f"Friedman's test over {ranking.datasets} datasets: χ² = {ranking.chi2:.2f}, "
        f"p = {p_value(ranking.p)}{' (a rough value)' * (ranking.datasets < 10)}; average ranks "
        "that differ by less than "
        f"{ranking.critical_difference:.2f} cannot be told apart (Nemenyi, 5%)."
    )
    return [text]


def _not_counted(leaderboard: Leaderboard) -> list[str]:
    parts = []
    if leaderboard.collection.missing:
        cells = "; ".join(place.label for place in leaderboard.collection.missing)
        parts.append(f"Not recorded yet: {cells}.")
    if leaderboard.collection.left_out:
        lines = "\n".join(
            f"- {one.kind}: {as_text(str(one))}" for one in leaderboard.collection.left_out
        )
        parts.append(f"Left out:\n\n{lines}")
    return parts


def _table(head: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    rule = ["---"] * left + ["---:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *lines))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
