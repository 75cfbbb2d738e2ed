"""What is committed in results/ is what its records give, to the last byte; pictures excepted."""

from __future__ import annotations

import csv
import importlib
import json

import pytest
from helpers.paths import ROOT

from gcdbench.experiment import records
from gcdbench.experiment.plan import Request, make_cells
from gcdbench.experiment.tuning.criteria import CRITERIA
from gcdbench.experiment.tuning.criteria import DEFAULT as BY
from gcdbench.experiment.tuning.samplers import flat_settings
from gcdbench.paper_tables.tables import load
from gcdbench.report.formats import selection
from gcdbench.report.tuning.selection import DEFAULT, Trial, lines

COMMITTED = ROOT / "results" / "drawshift"


@pytest.fixture
def leaderboards(monkeypatch):
    """Return the script that makes the folder."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks" / "embedded")
    return importlib.import_module("leaderboards")


def files(folder):
    return {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}


def test_leaderboards_and_site_follow_from_the_committed_records(leaderboards, tmp_path):
    (tmp_path / "drawshift").mkdir()
    leaderboards.write_leaderboards(tmp_path, plots=False)
    made, there = files(tmp_path), files(ROOT / "results")
    assert {name for name in there if name.parts[0] == "site"} < made.keys()
    for name, path in made.items():
        assert path.read_bytes() == there[name].read_bytes(), name


def test_the_other_tables_follow_from_the_committed_records(leaderboards, tmp_path):
    for name, cells in leaderboards.cells().items():
        done = {records.cell_folder(COMMITTED / name, cell) for cell in cells}
        stale = {path.parent for path in (COMMITTED / name).rglob(records.RECORD)} - done
        # train them again (benchmarks/embedded/leaderboards.py), or delete them and their tables
        assert not stale, f"{min(stale)} is of other code"
    (tmp_path / "drawshift").mkdir()
    leaderboards.write_tables(tmp_path)
    leaderboards.write_reading(tmp_path)
    for name, path in files(tmp_path).items():
        assert path.read_bytes() == (ROOT / "results" / name).read_bytes(), name


def test_records_are_kept_moved_and_deleted_and_missing_ones_are_named(
    leaderboards, monkeypatch, tmp_path
):
    request = Request("drawshift", ("simgcd",), datasets=("line+solid",), seeds=(0, 1, 99))
    first, second, missing = make_cells(request)
    runs = COMMITTED / "records"

    def keep(**wanted):
        monkeypatch.setattr(leaderboards, "cells", lambda: wanted)
        return list(leaderboards.keep(runs, tmp_path))

    said = [f"{missing.label}: no record in {runs}"]
    assert keep(records=[first, missing], variants=[second]) == said
    (folder,) = (path.parent for path in (tmp_path / "records").rglob(records.PREDICTIONS))
    assert files(folder).keys() == files(records.cell_folder(runs, first)).keys()
    runs = tmp_path / "nothing"
    assert keep(records=[second], variants=[]) == []
    assert records.is_done(tmp_path / "records", second)
    assert len([*tmp_path.rglob(records.RECORD)]) == 1


def test_the_committed_study_of_criteria_follows_from_its_draws():
    with (COMMITTED / "selection-draws.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    pairs = dict.fromkeys((row["dataset"], row["method"]) for row in rows)
    trials = []
    for pair in pairs:
        own = [row for row in rows if (row["dataset"], row["method"]) == pair]
        assert json.loads(own[0]["settings"]) == {}  # the defaults
        values = {name: [float(row[name]) for row in own] for name in CRITERIA}
        trials.append(Trial(*pair, values, [float(row["target"]) for row in own]))
    found = lines(trials, (DEFAULT, *CRITERIA))
    assert selection.to_csv(found) == (COMMITTED / "selection.csv").read_text(encoding="utf-8")
    page = (COMMITTED / "selection.md").read_text(encoding="utf-8")
    written = selection.markdown(found, trials, suite="drawshift", planned=len(trials))
    assert page.partition("The runs took")[0] == written.partition("The runs took")[0]


def test_tuned_rows_are_the_draws_that_are_best_on_hidden_classes():
    draws: dict[tuple[str, str], list[dict[str, str]]] = {}
    for name in ("selection-draws.csv", "tuned-draws.csv"):
        with (COMMITTED / name).open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                draws.setdefault((row["dataset"], row["method"]), []).append(row)
    assert {len(found) for found in draws.values()} == {12}  # equal budgets
    best = {
        pair: json.loads(max(found, key=lambda row: float(row[BY]))["settings"])
        for pair, found in draws.items()
    }
    shown = {
        (panel.datasets[0], row.spec): flat_settings(row.settings)
        for panel in load("tuned").panels
        for row in panel.rows
        if row.settings
    }
    assert shown == {pair: settings for pair, settings in best.items() if settings}
