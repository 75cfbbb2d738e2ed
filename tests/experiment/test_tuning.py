"""Searches for settings: equal budgets, resumable, and blind to hidden labels."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.synthetic_records import make_record, set_scores
from helpers.tuned_records import with_predictions, write

from gcdbench.core import registry
from gcdbench.core.method_spec import MethodSpec
from gcdbench.data.tuning.folds import hide_classes
from gcdbench.data.tuning.names import SELECTION, VARIANTS
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.experiment.plan import Request, make_cells
from gcdbench.experiment.record import Record
from gcdbench.experiment.tuning import criteria, search
from gcdbench.experiment.tuning.ranges import Range, ranges_of
from gcdbench.experiment.tuning.samplers import flat_settings, random_draw, tpe_draw
from gcdbench.experiment.tuning.search import Draw, Search
from gcdbench.report.collect import collect
from gcdbench.report.formats import FORMATS
from gcdbench.report.leaderboard import make_leaderboard
from gcdbench.report.page.build import page

REQUEST = Request("drawshift", quick=True)


def a_search(**given):
    usual = {"method": "simgcd", "dataset": "line+solid", "seed": 0, "budget": 4}
    return Search(REQUEST, **usual | given)


METHODS = sorted(registry.available("method"))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_ranges_that_its_settings_accept(name):
    one = a_search(method=name, budget=6)
    assert {"train.lr", "train.epochs"} <= {found.key for found in one.ranges}
    assert len(one.ranges) >= 4, "learning rate and epochs, and two of its own"
    for number in range(1, 6):
        drawn = random_draw(one.ranges, one.defaults, method=name, seed=0, number=number)
        one.draw_cells(drawn, 1)  # builds every config


@pytest.mark.parametrize("name", METHODS)
def test_published_defaults_lie_in_the_ranges(name):
    info = registry.get("method", name)
    defaults = info.config()
    for one in ranges_of(MethodSpec.parse(name), {}):
        if one.section == name:
            value = getattr(defaults, one.name)
            inside = value in one.values or (
                one.kind not in ("choice", "times") and one.values[0] <= value <= one.values[1]
            )
            assert inside, (one.key, value)


def test_draw_zero_is_the_defaults_and_others_do_not_depend_on_the_budget():
    short, long = a_search(budget=2), a_search(budget=6)
    first = [one.settings for one in long.draws(Path("nowhere"))]
    assert first[0] == {}
    assert [one.settings for one in short.draws(Path("nowhere"))] == first[:2]
    assert len({str(settings) for settings in first}) == 6
    assert [one.settings for one in a_search(seed=1).draws(Path("nowhere"))][1] != first[1]


def test_all_methods_get_the_same_number_of_draws():
    counts = {len(a_search(method=name).draws(Path("nowhere"))) for name in METHODS[:4]}
    assert counts == {4}


def test_what_is_set_is_not_searched():
    fixed = replace(REQUEST, assignments={"train": {"lr": 0.03}, "gcd": {"sup_weight": 0.5}})
    one = Search(fixed, "gcd", "line+solid", 0, 3)
    assert not {"train.lr", "gcd.sup_weight"} & {found.key for found in one.ranges}
    cell = one.draw_cells(one.draws(Path("nowhere"))[2].settings, 2)[0]
    assert (cell.train.lr, cell.method_config["sup_weight"]) == (0.03, 0.5)


@pytest.mark.parametrize(
    ("kind", "values", "low", "high"),
    [("log", (0.01, 0.2), 0.01, 0.2), ("uniform", (0.2, 0.5), 0.2, 0.5), ("integer", (2, 5), 2, 5)],
)
def test_numbers_stay_in_their_range(kind, values, low, high):
    one = Range("train", "x", kind, values)
    drawn = [one.at(share, None) for share in np.linspace(0, 0.999999, 101)]
    assert (min(drawn), max(drawn)) == pytest.approx((low, high), rel=0.02)
    assert drawn == sorted(drawn)


def test_the_logarithm_of_a_rate_is_uniform():
    one = Range("train", "lr", "log", (0.001, 0.1))
    assert one.at(0.5, None) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ('{"learning_rate": ("log", 1, 2)}', "no such setting"),
        ('{"train.lr": ("log", 0, 2)}', "above 0"),
        ('{"train.lr": ("log", 2, 1)}', "lower one first"),
        ('{"train.lr": ("gauss", 1, 2)}', "a range is a kind"),
        ("[1]", "must be a mapping"),
    ],
)
def test_a_wrong_range_is_named(tmp_path, monkeypatch, given, reason):
    path = tmp_path / "mine.py"
    path.write_text(
        "from gcdbench.plugin import Method\n\n\nclass Mine(Method):\n    tuning = " + given + "\n"
    )
    monkeypatch.setattr(registry, "_plugins", {kind: {} for kind in registry.KINDS})
    registry.add_plugin(path)
    with pytest.raises(UserError, match=reason):
        ranges_of(MethodSpec.parse("mine"), {})


def scored(old, new, **more):
    sets = {SELECTION: set_scores("validation", 0.5, old=old, new=new)}
    sets |= {"line": set_scores("source", 0.6, rates={"silhouette": 0.1}), **more}
    return make_record(sets=sets, summary={})


def test_criteria_are_what_they_say():
    one = scored(0.8, 0.2, solid=set_scores("shifted", 0.2), fog=set_scores("shifted", 0.6))
    preds = dict(zip(VARIANTS, (np.array([1, 2, 3, 3]), np.array([1, 2, 0, 0])), strict=True))
    values = {name: rate(one, preds) for name, rate in criteria.CRITERIA.items()}
    assert values == pytest.approx(
        {
            "hidden": 2 * 0.8 * 0.2 / 1.0,
            "labelled": 0.8,
            "labelled+silhouette": 0.45,
            "agreement": 0.5,
            "oracle": (0.6 + 0.4) / 2,
        }
    )
    assert criteria.hidden(scored(0.0, 0.0), preds) == 0
    assert math.isnan(
        criteria.labelled_and_silhouette(
            make_record(sets=one.sets | {"line": set_scores("source", 1)}, summary={}), preds
        )
    )


def draws_with(*values):
    given = [None if v is None else dict.fromkeys(criteria.CRITERIA, v) for v in values]
    return [Draw(number, {}, (), one) for number, one in enumerate(given)]


def test_the_highest_value_wins_and_the_first_of_equal_ones():
    one = a_search()
    assert one.winner(draws_with(0.1, 0.5, 0.5, None)).number == 1
    assert one.winner(draws_with(math.nan, 0.2)).number == 1
    assert one.winner(draws_with(None, None)) is None


def test_searches_use_different_folds_and_may_use_several():
    assert [a_search(seed=n).fold_numbers for n in (0, 1, 5)] == [(0,), (1,), (1,)]
    one = a_search(seed=3, folds=2)
    cells = one.draw_cells({}, 7)
    assert [cell.dataset for cell in cells] == ["line+solid@fold3", "line+solid@fold0"]
    assert cells[0].label == "simgcd (draw 7) on line+solid@fold3, seed 3"


@pytest.fixture(scope="module")
def both():
    """Return a fold of the true problem, and of one whose hidden labels are shuffled."""
    true = make_cells(Request("drawshift", ("gcd",), ("line+solid",), (0,)))[0].problem()
    labels = true.labels.copy()
    hidden = np.setdiff1d(np.arange(len(labels)), true.labelled)
    labels[hidden] = np.random.RandomState(1).permutation(labels[hidden])
    return [hide_classes(one, 0) for one in (true, replace(true, labels=labels))]


@pytest.mark.parametrize("criterion", criteria.CRITERIA)
def test_hidden_labels_do_not_reach_the_choice(both, criterion):
    cell = a_search().draw_cells({}, 0)[0]
    values = [
        [criteria.CRITERIA[criterion](*with_predictions(cell, problem, seed)) for seed in range(8)]
        for problem in both
    ]
    if criterion == "oracle":  # reads them: a diagnostic
        assert values[0] != values[1]
    else:
        assert values[0] == values[1]
        assert len(set(values[0])) > 1


def test_a_search_continues_from_what_is_recorded(tmp_path):
    one = a_search(budget=3)
    for number, draw in enumerate(one.draws(tmp_path)[:2]):
        write(tmp_path, draw.cells[0], seed=number)
    draws = one.draws(tmp_path)
    assert [draw.values is None for draw in draws] == [False, False, True]
    assert [cell.key for cell in search.missing(draws, tmp_path, ())] == [draws[2].cells[0].key]
    assert search.missing(draws, tmp_path, {draws[2].cells[0].key}) == []
    assert draws[0].seconds > 0


def test_a_search_is_written_into_the_records_that_it_chose(tmp_path):
    one = a_search(budget=2, seed=0)
    for number, draw in enumerate(one.draws(tmp_path)):
        write(tmp_path, draw.cells[0], seed=number)
    draws = one.draws(tmp_path)
    facts = one.facts(draws, draws[1])
    cell = one.final_cells(draws[1].settings, (0,))[0]
    assert search.attach(tmp_path, cell, facts) is None  # not trained yet
    before = write(tmp_path, cell, seed=3)
    search.attach(tmp_path, cell, facts)
    search.attach(tmp_path, cell, replace(facts, seed=1, draw=0))
    search.attach(tmp_path, cell, facts)
    found = records.read_done(tmp_path, cell)
    assert isinstance(found, Record)
    assert {s.seed for s in found.searches} == {0, 1}
    assert records.same_numbers(
        before, replace(found, predictions_sha256=before.predictions_sha256)
    )
    assert found.key == cell.key


@pytest.fixture
def tuned_board(tmp_path):
    one = a_search(budget=2)
    draws = one.draws(tmp_path)
    for number, draw in enumerate(draws):
        write(tmp_path, draw.cells[0], seed=number)
    draws = one.draws(tmp_path)
    defaults = one.final_cells({}, (0, 1))
    for seed, cell in enumerate(defaults):
        write(tmp_path, cell, seed=10 + seed)
    for seed, cell in enumerate(one.final_cells(draws[1].settings, (0, 1))):
        write(tmp_path, cell, seed=20 + seed)
        search.attach(tmp_path, cell, one.facts(draws, draws[1]))
    return make_leaderboard(collect(REQUEST, tmp_path, cells=defaults), "toy")


def test_default_and_tuned_stand_side_by_side(tuned_board):
    (row,) = tuned_board.tuned
    assert (row.seeds, row.search.draw, row.search.budget) == (2, 1, 2)
    numbers = tuned_board.lookup["line+solid", "line", "All", "simgcd"]
    assert row.roles["source"].default == pytest.approx(numbers.mean)
    assert row.roles["source"].tuned != pytest.approx(numbers.mean)
    assert tuned_board.collection.left_out == []
    assert len(tuned_board.collection.records) == 2


def test_the_reports_show_budget_criterion_and_cost(tuned_board):
    for text in (FORMATS["md"](tuned_board), page(tuned_board)):
        assert "Tuned settings" in text
        assert "selected with hidden labels" in text
        assert "train.lr=" in text
    assert '"criterion": "hidden"' in FORMATS["json"](tuned_board)


def test_settings_that_differ_in_more_than_what_was_searched_are_not_tuned(tmp_path):
    one = a_search(budget=2)
    draws = one.draws(tmp_path)
    for number, draw in enumerate(draws):
        write(tmp_path, draw.cells[0], seed=number)
    draws = one.draws(tmp_path)
    other = {**draws[1].settings, "train": {**draws[1].settings["train"], "momentum": 0.5}}
    (cell,) = one.final_cells(other, (0,))
    write(tmp_path, cell, seed=5)
    search.attach(tmp_path, cell, one.facts(draws, draws[1]))
    found = collect(REQUEST, tmp_path, cells=one.final_cells({}, (0,)))
    assert found.tuned == []
    assert len(found.left_out) == 1


def test_tpe_continues_with_the_same_draws():
    pytest.importorskip("optuna")
    one = a_search()
    values, drawn = [], []
    for number in range(7):
        settings = tpe_draw(one.ranges, one.defaults, values, seed=3)
        drawn.append(flat_settings(settings))
        values.append(None if number == 2 else drawn[-1].get("train.lr", 0.05))
    assert drawn[0] == {}
    assert tpe_draw(one.ranges, one.defaults, values[:4], seed=3) == drawn_nested(drawn[4])
    assert len({str(one) for one in drawn}) == 7
    for settings in drawn[1:]:
        one.draw_cells(drawn_nested(settings), 1)


def drawn_nested(settings):
    found = {}
    for key, value in settings.items():
        part_, _, name = key.partition(".")
        found.setdefault(part_, {})[name] = value
    return found
