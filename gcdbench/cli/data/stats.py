"""``gcdbench data stats``: a table of a suite's images, classes and domains, counted on disk."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gcdbench.cli.data._common import say, suite_datasets, suite_problem
from gcdbench.cli.data.verify import Remarking
from gcdbench.core.json_text import json_text
from gcdbench.data.images import FileImages
from gcdbench.data.lists import missing_files
from gcdbench.data.problem import Dataset, Problem
from gcdbench.data.problem import log as warnings

COLUMNS = (
    ("dataset", "dataset"),
    ("labelled_images", "labelled"),
    ("labelled_classes", "classes"),
    ("labelled_domains", "domains"),
    ("unlabelled_images", "unlabelled"),
    ("unlabelled_classes", "classes"),
    ("scored_images", "scored"),
    ("total_domains", "domains"),
)


def run(arguments: argparse.Namespace) -> int:
    """Print labelled and unlabelled images, classes and domains of each dataset."""
    datasets = suite_datasets(arguments.suite, arguments.data_root, arguments.datasets)
    with _said_once(warnings):
        for dataset in datasets.values():
            for fault in _faults(dataset):
                warnings.warning("%s", fault)
        rows = [
            count(suite_problem(arguments.suite, name, arguments.data_root)[0]) for name in datasets
        ]
    if arguments.json:
        say(json_text(rows))
        return 0
    cells = [[title for _, title in COLUMNS]]
    cells += [[_number(row[key]) for key, _ in COLUMNS] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    for line in cells:
        first, *rest = (
            c.ljust(w) if not i else c.rjust(w)
            for i, (c, w) in enumerate(zip(line, widths, strict=True))
        )
        say("  ".join([first, *rest]))
    return 0


def count(problem: Problem) -> dict[str, Any]:
    """Return a row of the table with the sizes of the evaluation sets."""
    scored = np.unique(np.concatenate([s.rows for s in problem.sets.values()]))
    return {
        "dataset": problem.name,
        "labelled_images": len(problem.labelled),
        "labelled_classes": len(np.unique(problem.labels[problem.labelled])),
        "labelled_domains": 1,
        "unlabelled_images": len(problem.unlabelled),
        "unlabelled_classes": len(np.unique(problem.labels[problem.unlabelled])),
        "scored_images": len(scored),
        "total_domains": len({name.partition("/")[0] for name in _domains(problem)}),
        "sets": {name: len(s.rows) for name, s in problem.sets.items()},
        "notes": problem.notes,
    }


def _faults(dataset: Dataset) -> Iterator[str]:
    """Yield what verify calls strange or missing; no image is opened."""
    if isinstance(dataset, Remarking):
        yield from dataset.remarks()
    for part, images in dataset.parts().items():
        missing = missing_files(images) if isinstance(images, FileImages) else []
        if missing:
            yield (
                f"{dataset.title}: {len(missing):,} of {len(images):,} images of {part} are "
                f"missing, the first is {images.place(missing[0])}"
            )


@contextmanager
def _said_once(logger: logging.Logger) -> Iterator[None]:
    """Drop messages that repeat: datasets of a suite can share their images."""
    said: list[str] = []

    def is_new(record: logging.LogRecord) -> bool:
        said.append(record.getMessage())
        return said[-1] not in said[:-1]

    logger.addFilter(is_new)
    try:
        yield
    finally:
        logger.removeFilter(is_new)


def _domains(problem: Problem) -> list[str]:
    return [name for name, s in problem.sets.items() if s.role != "validation"]


def _number(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
