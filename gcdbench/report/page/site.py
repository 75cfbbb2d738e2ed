"""Build a static site of several leaderboards: an index, a page per suite, a page per method."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gcdbench import __version__
from gcdbench.core import registry
from gcdbench.errors import UserError
from gcdbench.experiment.record import Record
from gcdbench.report import paper_numbers, titles
from gcdbench.report.collect import SPLITS
from gcdbench.report.formats.data import as_csv, as_json
from gcdbench.report.leaderboard import Leaderboard, Number
from gcdbench.report.page.build import page, raw, render

LEFT, TOP, WIDTH, HEIGHT = 22, 5, 220, 90  # of a learning curve in its picture


@dataclass(frozen=True)
class Chart:
    """The learning curves of a method on a dataset: an SVG path per role."""

    label: str
    paths: Mapping[str, str]


def site_files(boards: Mapping[str, Leaderboard]) -> Iterator[tuple[str, str]]:
    """Yield path and content of every file of the site; the same records give the same bytes."""
    methods = titles.in_order(method for board in boards.values() for method in board.methods)
    infos = {method: _info(method) for method in methods}
    summaries = {method: info.summary if info else "" for method, info in infos.items()}
    common = {"css": raw("page.css"), "suites": list(boards), "version": __version__}
    yield (
        "index.html",
        render(
            "site_index.html.j2",
            **common,
            up="",
            boards=boards,
            methods=methods,
            summaries=summaries,
            standings={s: {one.method: one for one in b.standings} for s, b in boards.items()},
        ),
    )
    for suite, board in boards.items():
        yield f"suites/{suite}.html", page(board, home="../index.html")
        yield f"suites/{suite}.csv", as_csv(board)
        yield f"suites/{suite}.json", as_json(board)
    entries = {method: bibtex(method, info) for method, info in infos.items()}
    for method, info in infos.items():
        shown = {suite: board for suite, board in boards.items() if method in board.methods}
        values = _method_page(method, info, shown)
        text = render("site_method.html.j2", **common, up="../", bibtex=entries[method], **values)
        yield f"methods/{method}.html", text
        yield f"methods/{method}.bib", entries[method] + "\n"
    distinct = {titles.base(method): entries[method] for method in reversed(methods)}
    yield "references.bib", "\n\n".join(distinct[name] for name in sorted(distinct)) + "\n"


def bibtex(method: str, info: registry.PluginInfo | None) -> str:
    """Return a BibTeX entry of a method's paper; of one that is not known, what its file says.

    >>> from gcdbench.core import registry
    >>> print(bibtex("gcd", registry.get("method", "gcd")))
    @misc{gcd,
      author = {Vaze, Sagar and Han, Kai and Vedaldi, Andrea and Zisserman, Andrew},
      title = {{Generalized Category Discovery}},
      note = {CVPR},
      year = {2022},
      url = {https://arxiv.org/abs/2201.02609}
    }
    """
    name = titles.base(method)
    known = paper_numbers.references().get(name)
    if known is not None:
        fields = {key: _plain(known[key]) for key in ("author", "title", "note", "year")}
    else:
        fields = {"title": _plain(info.summary if info else name)}
    fields["title"] = f"{{{fields['title']}}}"  # keeps its capitals
    link = re.search(r"https?://\S+", str(info.constants.get("paper", "")) if info else "")
    fields["url"] = link[0] if link else ""
    lines = ",\n".join(f"  {key} = {{{value}}}" for key, value in fields.items() if value)
    return f"@misc{{{name},\n{lines}\n}}"


def _plain(text: str) -> str:
    """Return a text without what BibTeX would take for commands."""
    return re.sub(r"[{}\\$&#%~^]", "", text)


def _info(method: str) -> registry.PluginInfo | None:
    try:
        return registry.get("method", titles.base(method))
    except UserError:  # its plug-in is not installed
        return None


def _method_page(
    method: str, info: registry.PluginInfo | None, boards: Mapping[str, Leaderboard]
) -> dict[str, Any]:
    fields = registry.config_fields(info) if info else {}
    rows = {suite: _numbers(board, method) for suite, board in boards.items()}
    records = {
        suite: [record for record in board.collection.records if record.method == method]
        for suite, board in boards.items()
    }
    paragraphs = (info.doc if info else "").strip().split("\n\n")[1:]
    return {
        "method": method,
        "method_base": titles.base(method),
        "summary": info.summary if info else "",
        "description": "\n\n".join(" ".join(part.split()) for part in paragraphs).replace("``", ""),
        "paper": info.constants.get("paper", "") if info else "",
        "numbers": rows,
        "charts": {suite: _charts(found) for suite, found in records.items()},
        "costs": {suite: _cost(found) for suite, found in records.items()},
        "settings": fields,
        "training": info.constants.get("train_defaults", {}) if info else {},
    }


def _numbers(board: Leaderboard, method: str) -> list[tuple[Number, ...]]:
    return [
        tuple(board.lookup[dataset, name, split, method] for split in SPLITS)
        for dataset in board.collection.datasets
        for name, _ in board.sets_of(dataset)
    ]


def _charts(records: Sequence[Record]) -> list[Chart]:
    """Return the accuracy by epoch on each dataset, mean over seeds and over the sets of a role."""
    charts = []
    for dataset in dict.fromkeys(record.dataset for record in records):
        mine = [record for record in records if record.dataset == dataset]
        paths = {}
        for role in ("source", "shifted"):
            values: dict[int, list[float]] = {}
            for record in mine:
                for point in record.curve:
                    found = [
                        scores.all
                        for name, scores in point.sets.items()
                        if name in record.sets and record.sets[name].role == role
                    ]
                    if found:
                        values.setdefault(point.epoch + 1, []).append(sum(found) / len(found))
            if len(values) > 1:
                paths[role] = _path({e: sum(v) / len(v) for e, v in sorted(values.items())})
        if paths:
            charts.append(Chart(titles.dataset_title(dataset), paths))
    return charts


def _path(values: Mapping[int, float]) -> str:
    """Return an SVG path through values between 0 and 1, by epoch."""
    last = max(values)
    points = [
        f"{LEFT + WIDTH * epoch / last:.1f} {TOP + HEIGHT * (1 - value):.1f}"
        for epoch, value in values.items()
    ]
    return "M" + "L".join(points)


def _cost(records: Sequence[Record]) -> str:
    if not records:
        return "No cell is recorded."
    seconds = sum(record.timing.wall_seconds for record in records) / len(records)
    memory = max(record.timing.peak_memory_mb for record in records)
    devices = ", ".join(sorted({record.provenance.device for record in records}))
    return f"{seconds:,.0f} seconds on average, at most {memory:,.0f} MB of memory, on {devices}."
