"""A trained toy cell whose weights were kept."""

from __future__ import annotations

import pytest
from helpers.toy import make_toy


@pytest.fixture(scope="session")
def toy(tmp_path_factory):
    made = make_toy(tmp_path_factory.mktemp("toy"))
    made.run([made.cell("simgcd", train={"lr": 0.1})], keep_weights=True)
    return made


@pytest.fixture(scope="session")
def cell(toy):
    return toy.cell("simgcd", train={"lr": 0.1})
