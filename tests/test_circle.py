"""Cells side by side: the numbers of cells alone, with one pass over the trunk."""

from __future__ import annotations

import pytest
from runner_toy import BATCH, EPOCHS, STEPS, Toy, make_toy

from gcdbench import records
from gcdbench.cli import main
from gcdbench.nn.backbone import Backbone
from gcdbench.runner import cell as cell_module
from gcdbench.runner.circle import groups
from gcdbench.runner.stop import Interrupted, Stop

METHODS = ("simgcd", "gcd", "simgcd+mixup", "simgcd+mixstyle")
FRESH = {"view_bank": 0}


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Toy:
    """Return the toy suite with the records of cells that were trained one by one."""
    toy = make_toy(tmp_path_factory.mktemp("toy"))
    toy.run(toy.cells(*METHODS, train=FRESH))
    return toy


def same(one: Toy, other: Toy, method: str) -> bool:
    cell = one.cell(method, train=FRESH)
    found = [records.read_done(toy.results, cell) for toy in (one, other)]
    assert all(isinstance(record, dict) for record in found), found
    return records.same_numbers(*found)


def test_records_are_those_of_separate_runs_with_one_trunk_per_batch(alone, monkeypatch):
    passes = []
    trunk = Backbone.trunk

    def counted(self, patches, taps=None):
        passes.append(len(patches))
        return trunk(self, patches, taps)

    monkeypatch.setattr(Backbone, "trunk", counted)
    together = alone.elsewhere("together")
    together.run(alone.cells(*METHODS, train=FRESH), share_trunk=True)
    assert all(same(alone, together, method) for method in METHODS)
    # mixup changes the images and mixstyle the tokens inside the trunk: each needs one of its own
    assert passes.count(2 * BATCH) == 3 * EPOCHS * STEPS


def test_a_cell_that_fails_does_not_hurt_the_others(alone, monkeypatch):
    on_step = cell_module.CellRun._on_step

    def fails(self, moment):
        if self.cell.spelling.text == "gcd" and moment.clock.step == 1:
            raise RuntimeError("the toy breaks")
        on_step(self, moment)

    together = alone.elsewhere("one-fails")
    with monkeypatch.context() as patch:
        patch.setattr(cell_module.CellRun, "_on_step", fails)
        outcome = together.run(alone.cells("simgcd", "gcd", train=FRESH), share_trunk=True)
    assert [cell.spelling.text for cell, _ in outcome.failed] == ["gcd"]
    assert same(alone, together, "simgcd")


def test_an_interrupted_pass_goes_on_from_where_each_cell_was(alone, monkeypatch):
    class StopAfter(Stop):
        steps = 7

        @property
        def asked(self) -> bool:
            self.steps -= 1
            return self.steps <= 0

    together, cells = alone.elsewhere("resumed"), alone.cells("simgcd", "gcd", train=FRESH)
    with pytest.raises(Interrupted):
        together.run(cells, share_trunk=True, stop=StopAfter())
    assert not any(records.is_done(together.results, cell) for cell in cells)
    together.run(cells, share_trunk=True)
    assert same(alone, together, "simgcd")
    assert same(alone, together, "gcd")


def test_cells_that_differ_in_what_they_draw_are_not_grouped(alone):
    cells = alone.cells("simgcd", "gcd", seeds=(0, 1), train=FRESH)
    assert [[c.seed for c in group] for group in groups(cells)] == [[0, 0], [1, 1]]
    assert groups(alone.cells("simgcd", "gcd")) == []  # banked views need no trunk
    other = alone.cell("gcd", train={**FRESH, "batch_size": 4})
    assert groups([alone.cell("simgcd", train=FRESH), other]) == []


def test_a_trunk_is_not_shared_between_processes(alone, capsys):
    suite = ["--suite", str(alone.suite), "--results", str(alone.results), "--methods", "gcd"]
    assert main(["run", *suite, "--share-trunk", "--jobs", "2"]) == 2
    assert "in one process" in capsys.readouterr().err
