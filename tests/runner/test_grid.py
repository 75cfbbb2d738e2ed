"""The progress of all cells: what is counted, logged and expected."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from gcdbench.experiment.outcome import Attempt
from gcdbench.runner.launchers import grid as module
from gcdbench.runner.launchers.grid import Grid


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands where it is set."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(module.time, "monotonic", lambda: now.seconds)
    return now


def cell(name: str) -> SimpleNamespace:
    return SimpleNamespace(label=name)


def test_results_are_counted_and_the_time_left_is_that_of_the_cells_so_far(clock, caplog):
    caplog.set_level(logging.INFO)
    with Grid(5) as grid:
        grid.add(cell("a"), Attempt("skipped"))
        assert grid.left() == ""
        clock.seconds = 100.0
        grid.add(cell("b"), Attempt("trained", "fine"))
        clock.seconds = 120.0
        grid.add(cell("c"), Attempt("failed", "no memory"))
        grid.add(cell("d"), Attempt("trained", "fine"))
        grid.add(cell("e"), Attempt("trained", "fine"))
    assert [record.getMessage() for record in caplog.records] == [
        "[2/5] b: fine (about 5 min left)",  # three cells of 100 s
        "[3/5] c failed: no memory (about 2 min left)",  # two of 60 s
        "[4/5] d: fine (about 40 s left)",
        "[5/5] e: fine",
    ]
    found = grid.outcome
    assert (len(found.trained), len(found.skipped), len(found.failed)) == (3, 1, 1)


@pytest.mark.parametrize(("terminal", "rank", "total"), [(True, "0", 2), (False, "0", None)])
def test_a_bar_counts_what_is_left_in_a_terminal_only(terminal, rank, total, monkeypatch, capsys):
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setenv("RANK", rank)
    grid = Grid(3)
    grid.add(cell("a"), Attempt("skipped"))
    with grid:
        assert (grid._bar and grid._bar.total) == total
        if total:
            grid.add(cell("b"), Attempt("skipped"))
            grid.add(cell("c"), Attempt("trained", "fine"))
            assert (grid._bar.n, grid._bar.total) == (1, 1)


def test_only_the_first_of_several_processes_shows_a_bar(monkeypatch):
    monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("RANK", "1")
    with Grid(3) as grid:
        assert grid._bar is None
