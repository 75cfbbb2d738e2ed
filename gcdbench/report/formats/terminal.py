"""Leaderboards for a terminal: aligned, and no wider than it is."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from gcdbench.report.collect import SPLITS
from gcdbench.report.columns import number, p_value, shown_in, signed, standing_columns
from gcdbench.report.formats.markdown import conditions
from gcdbench.report.formats.tuned import NOTE, NOTHING, compared
from gcdbench.report.leaderboard import SMOKE, Leaderboard, Number
from gcdbench.report.titles import dataset_title, method_title, set_title
from gcdbench.report.tuning.tuned import Tuned

GAP = "  "
LONGEST = 28  # characters of a name
MOST_SETS = 8  # evaluation sets of a dataset that are shown


def as_terminal(leaderboard: Leaderboard, width: int = 80) -> str:
    """Return the leaderboard as plain text of at most ``width`` columns."""
    parts = [_headline(leaderboard, width), _overall(leaderboard, width)]
    parts += [wrapped(sentence, width) for sentence in leaderboard.caveats]
    for dataset in leaderboard.collection.datasets:
        if sets := leaderboard.sets_of(dataset):
            parts += [_dataset(leaderboard, dataset, sets, width)]
    parts += _against_the_paper(leaderboard, width) + _compared(leaderboard, width)
    if missing := leaderboard.collection.missing:
        named = "; ".join(place.label for place in missing[:3])
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        parts.append(wrapped(f"Not recorded yet: {named}{more}.", width))
    if left_out := leaderboard.collection.left_out:
        parts.append(wrapped(f"Left out: {len(left_out)} records (see above).", width))
    return "\n\n".join(parts) + "\n"


def _headline(leaderboard: Leaderboard, width: int) -> str:
    marked = "" if leaderboard.smoke else " * best."
    text = f"clustering accuracy in percent, mean and standard deviation over seeds.{marked}"
    return wrapped(f"{leaderboard.suite}: {text}", width)


def _overall(leaderboard: Leaderboard, width: int) -> str:
    columns = shown_in("md", standing_columns(leaderboard))
    if leaderboard.smoke:
        columns = [column for column in columns if column.format != "rank" and column.name]
    lines = []
    for one in leaderboard.table_rows:
        best = one.place == 1
        cells = [(column.role == leaderboard.role, column.text(one)) for column in columns]
        lines.append([_mark(text, best) if ranked else text for ranked, text in cells])
    head = [column.short or column.name for column in columns]
    return table(head, lines, width=width, left=head.index("method") + 1)


def _dataset(
    leaderboard: Leaderboard, dataset: str, sets: Sequence[tuple[str, str]], width: int
) -> str:
    shown = [name for name, _ in sets[:MOST_SETS]]
    head = ["", *(SPLITS * len(shown))]
    lines = []
    places = [(dataset, name, split) for name in shown for split in SPLITS]
    for one in leaderboard.table_rows:
        found = [leaderboard.lookup[(*place, one.method)] for place in places]
        lines.append([one.title, *map(_number, found)])
    over = [set_title(name) for name in shown]
    text = f"{dataset_title(dataset)}\n{table(head, lines, width=width, over=over)}"
    if len(sets) > len(shown):
        more = f"... and {len(sets) - len(shown)} more evaluation sets: --format md, or the page"
        text += f"\n{wrapped(more, width)}"
    return text


def _number(found: Number) -> str:
    text = number(found.mean, found.std).replace(" ± ", "±")
    return _mark(text, found.is_best)


def _mark(text: str, best: bool) -> str:
    """Mark the best number; the others get a space, so that digits stay below each other."""
    return f"{text}{'*' if best else ' '}"


def _against_the_paper(leaderboard: Leaderboard, width: int) -> list[str]:
    lines, place = [], ("", "")
    for triple in leaderboard.published():
        first = triple[0]
        now = (dataset_title(first.dataset), set_title(first.set))
        here = [f"{now[0]}, {now[1]}"] if now != place else [""]
        place = now
        measured = " / ".join(number(one.mean) for one in triple)
        paper = " / ".join(number(one.paper) for one in triple) + "!" * first.impossible
        difference = " / ".join(signed(one.delta) for one in triple)
        lines.append([*here, method_title(first.method), measured, paper, difference])
    if not lines:
        return []
    head = ["", "method", "measured", "paper", "difference"]
    note = (
        f"All / Old / New. Measured with {', '.join(conditions(leaderboard.collection.records))}."
    )
    if any(triple[0].impossible for triple in leaderboard.published()):
        note += " ! As printed, All does not lie between Old and New."
    text = f"against the paper\n{table(head, lines, width=width, left=2)}"
    return [f"{text}\n{wrapped(note, width)}"]


def _compared(leaderboard: Leaderboard, width: int) -> list[str]:
    best = leaderboard.methods[0]
    chosen = [one for one in leaderboard.comparisons if best in (one.first, one.second)]
    if not chosen:
        return []
    lines = [
        [
            method_title(one.second),
            signed(one.difference),
            f"{signed(one.interval.low)} to {signed(one.interval.high)}",
            p_value(one.p_holm),
        ]
        for one in chosen
        if not math.isnan(one.difference)
    ]
    head = ["", "difference", "95% interval", "p (Holm)"]
    title = f"{method_title(best)} against the others ({leaderboard.role}, All)"
    return [f"{title}\n{table(head, lines, width=width)}"] if lines else []


def tuned_as_terminal(rows: Sequence[Tuned], width: int = 80, *, smoke: bool = False) -> str:
    """Return default and tuned settings as plain text; ``smoke``: of a run with ``--quick``."""
    if not rows:
        return NOTHING
    roles = list(dict.fromkeys(role for row in rows for role in row.roles))
    head = ["dataset", "method", *["default", "tuned", "hidden"] * len(roles)]
    lines, chosen = [], []
    for row in rows:
        dataset, method, about = dataset_title(row.dataset), method_title(row.method), row.search
        found = [text for role in roles for text in compared(row.roles.get(role))]
        lines.append([dataset, method, *found])
        text = f"{method} on {dataset}, search {about.seed}: draw {about.draw} of {about.budget} "
        text += f"by {row.criterion}, {about.cpu_seconds / 60:.1f} min: {row.settings}"
        chosen.append(wrapped(text, width, indent=GAP))
    named = NOTE.replace(
        "*selected with hidden labels* is", "hidden is selected with hidden labels:"
    )
    parts = [
        "Tuned settings: clustering accuracy, mean and deviation over seeds",
        table(head, lines, width=width, left=2, over=roles),
        "\n".join(chosen),
        wrapped(f"{SMOKE} {named}" if smoke else named, width),
    ]
    return "\n\n".join(parts)


def table(
    head: Sequence[str],
    lines: Sequence[Sequence[str]],
    *,
    width: int,
    left: int = 1,
    over: Sequence[str] = (),
) -> str:
    """Return aligned columns; those that do not fit are continued below, after the first ones.

    ``left`` columns are aligned to the left and repeated. ``over`` are headings of equally many of
    the other columns each, which stay in one part of the table.

    >>> print(table(["", "A", "B"], [["x", "1.0", "22.0"]], width=9))
         A
    x  1.0
    <BLANKLINE>
          B
    x  22.0
    """
    rows = [
        [_short(cell) if i < left else cell for i, cell in enumerate(row)] for row in (head, *lines)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    together = (len(head) - left) // len(over) if over else 1
    groups = [range(i, i + together) for i in range(left, len(head), together)]
    parts: list[list[int]] = []
    room = 0
    for place, group in enumerate(groups):
        needed = sum(widths[i] + len(GAP) for i in group)
        if not parts or needed > room:
            parts.append([])
            room = width - sum(widths[:left]) - len(GAP) * (left - 1)
        parts[-1].append(place)
        room -= needed
    texts = []
    for part in parts:
        chosen = [i for place in part for i in groups[place]]
        above = [(over[p], sum(widths[i] + len(GAP) for i in groups[p])) for p in part if over]
        texts.append(_lines(rows, widths, left, chosen, above))
    return "\n\n".join(texts)


def _lines(
    rows: Sequence[Sequence[str]],
    widths: Sequence[int],
    left: int,
    chosen: Sequence[int],
    above: Sequence[tuple[str, int]],
) -> str:
    """Return a part of a table; ``above`` are headings over several columns, with their widths."""
    lines = []
    if above:
        first = " " * (sum(widths[:left]) + len(GAP) * (left - 1))
        lines.append(first + "".join(GAP + _ruled(title, wide - len(GAP)) for title, wide in above))
    for row in rows:
        words = [row[i].ljust(widths[i]) for i in range(left)]
        words += [row[i].rjust(widths[i]) for i in chosen]
        lines.append(GAP.join(words).rstrip())
    return "\n".join(lines)


def _ruled(title: str, width: int) -> str:
    """Return a title in the middle of a line.

    >>> _ruled("Line", 12)
    '--- Line ---'
    """
    return f" {title[: width - 2]} ".center(width, "-")


def _short(name: str) -> str:
    """Cut a long name in the middle.

    >>> _short("a" * 20 + "b" * 20)
    'aaaaaaaaaaaaa…bbbbbbbbbbbbbb'
    """
    if len(name) <= LONGEST:
        return name
    half = LONGEST // 2
    return f"{name[: half - 1]}…{name[-half:]}"


def wrapped(text: str, width: int, *, indent: str = "") -> str:
    """Return a paragraph in lines of at most ``width`` columns, all but the first indented."""
    return textwrap.fill(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
