"""The committed leaderboards are what the committed records give, to the last byte."""

from __future__ import annotations

import csv
import json

import pytest
from helpers.paths import ROOT

from gcdbench.experiment.plan import Request
from gcdbench.experiment.tuning.criteria import CRITERIA
from gcdbench.report.baselines import with_baselines
from gcdbench.report.collect import collect
from gcdbench.report.formats import selection, write_all
from gcdbench.report.leaderboard import make_leaderboard
from gcdbench.report.tuning.selection import DEFAULT, Trial, lines
from gcdbench.training.scoring.rescore import judge

COMMITTED = ROOT / "results" / "drawshift"
METHODS = ("rankstats", "uno", "orca", "gcd", "simgcd", "uniot", "hilo")
SUFFIXES = {
    "drawshift": ("md", "csv", "json", "tex"),
    "drawshift-all": ("md", "csv"),
    "drawshift-c": ("md", "csv"),
}


@pytest.mark.parametrize("suite", SUFFIXES)
def test_committed_leaderboards_follow_from_the_committed_records(suite, tmp_path):
    request = Request(suite, METHODS, seeds=(0, 1, 2, 3, 4))
    found = collect(request, COMMITTED / "records", as_recorded=True, judge=judge)
    assert (found.missing, found.left_out) == ([], [])
    board = with_baselines(make_leaderboard(found, suite), COMMITTED / "baselines.csv")
    write_all(board, tmp_path)
    for suffix in SUFFIXES[suite]:
        name = f"{suite}.{suffix}"
        assert (tmp_path / name).read_bytes() == (COMMITTED / name).read_bytes(), name


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
