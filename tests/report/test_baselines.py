"""Baselines stand among the methods of a leaderboard and change nothing about them."""

from __future__ import annotations

import csv
import math
import statistics

import pytest
from helpers.paths import ROOT

from gcdbench.errors import UserError
from gcdbench.experiment.plan import Request
from gcdbench.report.baselines import with_baselines
from gcdbench.report.collect import collect
from gcdbench.report.formats import FORMATS
from gcdbench.report.formats.terminal import as_terminal
from gcdbench.report.leaderboard import make_leaderboard
from gcdbench.report.page.build import page

COMMITTED = ROOT / "results" / "drawshift"
FILE = COMMITTED / "baselines.csv"
HEAD = "suite,dataset,baseline,seed,set,role,all,old,new\n"


def board(suite="drawshift", methods=("gcd", "simgcd"), **more):
    request = Request(suite, methods, seeds=(0, 1), **more)
    return make_leaderboard(collect(request, COMMITTED / "records", as_recorded=True), suite)


@pytest.fixture(scope="module")
def plain():
    return board()


def rows_of(suite, dataset, baseline, role):
    with FILE.open(encoding="utf-8", newline="") as file:
        found = [
            row
            for row in csv.DictReader(file)
            if (row["suite"], row["baseline"], row["role"]) == (suite, baseline, role)
            and dataset in (None, row["dataset"])
        ]
    assert found
    return found


def test_a_baseline_has_its_place_by_the_mean_and_no_rank(plain):
    shown = with_baselines(plain, FILE)
    rows = shown.table_rows
    means = [one.means["shifted"] for one in rows]
    assert means == sorted(means, reverse=True)
    assert [one.place for one in rows if one.is_baseline] == [None] * 5
    datasets = [
        statistics.fmean(
            float(row["all"]) for row in rows_of("drawshift", name, "k-means", "shifted")
        )
        for name in plain.collection.datasets
    ]
    found = next(one for one in rows if one.method == "k-means")
    assert found.means["shifted"] == pytest.approx(statistics.fmean(datasets))
    assert math.isnan(found.means["unseen"])


def test_methods_keep_their_numbers(plain):
    shown = with_baselines(plain, FILE)
    assert shown.standings == plain.standings
    assert shown.comparisons == plain.comparisons
    assert shown.methods == plain.methods
    assert [n.rank for n in shown.numbers] == [n.rank for n in plain.numbers]


def test_a_number_is_the_mean_and_deviation_over_seeds(plain):
    shown = with_baselines(plain, FILE)
    found = shown.lookup["line+solid", "solid", "New", "raw pixels"]
    values = [
        float(row["new"]) for row in rows_of("drawshift", "line+solid", "raw pixels", "shifted")
    ]
    assert (found.seeds, found.rank) == (len(values), None)
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert found.std == pytest.approx(statistics.stdev(values))


def test_corruptions_are_averaged():
    shown = with_baselines(board("drawshift-c"), FILE)
    found = shown.lookup["line-c", "corrupted", "All", "k-means"]
    rows = rows_of("drawshift-c", "line-c", "k-means", "shifted")
    assert found.mean == pytest.approx(statistics.fmean(float(row["all"]) for row in rows))
    assert len({row["set"] for row in rows}) > 1
    assert found.seeds == len({row["seed"] for row in rows})


@pytest.mark.parametrize("name", [*FORMATS, "text", "page"])
def test_every_format_shows_them(plain, name):
    render = {**FORMATS, "text": as_terminal, "page": page}[name]
    assert "raw pixels" not in render(plain)
    assert "raw pixels" in render(with_baselines(plain, FILE))


def test_random_clusters_are_shown_once(plain):
    text = FORMATS["md"](with_baselines(plain, FILE))
    assert text.count("| random clusters |") == 1 + len(plain.collection.datasets)


def test_a_baseline_without_a_dataset_has_no_mean_and_comes_last(plain, tmp_path):
    path = tmp_path / "some.csv"
    path.write_text(f"{HEAD}drawshift,line+solid,mine,0,solid,shifted,99,99,99\n")
    last = with_baselines(plain, path).table_rows[-1]
    assert last.method == "mine"
    assert math.isnan(last.means["shifted"])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,b\n", "no column 'all'"),
        (HEAD, "no row of the suite drawshift"),
        (f"{HEAD}drawshift,line+solid,x,0,solid,shifted,a,1,1\n", "line 2: seed and all must be"),
        (f"{HEAD}drawshift,line+solid,x,0,solid,shifted,nan,1,1\n", "expected a percentage"),
        (f"{HEAD}drawshift,line+solid,x,0,solid,shifted,101,1,1\n", "expected a percentage"),
        (f"{HEAD}drawshift,line+solid,x,0,solid,other,1,1,1\n", "role 'other'; expected one of"),
        (f"{HEAD}drawshift,line+solid,x,0,solid\n", "line 2"),
        (
            f"{HEAD}drawshift,line+solid,gcd,0,solid,shifted,1,1,1\n",
            "'gcd' is the name of a method",
        ),
    ],
)
def test_a_wrong_file_is_named_in_a_sentence(plain, tmp_path, text, reason):
    path = tmp_path / "wrong.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=reason):
        with_baselines(plain, path)


def test_a_file_that_is_no_text_is_named(plain, tmp_path):
    path = tmp_path / "wrong.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="cannot be read as CSV"):
        with_baselines(plain, path)
    with pytest.raises(UserError, match="cannot be read as CSV"):
        with_baselines(plain, tmp_path / "none.csv")
