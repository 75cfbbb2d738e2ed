"""The paper's numbers: which there are, which are impossible, and which belong to a spec."""

from __future__ import annotations

import csv

import pytest
from helpers.paths import GOLDEN as _GOLDEN

from gcdbench.core.paths import bundled
from gcdbench.core.suites import Suite
from gcdbench.report import paper_numbers, titles

FLAGS = _GOLDEN / "paper_flags.csv"


def test_all_printed_accuracies_are_there():
    rows = list(paper_numbers._accuracies())
    assert len(rows) == 1890
    assert {row["split"] for row in rows} == {"All", "Old", "New"}


def test_the_impossible_triples_are_the_known_ones():
    flagged = {
        (table, dataset, method, variant, domain)
        for (dataset, method, variant, domain, _), number in paper_numbers._numbers().items()
        for table in [number.table]
        if number.impossible
    }
    known = {
        (r["table"], r["dataset"].lower(), r["method"], r["variant"], r["eval_domain"])
        for r in csv.DictReader(FLAGS.read_text(encoding="utf-8").splitlines())
    }
    assert flagged == {(*row[:-1], paper_numbers.normal_name(row[-1])) for row in known}
    assert len(known) == 18


@pytest.mark.parametrize(
    ("dataset", "method", "evaluated", "role", "split", "value", "table"),
    [
        ("cub-c", "hilo", "corrupted", "shifted", "All", 52.0, "tab:ssb-c"),
        ("cub-c", "simgcd", "original", "source", "Old", 33.9, "tab:ssb-c"),
        ("cars-c", "rankstats", "gaussian_noise", "shifted", "New", 1.6, "tab:scars-c-aug"),
        ("real+painting", "rankstats", "real", "source", "All", 34.1, "tab:domainnet"),
        ("real+painting", "simgcd+nwd+mcc", "real", "source", "All", 63.1, "tab:uda"),
        (
            "real+infograph",
            "rankstats",
            "clipart",
            "unseen",
            "All",
            24.4,
            "tab:domainnet_info_pairs",
        ),
        ("real+all", "rankstats", "real", "source", "All", 34.0, "tab:all_domains_apd"),
        ("imagenet-100", "simgcd", "original", "source", "All", 83.0, "apd_tab:vanilla_gcd"),
    ],
)
def test_a_spec_finds_its_number(dataset, method, evaluated, role, split, value, table):
    found = paper_numbers.find(dataset, method, evaluated, role, split)
    assert found is not None
    assert (found.accuracy, found.table) == (value, table)


def test_what_the_paper_does_not_have_is_not_found():
    assert paper_numbers.find("line+solid", "hilo", "solid", "shifted", "All") is None
    assert paper_numbers.find("cub-c", "hilo+mixup", "corrupted", "shifted", "All") is None


def test_every_row_of_the_names_is_a_row_of_the_paper():
    known = {(row["method"], row["variant"]) for row in paper_numbers._accuracies()}
    for rows in paper_numbers._rows_of().values():
        assert set(rows) <= known


@pytest.mark.parametrize("suite", ["ssb-c", "domainnet", "domainnet-all"])
def test_the_suites_of_the_paper_are_found_in_it(suite):
    for dataset in Suite.load(suite).datasets:
        number = paper_numbers.find(dataset, "hilo", "", "source", "All")
        assert number is not None, dataset
        assert paper_numbers.dataset_title(dataset)


def test_every_method_of_the_paper_here_is_named_as_there():
    here = {path.stem for path in bundled("methods").glob("[!_]*.py")}
    assert {"rankstats", "uno", "orca", "gcd", "simgcd", "uniot", "hilo"} <= here
    assert [titles.method_title(m) for m in ("uno", "rankstats", "hilo")] == [
        "UNO+",
        "RankStats+",
        "HiLo",
    ]


def test_methods_stand_in_the_order_of_the_papers_rows():
    assert titles.in_order(["zeta", "hilo", "simgcd+mcc", "gcd", "simgcd"]) == [
        *("gcd", "simgcd", "simgcd+mcc", "hilo", "zeta")
    ]


def test_a_method_that_is_not_here_keeps_its_spec():
    assert titles.method_title("zeta-eta") == "zeta − eta"
