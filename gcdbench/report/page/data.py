"""Data of the page's script: cells in detail, and which method is right on which image."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcdbench.experiment.record import CurvePoint, Record, SetScores
from gcdbench.experiment.records import flat
from gcdbench.report.collect import SPLITS, Truth
from gcdbench.report.correctness import right_images
from gcdbench.report.leaderboard import Leaderboard, Number
from gcdbench.report.titles import dataset_title, method_title, set_title

LOG_LINES = 6
CURVE_POINTS = 100
CELLS = 300  # that are shown in detail; of more, the first seeds of each method and dataset
IMAGES = 12_000  # per evaluation set; of a larger one every second, third, ... image is shown


def page_data(board: Leaderboard) -> dict[str, Any]:
    """Return what the page shows on request, as JSON values."""
    shown, left = _in_detail(board.collection.records)
    images, problems = _images(board, shown)
    settings, provenance = _Kept(), _Kept()
    cells: dict[str, list[dict[str, Any]]] = {}
    for record in shown:
        place = f"{record.method}|{record.dataset}"
        cells.setdefault(place, []).append(_cell(record, board, settings, provenance))
    return {
        "methods": {method: method_title(method) for method in board.rows},
        "datasets": {
            dataset: {"title": dataset_title(dataset), "sets": _sets(board, dataset)}
            for dataset in board.collection.datasets
        },
        "numbers": _numbers(board),
        "cells": cells,
        "settings": settings.values,
        "provenance": provenance.values,
        "images": images,
        "problems": left + problems,
    }


def _in_detail(records: Sequence[Record]) -> tuple[list[Record], list[str]]:
    """Return the cells that are shown in detail, and a sentence about the others, if any."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.dataset, record.method), []).append(record)
    if len(records) <= CELLS:
        return list(records), []
    most = max(1, CELLS // len(groups))
    shown = [one for group in groups.values() for one in group[:most]]
    return shown, [
        f"Only {len(shown)} of {len(records)} cells are shown one by one, at most {most} seeds of "
        "each method on a dataset; all of them are in the tables and plots."
    ]


def as_script(data: Mapping[str, Any]) -> str:
    """Return data as JSON that is safe inside a script element."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


class _Kept:
    """A list of distinct values; cells refer to them by index."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._places: dict[str, int] = {}

    def place(self, value: Any) -> int:
        key = json.dumps(value, sort_keys=True)
        if key not in self._places:
            self._places[key] = len(self.values)
            self.values.append(value)
        return self._places[key]


def _sets(board: Leaderboard, dataset: str) -> dict[str, dict[str, str]]:
    sets = board.sets_of(dataset)
    return {name: {"title": set_title(name), "role": role} for name, role in sets}


def _numbers(board: Leaderboard) -> dict[str, dict[str, list[Any]]]:
    found: dict[str, dict[str, list[Any]]] = {}
    for number in board.numbers:
        key = f"{number.method}|{number.dataset}|{number.set}"
        found.setdefault(key, {})[number.split] = _number(number)
    return found


def _number(number: Number) -> list[Any]:
    bounds = [number.mean, number.std, number.low, number.high]
    counts = [number.seeds, number.planned, number.rank]
    return [*map(_short, bounds), *counts, *map(_short, (number.paper, number.delta)),
            int(number.impossible)]  # fmt: skip


def _cell(record: Record, board: Leaderboard, settings: _Kept, provenance: _Kept) -> dict[str, Any]:
    chosen = {name: value for name, value in flat(record.settings).items() if name != "seed"}
    folder = board.collection.folders.get(record.key)
    return {
        "seed": record.seed,
        "key": record.key,
        "sets": {name: _scores(scores) for name, scores in _all_sets(record).items()},
        "curve": _curve(record.curve),
        "settings": settings.place(chosen),
        "provenance": provenance.place(_known(dataclasses.asdict(record.provenance))),
        "seconds": _short(record.timing.wall_seconds),
        "memory": _short(record.timing.peak_memory_mb),
        "log": [] if folder is None else _tail(folder / "log.jsonl"),
    }


def _known(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested facts by their paths, without those that are not known."""
    return {name: value for name, value in flat(facts).items() if value is not None}


def _all_sets(record: Record) -> dict[str, SetScores]:
    """Return the recorded sets and means; of corruptions the means over severities only."""
    single = {name: scores for name, scores in record.sets.items() if "/" not in name}
    return {**single, **record.summary}


def _scores(scores: SetScores) -> list[Any]:
    shares = [scores.rate(name) for name in ("all", "old", "new", "nmi", "ari")]
    return [*(None if s is None else _short(100 * s) for s in shares), scores.n]


def _curve(curve: Sequence[CurvePoint]) -> dict[str, Any]:
    """Return epochs and loss terms, thinned out to what a small plot can show."""
    rows = curve[:: max(1, math.ceil(len(curve) / CURVE_POINTS))]
    names = list(dict.fromkeys(name for row in rows for name in row.terms))
    terms = {name: [_short(row.terms.get(name)) for row in rows] for name in names}
    return {"epochs": [row.epoch + 1 for row in rows], "terms": terms}


def _tail(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.splitlines()[-LOG_LINES:]


def _images(board: Leaderboard, shown: Sequence[Record]) -> tuple[dict[str, Any], list[str]]:
    """Return the images of each set by class, with a bit per cell and image: right or wrong."""
    found: dict[str, Any] = {}
    problems = []
    for dataset, truth in board.collection.truths.items():
        records = [r for r in shown if r.dataset == dataset]
        names = [n for n, role in board.sets_of(dataset) if n in truth.labels and role != "unseen"]
        order = {name: _order(truth.labels[name]) for name in names}
        right: dict[str, dict[str, str]] = {name: {} for name in names}
        for record in records:
            hits = right_images(record, board.collection.folders[record.key], truth, names)
            if isinstance(hits, str):
                problems.append(f"{record.label}: {hits}")
                continue
            for name in names:
                key = f"{record.method}|{record.seed}"
                right[name][key] = _bits(hits[name][order[name]])
        found[dataset] = {
            "classes": list(truth.classes),
            "old": truth.num_old,
            "sets": {n: {**_listing(truth, n, order[n]), "right": right[n]} for n in names},
        }
    return found, problems


def _order(labels: NDArray[np.integer]) -> NDArray[np.intp]:
    """Return the indices of the images sorted by class, at most ``IMAGES`` of them."""
    places = np.argsort(labels, kind="stable")
    return places[:: max(1, math.ceil(len(places) / IMAGES))]


def _listing(truth: Truth, name: str, order: NDArray[np.intp]) -> dict[str, Any]:
    """Return the names of each class's images, without their common start and end."""
    labels = truth.labels[name][order]
    groups: list[dict[str, Any]] = []
    for number in range(len(truth.classes)):
        ids = [truth.ids[name][place] for place in order[labels == number]]
        start = _common(ids)
        end = _common([text[::-1] for text in (text[len(start) :] for text in ids)])[::-1]
        middles = [text[len(start) : len(text) - len(end)] for text in ids]
        groups.append({"start": start, "end": end, "ids": middles})
    return {"groups": groups, "shown": len(order), "of": len(truth.labels[name])}


def _common(texts: Sequence[str]) -> str:
    """Return the common start of two or more texts; '' for one, so that it keeps its name."""
    if len(texts) < 2:
        return ""
    low, high = min(texts), max(texts)
    same = 0
    while same < min(len(low), len(high)) and low[same] == high[same]:
        same += 1
    return low[:same]


def _bits(flags: NDArray[np.bool_]) -> str:
    return base64.b64encode(np.packbits(flags).tobytes()).decode("ascii")


def _short(value: float | None) -> float | None:
    """Return a number with five digits; None for NaN."""
    if value is None or math.isnan(value):
        return None
    return float(f"{value:.5g}")


assert SPLITS == ("All", "Old", "New")  # the order of the scores above and of the page's columns
