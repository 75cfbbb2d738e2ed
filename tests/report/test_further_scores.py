"""Scores next to the accuracies: what is selected with hidden labels, and never ranked."""

from __future__ import annotations

import csv
import io
import json

import pytest
from helpers.paths import ROOT
from helpers.synthetic_records import collection, make_record, set_scores

from gcdbench.experiment.record import CurvePoint, ProblemFacts, SplitAccuracies
from gcdbench.report import further_scores
from gcdbench.report.formats import FORMATS
from gcdbench.report.further_scores import selected_with_hidden_labels
from gcdbench.report.leaderboard import make_leaderboard
from gcdbench.report.page.build import page


def point(epoch, **sets):
    scores = {name.replace("_", "/"): SplitAccuracies(*values) for name, values in sets.items()}
    return CurvePoint(epoch, 0.1, {}, scores)


def record(curve, **sets):
    made = {name: set_scores(role, every) for name, (role, every) in sets.items()}
    settings = {"train": {"epochs": 9, "lr": 0.1, "batch_size": 1, "draws_per_epoch": None}}
    return make_record(settings=settings, sets=made, summary={}, curve=tuple(curve))


def test_the_best_epoch_is_chosen_for_each_set_by_all():
    curve = [
        point(2, line=(0.6, 0.1, 0.9), solid=(0.2, 0.2, 0.2)),
        point(5, line=(0.5, 0.9, 0.9), solid=(0.4, 0.3, 0.5)),
    ]
    made = record(curve, line=("source", 0.55), solid=("shifted", 0.3))
    best = selected_with_hidden_labels(made)
    assert best["line"] == (3, SplitAccuracies(0.6, 0.1, 0.9))
    assert best["solid"] == (6, SplitAccuracies(0.4, 0.3, 0.5))


def test_the_last_epoch_counts_and_wins_a_tie():
    made = record([point(2, line=(0.6, 0.5, 0.7))], line=("source", 0.6))
    epoch, scores = selected_with_hidden_labels(made)["line"]
    assert (epoch, scores.all, scores.old) == (9, 0.6, 0.6)


def test_nothing_is_selected_if_only_the_last_epoch_was_scored():
    assert selected_with_hidden_labels(record([point(0)], line=("source", 0.6))) == {}


def test_corruptions_are_averaged_within_an_epoch_before_one_is_chosen():
    curve = [
        point(2, fog_1=(0.9, 0.9, 0.9), fog_2=(0.1, 0.1, 0.1)),
        point(5, fog_1=(0.6, 0.6, 0.6), fog_2=(0.6, 0.6, 0.6)),
        point(7, fog_1=(1.0, 1.0, 1.0)),  # not all sets: no mean
    ]
    made = record(curve, **{"fog/1": ("shifted", 0.3), "fog/2": ("shifted", 0.3)})
    made.summary["corrupted"] = set_scores("", 0.3)
    assert selected_with_hidden_labels(made)["corrupted"] == (6, SplitAccuracies(0.6, 0.6, 0.6))


def test_scores_are_means_over_seeds_in_percent():
    rates = [{"all_floor": 0.1, "old_unmatched": 0.5, "clusters": 7.0, "purity_new": 0.2}] * 2
    rates[1] = {**rates[0], "all_floor": 0.3}
    facts = ProblemFacts(65, 40, 52, 1, 1, {})
    made = [
        make_record(
            seed=n, sets={"line": set_scores("source", 0.5, rates=one)}, summary={}, problem=facts
        )
        for n, one in enumerate(rates)
    ]
    found = further_scores.further_scores(made)
    every, old, new = (found["toy", "line", split, "m"] for split in ("All", "Old", "New"))
    assert (every["floor"], every["clusters"]) == pytest.approx((20, 7))
    assert every["classes_error"] == pytest.approx(100 * 13 / 65)
    assert (old["unmatched"], new["purity"]) == pytest.approx((50, 20))
    assert "unmatched" not in every
    assert "classes" not in old


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    made = collection(
        tmp_path_factory.mktemp("runs"), methods=["simgcd", "hilo"], datasets=["line+solid"]
    )
    return make_leaderboard(made, "toy")


def test_tables_name_what_was_selected_and_do_not_rank_it(board):
    text = FORMATS["md"](board)
    assert text.count("selected with hidden labels") == 1
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](board))))
    names = [name for name in rows[0] if "hidden" in name]
    assert names == list(further_scores.ORACLE)
    best = {row["method"]: float(row[names[0]]) for row in rows if row["split"] == "All"}
    last = {row["method"]: float(row["mean"]) for row in rows if row["split"] == "All"}
    assert all(best[method] >= last[method] for method in best)
    order = [one["method"] for one in json.loads(FORMATS["json"](board))["methods"]]
    assert order == ["hilo", "simgcd"]


def test_the_page_names_it_too(board):
    text = page(board)
    assert "best epoch, selected with hidden labels" in text
    assert 'href="#further"' in text


@pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="needs the source tree")
def test_every_column_is_documented():
    text = (ROOT / "docs" / "pages" / "scores.md").read_text(encoding="utf-8")
    assert [
        name
        for name in further_scores.NAMES
        if name.removeprefix("gap_").removeprefix("epoch_") not in text
    ] == []
