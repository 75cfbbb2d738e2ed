"""The numbers of a leaderboard, computed by hand for small cases."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from helpers.synthetic_records import make_record, set_scores

from gcdbench.core import registry
from gcdbench.experiment.record import CurvePoint
from gcdbench.report.collect import Collection, Place, reported_sets, tidy
from gcdbench.report.leaderboard import make_leaderboard
from gcdbench.report.style import looks
from gcdbench.report.titles import method_title


def record(method, dataset, seed, source, shifted, **more):
    """Make as much of a record as a board reads; scores are All, and the same for Old and New."""
    names = dataset.split("+") if "+" in dataset else ("original", "shifted")
    sets = {
        name: set_scores(role, score)
        for name, role, score in zip(names, ("source", "shifted"), (source, shifted), strict=True)
    }
    given = {"method": method, "dataset": dataset, "seed": seed, "sets": sets} | more
    return make_record(**given)


def board_of(records, planned=None):
    planned = planned or [Place(r.dataset, r.method, r.seed) for r in records]
    recorded = {(r.dataset, r.method, r.seed) for r in records}
    missing = [place for place in planned if place not in recorded]
    return make_leaderboard(Collection(tidy(records), records, planned, missing), "suite")


TWO = [
    record("gcd", "a+b", 0, 0.50, 0.30),
    record("gcd", "a+b", 1, 0.60, 0.40),
    record("hilo", "a+b", 0, 0.70, 0.60),
    record("hilo", "a+b", 1, 0.80, 0.50),
    record("gcd", "a+c", 0, 0.10, 0.20),
    record("gcd", "a+c", 1, 0.10, 0.40),
    record("hilo", "a+c", 0, 0.20, 0.10),
    record("hilo", "a+c", 1, 0.20, 0.30),
]


def test_a_number_is_the_mean_over_seeds_with_its_sample_deviation():
    number = board_of(TWO).lookup["a+b", "b", "All", "gcd"]
    assert (number.mean, number.seeds, number.planned) == (pytest.approx(35), 2, 2)
    assert number.std == pytest.approx(math.sqrt(50))  # ((30 - 35)² + (40 - 35)²) / (2 - 1)
    assert (number.low, number.high) == (pytest.approx(30), pytest.approx(40))


def test_ranks_are_per_set_and_split_and_the_best_is_marked():
    board = board_of(TWO)
    gcd, hilo = (board.lookup["a+b", "b", "All", method] for method in ("gcd", "hilo"))
    assert (gcd.rank, hilo.rank) == (2, 1)
    assert hilo.is_best
    assert not gcd.is_second  # the second of two is the last


def test_methods_that_tie_share_their_rank():
    tied = [record(m, "a+b", 0, 0.5, s) for m, s in (("gcd", 0.3), ("hilo", 0.3), ("uno", 0.1))]
    board = board_of(tied)
    assert [board.lookup["a+b", "b", "All", m].rank for m in ("gcd", "hilo", "uno")] == [1, 1, 3]
    assert {s.method: s.place for s in board.standings} == {"gcd": 1, "hilo": 1, "uno": 3}


def test_standings_are_means_over_datasets_of_means_over_seeds():
    hilo, gcd = board_of(TWO).standings
    assert (hilo.method, gcd.method) == ("hilo", "gcd")
    assert hilo.means["shifted"] == pytest.approx((55 + 20) / 2)
    assert gcd.means["shifted"] == pytest.approx((35 + 30) / 2)
    assert gcd.means["source"] == pytest.approx((55 + 10) / 2)
    assert math.isnan(gcd.means["unseen"])
    assert gcd.drop == pytest.approx(0)
    assert (hilo.rank, gcd.rank) == (1.5, 1.5)
    assert (hilo.place, gcd.place) == (1, 2)


def test_the_mean_of_several_shifted_sets_counts_once_per_dataset():
    many = record("gcd", "a+b", 0, 0.9, 0.2)
    many = replace(many, sets={**many.sets, "c": set_scores("shifted", 0.4)})
    assert board_of([many]).standings[0].means["shifted"] == pytest.approx(30)


def test_what_is_planned_and_not_recorded_is_visible_and_not_ranked():
    planned = [Place(r.dataset, r.method, r.seed) for r in TWO]
    board = board_of([r for r in TWO if (r.method, r.dataset) != ("hilo", "a+c")], planned)
    number = board.lookup["a+c", "c", "All", "hilo"]
    assert (number.seeds, number.planned, number.rank) == (0, 2, None)
    assert math.isnan(number.mean)
    gcd, hilo = board.standings
    assert (gcd.method, gcd.place, hilo.place, board.incomplete) == ("gcd", 1, None, ["hilo"])
    assert math.isnan(hilo.means["shifted"])
    assert (hilo.recorded, hilo.planned) == (2, 4)


def test_a_missing_seed_lowers_the_count_only():
    planned = [Place(r.dataset, r.method, r.seed) for r in TWO]
    board = board_of(TWO[1:], planned)
    number = board.lookup["a+b", "b", "All", "gcd"]
    assert (number.mean, number.seeds, number.planned) == (pytest.approx(40), 1, 2)
    assert math.isnan(number.std)
    assert board.incomplete == []


def test_a_dataset_that_nobody_recorded_takes_nobodys_rank():
    board = board_of(
        TWO, [*(Place(r.dataset, r.method, r.seed) for r in TWO), Place("a+d", "gcd", 0)]
    )
    assert board.incomplete == []
    assert board.sets_of("a+d") == []


def test_the_papers_number_stands_beside_the_measured_one():
    sets = {"original": set_scores("source", 0.5)}
    summary = {"corrupted": set_scores("", 0.3)}
    board = board_of([record("hilo", "fgvc-c", 0, 0.5, 0.3, sets=sets, summary=summary)])
    original = board.lookup["fgvc-c", "original", "All", "hilo"]
    corrupted = board.lookup["fgvc-c", "corrupted", "All", "hilo"]
    assert (original.paper, original.delta, original.impossible) == (44.2, pytest.approx(5.8), True)
    assert (corrupted.paper, corrupted.delta, corrupted.impossible) == (
        31.2,
        pytest.approx(-1.2),
        False,
    )
    assert [[n.split for n in triple] for triple in board.published()] == [
        ["All", "Old", "New"]
    ] * 2


def test_without_a_shift_methods_are_ranked_by_the_source():
    records = [record("gcd", "a+b", 0, 0.5, 0.1), record("hilo", "a+b", 0, 0.4, 0.9)]
    board = board_of([replace(one, sets={"a": one.sets["a"]}) for one in records])
    assert (board.role, board.methods) == ("source", ["gcd", "hilo"])


def test_an_empty_side_is_not_a_number():
    sets = {"a": set_scores("source", 0.5), "b": set_scores("shifted", 0.1, new=None)}
    number = board_of([record("gcd", "a+b", 0, 0.5, 0.1, sets=sets)]).lookup[
        "a+b", "b", "New", "gcd"
    ]
    assert math.isnan(number.mean)
    assert number.rank is None


def test_sets_by_severity_and_unseen_domains_enter_by_their_means():
    roles = {"original": "source", "fog/1": "shifted", "sketch": "unseen"}
    one = make_record(
        sets={name: set_scores(role, 0.5) for name, role in roles.items()},
        summary=dict.fromkeys(("corrupted", "others", "fog", "pooled"), set_scores("", 0.5)),
    )
    found = {name: s.role for name, s in reported_sets(one).items()}
    assert found == {"original": "source", "corrupted": "shifted", "others": "unseen"}


def test_a_method_looks_the_same_whatever_it_is_drawn_with():
    alone, together = looks(["hilo"]), looks(["hilo", "gcd", "simgcd", "mine", "uno"])
    assert alone["hilo"] == together["hilo"]
    assert len({look.colour for look in together.values()}) == 5


def test_all_methods_look_different_and_the_same_alone():
    every = looks(registry.bundled_names("method"))
    assert len(every) >= 18
    assert len({(look.colour, look.marker) for look in every.values()}) == len(every)
    assert len({(look.colour, look.hatch) for look in every.values()}) == len(every)
    assert looks(["sptnet"])["sptnet"] == every["sptnet"]


def test_a_method_is_called_what_its_file_calls_it():
    found = [method_title(name) for name in ("mugcd", "rankstats", "hilo+mcc", "nowhere")]
    assert found == ["muGCD", "RankStats+", "HiLo + MCC", "nowhere"]


def test_variants_of_a_method_differ_in_tint_marker_and_hatch():
    base, variant = looks(["simgcd", "simgcd+patchmix"]).values()
    assert base.colour != variant.colour
    assert base.marker != variant.marker
    assert base.hatch != variant.hatch


def test_images_held_out_of_training_are_shown_last_and_do_not_count():
    held = set_scores("validation", 0.9, new=None)
    records = [record(m, "a+b", 0, 0.5, s) for m, s in (("gcd", 0.3), ("hilo", 0.2))]
    records[1] = replace(records[1], sets={"validation": held, **records[1].sets})
    board = board_of(records)
    assert board.sets_of("a+b") == [("a", "source"), ("b", "shifted"), ("validation", "validation")]
    assert [standing.method for standing in board.standings] == ["gcd", "hilo"]


def test_a_method_that_predicts_no_new_class_is_named():
    def said(*shares):
        records = [
            record(method, "a+b", seed, 0.5, 0.3, curve=[CurvePoint(0, 0.1, {}, {}, watched)])
            for seed, pair in enumerate(shares)
            for method, watched in zip(("rankstats", "simgcd"), pair, strict=True)
        ]
        return [sentence for sentence in board_of(records).caveats if "no new class" in sentence]

    some, few, none = ({"predicted_new": share} for share in (0.5, 0.001, 0.0))
    assert said(({}, {})) == []
    assert said((none, some), (some, some)) == []  # it did with one seed
    (only,) = said((none, some), (few, some))
    assert only.startswith("RankStats+ predicts no new class")
