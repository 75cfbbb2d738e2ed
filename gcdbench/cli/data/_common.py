"""Helpers that several actions of ``gcdbench data`` use."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

from gcdbench.core.suites import Suite
from gcdbench.data.datasets import make_dataset
from gcdbench.data.problem import Dataset, Problem
from gcdbench.errors import UserError, unknown
from gcdbench.experiment.plan import Request, make_cells

T = TypeVar("T")


def say(text: str = "") -> None:
    """Write a line of results to stdout."""
    sys.stdout.write(f"{text}\n")


def suite_datasets(
    name: str, root: Path | None, datasets: Iterable[str] = ()
) -> dict[str, Dataset]:
    """Return the datasets of a suite by name, all of them or those in ``datasets``."""
    suite = Suite.load(name)
    for dataset in datasets:
        if dataset not in suite.datasets:
            raise unknown("dataset", dataset, suite.datasets, f"suite {suite.name}")
    return {
        dataset: make_dataset(entry["source"], root, entry.get("config"))
        for dataset, entry in suite.datasets.items()
        if not datasets or dataset in datasets
    }


def suite_problem(suite: str, dataset: str, root: Path | None) -> tuple[Problem, Path | None]:
    """Build the problem of a suite's dataset as a run does; return its data root, too."""
    cells = make_cells(
        Request(suite, methods=("simgcd",), datasets=(dataset,) if dataset else (), data_root=root)
    )
    if len({cell.dataset for cell in cells}) > 1:
        names = ", ".join(dict.fromkeys(cell.dataset for cell in cells))
        raise UserError(f"suite {suite} has several datasets; name one with --dataset: {names}")
    return cells[0].problem(), cells[0].loader().root


def in_parallel(
    work: Callable[[Any], T],
    items: Iterable[Any],
    *,
    workers: int | None,
    prepare: Callable[..., None],
    given: tuple[Any, ...],
) -> Iterator[T]:
    """Yield the results of ``work`` on all items, in any order, computed by several processes.

    ``prepare`` is called once in each process, with the arguments ``given``.
    """
    workers = workers or os.cpu_count() or 1
    if workers == 1:
        prepare(*given)
        yield from map(work, items)
        return
    fresh = multiprocessing.get_context("spawn")  # a fork would copy the locks of other threads
    start = (prepare, given)
    with ProcessPoolExecutor(workers, fresh, initializer=_begin, initargs=start) as pool:
        try:
            for future in as_completed([pool.submit(work, item) for item in items]):
                yield future.result()
        except BrokenProcessPool as error:
            raise UserError(
                "a process ended before its work was done, perhaps for lack of memory; run the "
                "same command again, with fewer --workers"
            ) from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _begin(prepare: Callable[..., None], given: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare(*given)


def _end_with_parent() -> None:
    """End this process when its parent is gone: a parent that was killed cannot stop it."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
