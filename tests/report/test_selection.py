"""The study of what settings can be chosen by, on invented draws whose answers are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import kendalltau, spearmanr

from gcdbench.report.formats.selection import markdown, reading, to_csv
from gcdbench.report.plots.canvas import write
from gcdbench.report.plots.selection import selection as plot
from gcdbench.report.tuning.selection import (
    DEFAULT,
    Trial,
    correlation,
    lines,
    order_of_methods,
    spearman,
    summaries,
)

NAMES = (DEFAULT, "hidden", "labelled", "oracle")


def a_trial(method="gcd", dataset="line+solid", target=(50.0, 60.0, 40.0, 55.0)):
    target = list(target)
    values = {
        "hidden": [one / 100 for one in target],  # perfect
        "labelled": [-one for one in target],  # the wrong way round
        "oracle": [0.0] * len(target),  # says nothing
    }
    return Trial(dataset, method, values, target, seconds=60)


def test_spearman_is_that_of_scipy_with_ties():
    rng = np.random.RandomState(0)
    for _ in range(5):
        one, other = rng.randint(5, size=20).astype(float), rng.rand(20)
        assert spearman(one, other) == pytest.approx(spearmanr(one, other).statistic)
    assert math.isnan(spearman(np.ones(5), np.arange(5.0)))


def test_an_interval_of_a_correlation_holds_it_and_is_wide_for_few_draws():
    rng = np.random.RandomState(1)
    x = rng.rand(60)
    few, many = (correlation(x[:n], x[:n] + 0.5 * rng.rand(n)) for n in (8, 60))
    for one in (few, many):
        assert -1 <= one.low <= one.value <= one.high <= 1
    assert few.high - few.low > many.high - many.low


def test_regret_and_gain_of_a_perfect_a_wrong_and_a_silent_criterion():
    found = {line.criterion: line for line in lines([a_trial()], NAMES)}
    assert (found["hidden"].regret, found["hidden"].gain) == (0, 10)
    assert (found["labelled"].regret, found["labelled"].gain) == (20, -10)
    assert (found["oracle"].regret, found["oracle"].gain) == (10, 0)  # the first of equal ones
    assert (found[DEFAULT].regret, found[DEFAULT].gain) == (10, 0)
    assert found["hidden"].correlation.value == pytest.approx(1)
    assert found["labelled"].correlation.value == pytest.approx(-1)
    assert math.isnan(found["oracle"].correlation.value)


def test_means_are_over_pairs():
    pairs = [a_trial(), a_trial("simgcd", target=(10.0, 12.0, 14.0, 11.0))]
    total = {one.criterion: one for one in summaries(lines(pairs, NAMES))}
    assert total[DEFAULT].regret.value == pytest.approx((10 + 4) / 2)
    assert (total["labelled"].better, total["labelled"].worse) == (0, 1)
    assert total["labelled"].gain.low <= total["labelled"].gain.value <= total["labelled"].gain.high


def test_the_order_of_methods_before_and_after():
    pairs = [
        a_trial("gcd", target=(50.0, 52.0)),
        a_trial("simgcd", target=(49.0, 60.0)),
        a_trial("uno", target=(30.0, 31.0)),
    ]
    expected = kendalltau([50, 49, 30], [52, 60, 31]).statistic
    assert order_of_methods(pairs, "hidden") == {"line+solid": pytest.approx(expected)}
    assert expected < 1


def test_the_page_says_which_criterion_and_what_it_brings(tmp_path):
    pairs = [a_trial(), a_trial("simgcd", target=(10.0, 12.0, 14.0, 11.0))]
    found = lines(pairs, NAMES)
    text = markdown(found, pairs, suite="drawshift", planned=3)
    assert "2 of 3 method-dataset pairs" in text
    assert "`hidden` has the least mean regret: 0.0 points, against 7.0 of the defaults" in text
    assert "+7.0 points on average (better in 2, worse in 0 of 2 pairs" in text
    assert "selected with hidden labels" in text
    assert len(to_csv(found).splitlines()) == 1 + len(found)
    assert all(path.stat().st_size for path in write(plot(found), tmp_path / "selection"))
    assert "No pair" in markdown([], [], suite="drawshift", planned=3)


def test_a_criterion_that_brings_nothing_is_called_that():
    pairs = [a_trial(), a_trial("simgcd", target=(14.0, 12.0, 13.0, 11.0))]
    wrong = lines(pairs, (DEFAULT, "labelled"))
    text = reading(summaries(wrong), pairs)
    assert "−" in text
    assert "`labelled` has the least mean regret" in text
