"""The number of classes that is passed to methods."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gcdbench.core.settings import TaskConfig
from gcdbench.data.problem import Problem
from gcdbench.errors import UserError
from gcdbench.experiment.plan import Request, make_cells
from gcdbench.training.method import PoolFeatures
from gcdbench.training.num_classes import assumed_classes

OLD, CLASSES, EACH = 5, 10, 20


def problem() -> Problem:
    empty = np.empty(0, dtype=np.int64)
    names = tuple(map(str, range(CLASSES)))
    return Problem("p", names, OLD, None, empty, empty, empty, {})  # type: ignore[arg-type]


def store() -> PoolFeatures:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(CLASSES).repeat(EACH)
    centres = torch.nn.functional.normalize(torch.randn(CLASSES, 32, generator=generator), dim=1)
    features = centres[labels] + 0.02 * torch.randn(len(labels), 32, generator=generator)
    labelled = (labels < OLD) & (torch.arange(len(labels)) % 2 == 0)
    rows = torch.arange(len(labels))
    return PoolFeatures(
        features, {}, labels.where(labelled, -1), rows[labelled], rows[~labelled], rows
    )


def assumed(**values) -> int:
    return assumed_classes(TaskConfig(**values), problem(), compute_features=store, seed=0)


def test_methods_are_told_the_true_number_unless_another_is_given():
    assert assumed() == CLASSES
    assert assumed(num_classes=50) == 50


def test_the_number_of_well_separated_classes_is_estimated():
    # any K at which each labelled class is a cluster of its own is right by the labels
    assert OLD <= assumed(classes="estimated") <= CLASSES


def test_an_estimate_needs_no_more_images_than_it_may_have():
    assert OLD <= assumed(classes="estimated", estimate_images=60) <= 60


def test_fewer_outputs_than_classes_with_labels_are_refused():
    with pytest.raises(ValueError, match="5 classes have labels"):
        assumed(num_classes=4)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"num_classes": 3, "classes": "estimated"}, "at once"),
        ({"num_classes": 0}, "at least 1"),
        ({"classes": "guessed"}, "known, estimated"),
    ],
)
def test_a_wrong_task_is_refused(values, sentence):
    with pytest.raises(UserError, match=sentence):
        make_cells(Request("drawshift", ("simgcd",), assignments={"task": values}))


def test_the_number_of_classes_is_part_of_the_key():
    one, other = (
        make_cells(Request("drawshift", ("simgcd",), assignments={"task": {"num_classes": n}}))[0]
        for n in (100, 200)
    )
    assert one.key != other.key
