"""Folds of a problem: some old classes lose their labels, and no hidden label is read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gcdbench.data.splits import class_file
from gcdbench.data.tuning.folds import hidden_classes, hide_classes
from gcdbench.data.tuning.names import FOLDS, SELECTION, VARIANTS
from gcdbench.errors import UserError
from gcdbench.experiment.plan import Request, make_cells


@pytest.fixture(scope="module")
def true():
    return make_cells(Request("drawshift", ("gcd",), ("line+solid",), (0,)))[0].problem()


@pytest.fixture(scope="module")
def fold(true):
    return hide_classes(true, 0)


def test_the_lists_are_fixed_and_folds_share_no_class():
    assert hidden_classes(10, 0)[0] == sorted(class_file("tuning_folds")["orders"]["10"][:2])
    for number in (8, 10, 50, 98, 100, 172):
        hidden = [set(hidden_classes(number, one)[0]) for one in range(FOLDS)]
        assert all(len(one) == round(number / 4) for one in hidden)
        if number % 4 == 0:
            assert set.union(*hidden) == set(range(number))


def test_a_list_of_the_project_is_what_the_rule_draws():
    for number, order in class_file("tuning_folds")["orders"].items():
        assert sorted(order) == list(range(int(number)))


@pytest.mark.parametrize(("number", "fold"), [(1, 0), (10, 4), (10, -1)])
def test_what_cannot_be_hidden_is_refused(number, fold):
    with pytest.raises(UserError, match=r"fold|old classes"):
        hidden_classes(number, fold)


def test_classes_keep_their_names_and_images(true, fold):
    assert sorted(fold.classes) == sorted(true.classes)
    names = [fold.classes[label] for label in fold.labels[: len(true.labels)]]
    assert names == [true.classes[label] for label in true.labels]
    assert fold.classes[: fold.num_old] + fold.classes[true.num_old :] == tuple(
        name
        for number, name in enumerate(true.classes)
        if number not in hidden_classes(true.num_old, 0)[0]
    )


def test_images_of_hidden_classes_and_held_out_ones_join_the_unlabelled(true, fold):
    hidden = hidden_classes(true.num_old, 0)[0]
    lost = np.setdiff1d(true.labelled, fold.labelled)
    assert np.isin(true.labels[fold.labelled], hidden).sum() == 0
    assert np.array_equal(np.sort(fold.sets[SELECTION].rows), lost)
    assert np.array_equal(np.sort(fold.unlabelled), np.union1d(true.unlabelled, lost))
    is_hidden = np.isin(true.labels[lost], hidden)
    assert is_hidden.sum() == np.isin(true.labels[true.labelled], hidden).sum()
    kept = true.labels[true.labelled][~np.isin(true.labels[true.labelled], hidden)]
    held = np.bincount(true.labels[lost[~is_hidden]], minlength=true.num_classes)
    sizes = np.bincount(kept, minlength=true.num_classes)
    assert np.array_equal(held, (0.2 * sizes).astype(int))


def test_the_selection_set_has_images_of_the_source_whose_labels_were_visible(true, fold):
    assert np.isin(fold.sets[SELECTION].rows, true.labelled).all()
    assert {name for name, one in fold.sets.items() if one.role != "validation"} == {
        "line",
        "solid",
    }


def test_corrupted_variants_are_the_same_images_in_the_same_order(true, fold):
    rows = fold.sets[SELECTION].rows
    for name, corruption in VARIANTS.items():
        ids = [fold.images.ids[row] for row in fold.sets[name].rows]
        assert [one.split("/", 2)[2].rpartition("@")[0] for one in ids] == [
            true.images.ids[row] for row in rows
        ]
        assert all(one.startswith(f"{corruption}/") for one in ids)
        assert np.array_equal(fold.labels[fold.sets[name].rows], fold.labels[rows])
        assert not np.isin(fold.sets[name].rows, fold.pool).any()
    clean, noisy = (np.asarray(fold.images.open(r[0])) for r in (rows, fold.sets[name].rows))
    assert clean.shape == noisy.shape
    assert (clean != noisy).any()


def permuted(problem, seed=0):
    """Return a problem whose hidden labels are shuffled: those of all unlabelled images."""
    labels = problem.labels.copy()
    hidden = np.setdiff1d(np.arange(len(labels)), problem.labelled)
    labels[hidden] = np.random.RandomState(seed).permutation(labels[hidden])
    return replace(problem, labels=labels)


def test_hidden_labels_change_nothing_that_is_trained_on_or_chosen_by(true, fold):
    other = hide_classes(permuted(true), 0)
    assert other.fingerprint != fold.fingerprint
    assert (other.labels != fold.labels).any()
    for one, two in ((fold.labelled, other.labelled), (fold.unlabelled, other.unlabelled)):
        assert np.array_equal(one, two)
    assert np.array_equal(fold.visible_labels, other.visible_labels)
    assert (fold.classes, fold.num_old) == (other.classes, other.num_old)
    for name in (SELECTION, *VARIANTS):
        rows = fold.sets[name].rows
        assert np.array_equal(rows, other.sets[name].rows)
        assert np.array_equal(fold.labels[rows], other.labels[rows])


def test_a_fold_is_an_ordinary_dataset_of_the_command_line():
    cells = make_cells(Request("drawshift", ("gcd",), ("line+solid@fold1", "line+solid"), (0,)))
    assert [cell.dataset for cell in cells] == ["line+solid@fold1", "line+solid"]
    assert cells[0].problem().num_old < cells[1].problem().num_old
    assert cells[0].key != cells[1].key
    assert cells[0].fingerprints()["code"] != cells[1].fingerprints()["code"]
    with pytest.raises(UserError, match="there are 0 to 3"):
        make_cells(Request("drawshift", ("gcd",), ("line+solid@fold7",), (0,)))[0].problem()
    with pytest.raises(UserError, match="unknown dataset"):
        make_cells(Request("drawshift", ("gcd",), ("lines@fold0",), (0,)))


def test_a_domain_that_is_named_like_the_selection_is_refused(true):
    sets = {**true.sets, SELECTION: true.sets["line"]}
    with pytest.raises(UserError, match="rename the domain"):
        hide_classes(replace(true, sets=sets), 0)
