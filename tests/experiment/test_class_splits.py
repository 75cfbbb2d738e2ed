"""Class splits as datasets of their own, over which a leaderboard averages."""

from __future__ import annotations

import pytest

from gcdbench.errors import UserError
from gcdbench.experiment.plan import Request, make_cells

LINE = ("line+solid",)


def test_every_class_split_is_a_dataset_with_its_number():
    asked = Request("drawshift", ("simgcd",), LINE, seeds=(0, 1), class_splits=(0, 2))
    cells = make_cells(asked)
    assert [(c.dataset, c.seed) for c in cells] == [
        ("line+solid", 0),
        ("line+solid", 1),
        ("line+solid@2", 0),
        ("line+solid@2", 1),
    ]
    (usual,) = make_cells(Request("drawshift", ("simgcd",), LINE, seeds=(0,)))
    assert cells[0].key == usual.key
    first, second = cells[0].problem(), cells[2].problem()
    assert set(first.classes) == set(second.classes)
    assert set(first.classes[: first.num_old]) != set(second.classes[: second.num_old])


def test_a_single_class_split_can_be_named_as_a_dataset():
    (cell,) = make_cells(Request("drawshift", ("simgcd",), ("line+solid@4",), seeds=(0,)))
    assert cell.source_config["class_split"] == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [("line+solid@7", "class_split: expected one of 0, 1, 2, 3, 4"), ("lime@1", "'lime'")],
)
def test_a_class_split_that_there_cannot_be_is_refused(name, message):
    with pytest.raises(UserError, match=message):
        make_cells(Request("drawshift", ("simgcd",), (name,)))
