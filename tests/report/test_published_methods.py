"""Numbers that authors of newer methods report, as data."""

from __future__ import annotations

import csv

from gcdbench.core import registry
from gcdbench.report.paper_numbers import FOLDER, find

ROWS = list(csv.DictReader((FOLDER / "published_methods.csv").read_text().splitlines()))


def test_every_row_names_a_method_and_a_source():
    assert ROWS
    for row in ROWS:
        registry.get("method", row["method"])
        assert row["source"].startswith(("released", "results stored", "paper"))
        assert row["dataset"] in {"cub", "cars", "aircraft"}


def test_all_lies_between_old_and_new():
    for row in ROWS:
        low, high = sorted((float(row["old"]), float(row["new"])))
        assert low <= float(row["all"]) <= high


def test_no_row_is_given_twice():
    places = [(row["method"], row["dataset"], row["classes"]) for row in ROWS]
    assert len(set(places)) == len(places)


def test_they_stand_next_to_measured_numbers_without_a_shift():
    found = find("scars", "sptnet", "original", "source", "New")
    assert found is not None
    assert (found.accuracy, found.impossible) == (49.3, False)
    assert found.table.startswith("released README")
    assert (
        find("cub", "pim", "original", "source", "All").accuracy == 62.7
    )  # K given, not estimated
    assert find("cub-c", "sptnet", "original", "source", "All") is None
    assert find("cub", "sptnet", "corrupted", "shifted", "All") is None
    assert find("cub", "sptnet+mcc", "original", "source", "All") is None
