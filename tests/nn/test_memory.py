from __future__ import annotations

import pytest
import torch

from gcdbench.nn.memory import ReadBack, Ring


def numbered(*ids):
    """Return rows that hold their number, and the numbers."""
    numbers = torch.tensor(ids)
    return numbers[:, None].float().expand(-1, 2), numbers


def test_new_rows_replace_the_oldest():
    ring = Ring(5, 2)
    for start in range(0, 9, 3):
        ring.push(*numbered(start, start + 1, start + 2))
    assert sorted(ring.ids.tolist()) == [4, 5, 6, 7, 8]
    assert torch.equal(ring.rows[:, 0].long(), ring.ids)


def test_of_more_rows_than_fit_the_last_ones_stay():
    ring = Ring(3, 2)
    ring.push(*numbered(*range(8)))
    assert sorted(ring.ids.tolist()) == [5, 6, 7]
    ring.push(*numbered(8))
    assert sorted(ring.ids.tolist()) == [6, 7, 8]


def test_no_rows_change_nothing():
    ring = Ring(3, 2)
    ring.push(*numbered(0, 1))
    before = {name: value.clone() for name, value in ring.state_dict().items()}
    ring.push(torch.empty(0, 2), torch.empty(0, dtype=torch.long))
    assert all(torch.equal(value, before[name]) for name, value in ring.state_dict().items())


def test_a_restored_ring_goes_on_where_it_was():
    ring, other = Ring(4, 2), Ring(4, 2)
    ring.push(*numbered(0, 1, 2))
    other.load_state_dict(ring.state_dict())
    for one in (ring, other):
        one.push(*numbered(3, 4))
    assert torch.equal(ring.ids, other.ids)


def test_what_is_remembered_carries_no_gradient():
    rows = torch.ones(2, 2, requires_grad=True)
    ring = Ring(3, 2)
    ring.push(2 * rows, torch.arange(2))
    assert not ring.rows.requires_grad


def test_a_ring_without_room_is_refused():
    with pytest.raises(ValueError, match="at least one row"):
        Ring(0, 2)


def test_a_tensor_on_the_cpu_is_read_at_once_and_without_its_graph():
    x = torch.ones(2, requires_grad=True)
    read = ReadBack(2 * x).read()
    assert read.tolist() == [2, 2]
    assert not read.requires_grad
