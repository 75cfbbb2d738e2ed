"""Everything that goes wrong in the life of a grid, on cells that take half a second.

Processes that are to die are forked from the test's own, in which everything is imported already.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.toy import Toy, make_toy

from gcdbench.experiment import records
from gcdbench.experiment.plan import Cell
from gcdbench.experiment.record import Record


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "faults: kills, damages and starves runs on purpose")
    config.addinivalue_line(
        "filterwarnings",
        # the forked process runs on one thread and shares nothing that another one could hold
        "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning",
    )


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return make_toy(tmp_path_factory.mktemp("toy"), ("toy", "other"))


@pytest.fixture
def toy(made: Toy, tmp_path: Path) -> Toy:
    """Return the toy suite with a results folder of the test's own."""
    return Toy(made.suite, tmp_path / "results")


class Expectation:
    """The records that undisturbed runs give."""

    def __init__(self, toy: Toy) -> None:
        self.toy = toy

    def met(self, toy: Toy, *cells: Cell) -> bool:
        """Run what is left of some cells and compare their records with undisturbed ones."""
        outcome = toy.run(list(cells))
        assert outcome.failed == []
        self.toy.run(list(cells))
        for cell in cells:
            found, expected = (records.read_done(t.results, cell) for t in (toy, self.toy))
            assert isinstance(found, Record), found
            assert isinstance(expected, Record), expected
            assert records.same_numbers(found, expected)
        return True


@pytest.fixture(scope="session")
def undisturbed(made: Toy) -> Expectation:
    return Expectation(made.elsewhere("undisturbed"))
