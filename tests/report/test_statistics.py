"""Statistics against published worked examples, brute force and hand-computed cases."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from gcdbench.report import statistics
from gcdbench.report.statistics import bootstrap, caveats, compare, holm, rank, wilcoxon

# Demšar, JMLR 7 (2006), table 2: AUC of C4.5 and of C4.5 with m tuned
C45 = [
    *[0.763, 0.599, 0.954, 0.628, 0.882, 0.936, 0.661],
    *[0.583, 0.775, 1.0, 0.94, 0.619, 0.972, 0.957],
]
C45_M = [
    *[0.768, 0.591, 0.971, 0.661, 0.888, 0.931, 0.668],
    *[0.583, 0.838, 1.0, 0.962, 0.666, 0.981, 0.978],
]
# the same, table 6: ranks of C4.5, C4.5+m, C4.5+cf and C4.5+m+cf on 14 datasets
DEMSAR_RANKS = [
    *[(4, 3, 2, 1), (1, 2, 3, 4), (4, 1, 2, 3), (4, 1, 3, 2), (4, 2, 3, 1), (1, 2.5, 4, 2.5)],
    *[(3, 2, 4, 1), (2.5, 2.5, 4, 1), (4, 3, 2, 1), (2.5, 2.5, 2.5, 2.5), (4, 2.5, 1, 2.5)],
    *[(3, 2, 4, 1), (4, 1, 2, 3), (3, 1, 4, 2)],
]
# Hollander and Wolfe (1973), p. 140: 22 players rounding first base in three ways
ROUNDING = [
    *[(5.40, 5.50, 5.55), (5.85, 5.70, 5.75), (5.20, 5.60, 5.50), (5.55, 5.50, 5.40)],
    *[(5.90, 5.85, 5.70), (5.45, 5.55, 5.60), (5.40, 5.40, 5.35), (5.45, 5.50, 5.35)],
    *[(5.25, 5.15, 5.00), (5.85, 5.80, 5.70), (5.25, 5.20, 5.10), (5.65, 5.55, 5.45)],
    *[(5.60, 5.35, 5.45), (5.05, 5.00, 4.95), (5.50, 5.50, 5.40), (5.45, 5.55, 5.50)],
    *[(5.55, 5.55, 5.35), (5.45, 5.50, 5.55), (5.50, 5.45, 5.25), (5.65, 5.60, 5.40)],
    *[(5.70, 5.65, 5.55), (6.30, 6.30, 6.25)],
]


def scores(**columns):
    """Make a table of scores from ``{method: {dataset: [seeds]}}``."""
    series = {
        method: pd.Series({(d, s): v for d, row in rows.items() for s, v in enumerate(row)})
        for method, rows in columns.items()
    }
    return pd.DataFrame(series).rename_axis(index=["dataset", "seed"])


def by_enumeration(values):
    """Return the sum of the negative ranks, and p from all signs; zeros count half either way."""
    values = np.asarray(values, dtype=float)
    ranks = stats.rankdata(np.abs(values))
    zeros = ranks[values == 0].sum() / 2
    used, signs = ranks[values != 0], np.sign(values[values != 0])
    flips = np.array(list(itertools.product([-1, 1], repeat=len(used))))
    p = (np.abs(flips @ used) >= abs(signs @ used)).mean()
    return used[signs < 0].sum() + zeros, p


def test_wilcoxon_finds_what_demsar_finds():
    difference = np.round(np.subtract(C45_M, C45), 3)
    negative, p = by_enumeration(difference)
    assert negative == 12  # printed, with 93 for the positive ranks; the critical value is 21
    assert wilcoxon(difference) == pytest.approx(p)
    assert wilcoxon(difference) < 0.05


@pytest.mark.parametrize("values", [[1, 2, 3], [1, 1, 2, -3], [0.5, -0.5, 2, 2, 0, 4], [2, 2, 2]])
def test_wilcoxon_is_exact_also_with_ties(values):
    assert wilcoxon(values) == pytest.approx(by_enumeration(values)[1])


@pytest.mark.parametrize("count", [5, 12, 25])
def test_wilcoxon_is_scipys_where_there_are_no_ties(count):
    values = np.random.RandomState(count).standard_normal(count) + 0.3
    assert wilcoxon(values) == pytest.approx(stats.wilcoxon(values, method="exact").pvalue)


@pytest.mark.parametrize(("methods", "alpha"), [(2, 0.05), (3, 0.01), (7, 0.05), (40, 0.1)])
def test_the_studentised_range_is_scipys(methods, alpha):
    q = stats.studentized_range.ppf(1 - alpha, methods, np.inf)
    wanted = q / math.sqrt(2) * math.sqrt(methods * (methods + 1) / (6 * 10))
    found = statistics.critical_difference(methods, 10, alpha=alpha)
    assert found == pytest.approx(wanted, rel=1e-6)


def test_friedman_is_scipys():
    values = np.random.RandomState(0).randint(5, size=(9, 4)).astype(float)
    found = rank(pd.DataFrame(values))
    wanted = stats.friedmanchisquare(*values.T)
    assert found is not None
    assert (found.chi2, found.p) == (pytest.approx(wanted.statistic), pytest.approx(wanted.pvalue))


def test_equal_methods_do_not_differ():
    assert wilcoxon([0, 0, 0]) == 1.0


def test_three_pairs_cannot_reach_a_quarter():
    best = min(
        wilcoxon(signs * np.array([1, 2, 3])) for signs in itertools.product([-1, 1], repeat=3)
    )
    assert best == statistics.smallest_p(3) == 0.25
    assert statistics.pairs_needed(1) == 6
    assert wilcoxon([1, 2, 3, 4, 5, 6]) == pytest.approx(0.03125)


def test_holm_multiplies_the_smallest_most_and_keeps_the_order():
    # Holm (1979) as worked in many textbooks: 0.01, 0.02, 0.03, 0.04
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_average_ranks_and_critical_difference_are_demsars():
    table = pd.DataFrame(-np.array(DEMSAR_RANKS, dtype=float), columns=["c", "m", "cf", "m+cf"])
    found = rank(table)
    assert found is not None
    assert found.methods == ["m+cf", "m", "cf", "c"]
    assert found.ranks == pytest.approx([1.964, 2.0, 2.893, 3.143], abs=5e-4)
    assert found.critical_difference == pytest.approx(1.25, abs=5e-3)
    assert statistics.critical_difference(4, 14, alpha=0.1) == pytest.approx(1.12, abs=5e-3)
    # as he says: nothing can be told apart at 5%, c from m and m+cf at 10%
    assert found.groups == [(0, 3)]
    at_10 = rank(table, alpha=0.1)
    assert at_10 is not None
    assert at_10.groups == [(0, 2), (2, 3)]


def test_friedman_without_ties_is_demsars_formula():
    table = np.array(DEMSAR_RANKS, dtype=float)
    n, k = table.shape
    average = table.mean(axis=0)
    plain = 12 * n / (k * (k + 1)) * ((average**2).sum() - k * (k + 1) ** 2 / 4)
    assert plain == pytest.approx(9.28, abs=5e-3)  # printed; it ignores the ties
    found = rank(pd.DataFrame(-table))
    ties = sum(4**3 - 4 if len(set(row)) == 1 else 2**3 - 2 for row in table if len(set(row)) < 4)
    assert found is not None
    assert found.chi2 == pytest.approx(plain / (1 - ties / (n * k * (k * k - 1))))


def test_friedman_with_ties_is_hollander_and_wolfes():
    found = rank(pd.DataFrame(ROUNDING))
    assert found is not None
    assert found.chi2 == pytest.approx(11.143, abs=5e-4)
    assert found.p == pytest.approx(0.003805, abs=5e-7)


def test_nemenyis_values_are_those_of_the_published_table():
    published = [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]
    scale = [math.sqrt(k * (k + 1) / (6 * 30)) for k in range(2, 11)]
    found = [
        statistics.critical_difference(k, 30) / s for k, s in zip(range(2, 11), scale, strict=True)
    ]
    assert found == pytest.approx(published, abs=1.5e-3)


def test_a_ranking_needs_two_methods_on_two_datasets():
    assert rank(pd.DataFrame({"a": [1.0, 2.0]})) is None
    assert rank(pd.DataFrame({"a": [1.0], "b": [2.0]})) is None
    equal = rank(pd.DataFrame({"a": [1.0, 1.0], "b": [1.0, 1.0]}))
    assert equal is not None
    assert (equal.chi2, equal.p) == (0.0, 1.0)


def test_a_bootstrap_over_the_seeds_of_one_dataset_is_scipys():
    values = np.random.RandomState(3).normal(50, 4, size=12)
    ours = bootstrap([values])
    theirs = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(0)
    ).confidence_interval
    assert tuple(ours) == pytest.approx((theirs.low, theirs.high), abs=0.1)


def test_a_bootstrap_over_datasets_and_seeds_is_the_enumeration_of_all_resamples():
    rows = [[1.0, 2.0], [10.0, 14.0]]
    means = []
    for first, second in itertools.product(rows, repeat=2):
        for x in itertools.product(first, repeat=2):
            for y in itertools.product(second, repeat=2):
                means.append((np.mean(x) + np.mean(y)) / 2)
    low, high = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    assert tuple(bootstrap(rows)) == pytest.approx((low, high), abs=0.3)


def test_datasets_weigh_the_same_whatever_their_seeds():
    low, high = bootstrap([[0.0] * 50, [100.0]])
    assert (low, high) == (0.0, 100.0)  # a quarter of the resamples each hold one dataset twice


def test_a_single_number_has_no_interval():
    assert all(map(math.isnan, bootstrap([[5.0]])))
    assert all(map(math.isnan, bootstrap([[5.0], [math.nan]])))
    assert all(map(math.isnan, bootstrap([])))


def test_the_same_values_always_have_the_same_interval():
    statistics._resamples.cache_clear()
    first = bootstrap([[1.0, 2.0, 4.0], [3.0, 5.0, 9.0]])
    statistics._resamples.cache_clear()
    assert bootstrap([[1.0, 2.0, 4.0], [3.0, 5.0, 9.0]]) == first


def test_methods_are_compared_over_datasets_with_seeds_averaged_first():
    table = scores(
        a={"x": [10, 12], "y": [20, 20], "z": [30, 33]},
        b={"x": [9, 11], "y": [21, 21], "z": [29, 30]},
    )
    (found,) = compare(table)
    assert (found.unit, found.pairs, found.wins, found.losses) == ("dataset", 3, 2, 1)
    assert found.difference == pytest.approx((1 - 1 + 2) / 3)
    assert found.p == pytest.approx(wilcoxon([1, -1, 2]))


def test_on_one_dataset_seeds_are_compared():
    (found,) = compare(scores(a={"x": [3, 4, 5]}, b={"x": [1, 1, 1]}))
    assert (found.unit, found.pairs, found.p, found.p_holm) == ("seed", 3, 0.25, 0.25)


def test_only_cells_that_both_methods_have_are_compared():
    nan = math.nan
    (found,) = compare(scores(a={"x": [3, nan], "y": [5, 6]}, b={"x": [1, 2], "y": [nan, nan]}))
    assert (found.unit, found.pairs, found.difference) == ("dataset", 1, 2.0)
    assert compare(scores(a={"x": [1.0, nan]}, b={"x": [nan, 1.0]})) == []


def test_too_few_seeds_are_said_to_be_too_few():
    three = {name: {d: [1.0, 2.0, 3.0] for d in "xyz"} for name in ("a", "b")}
    seeds, datasets = caveats(scores(**three))
    assert "With 3 seeds a Wilcoxon test on one dataset cannot reach p < 0.25" in seeds
    assert "at most 75.0% instead of 95%" in seeds
    assert (
        "With 3 datasets and 1 comparison even the clearest outcome has a corrected p of 0.25"
        in datasets
    )
    assert "(6 datasets would be needed)" in datasets


def test_one_seed_is_said_to_tell_nothing():
    (sentence,) = caveats(scores(a={"x": [1.0]}, b={"x": [2.0]}))
    assert "single seed" in sentence


def test_enough_seeds_and_datasets_need_no_caveat():
    enough = {name: {d: [1.0] * 6 for d in "uvwxyz"} for name in ("a", "b")}
    assert caveats(scores(**enough)) == []
