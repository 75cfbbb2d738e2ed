"""The committed leaderboards are what the committed records give, to the last byte."""

from __future__ import annotations

import pytest
from helpers.paths import ROOT

from gcdbench.experiment.plan import Request
from gcdbench.report.baselines import with_baselines
from gcdbench.report.collect import collect
from gcdbench.report.formats import write_all
from gcdbench.report.leaderboard import make_leaderboard
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
