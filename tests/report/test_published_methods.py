"""Numbers that authors of newer methods report, as data."""

from __future__ import annotations

import csv

from gcdbench.core import registry
from gcdbench.report.paper_numbers import FOLDER

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
