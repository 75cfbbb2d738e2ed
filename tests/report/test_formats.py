"""Leaderboards as text: what they look like, to the letter.

After a wanted change: ``GCDBENCH_RENEW=1 pytest tests/report/test_formats.py``, then look at the
difference.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
from operator import attrgetter

import pytest
from helpers.paths import GOLDEN as _GOLDEN
from helpers.synthetic_records import collection

from gcdbench.report.collect import LeftOut, Place
from gcdbench.report.columns import Column, standing_columns
from gcdbench.report.formats import FORMATS, SUFFIXES, data, markdown, write_all
from gcdbench.report.formats.latex import escape
from gcdbench.report.leaderboard import make_leaderboard
from gcdbench.report.page import build

GOLDEN = _GOLDEN / "report"


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """Three methods on two datasets of the paper; one method lacks a dataset, one a seed."""
    made = collection(
        tmp_path_factory.mktemp("runs"),
        methods=["rankstats", "simgcd", "hilo"],
        datasets=["cub-c", "fgvc-c"],
        without=[Place("cub-c", "simgcd", 1), *(Place("fgvc-c", "rankstats", s) for s in range(3))],
        corrupted=True,
    )
    made.left_out = [
        LeftOut("cub-c/simgcd/seed1-0123/record.json", "damaged", "does not match its checksum")
    ]
    return make_leaderboard(made, "ssb-c")


@pytest.mark.parametrize("name", FORMATS)
def test_a_leaderboard_is_written_as_before(board, name):
    path = GOLDEN / f"ssb-c.{SUFFIXES.get(name, name)}"
    made = FORMATS[name](board)
    if os.environ.get("GCDBENCH_RENEW"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(made, encoding="utf-8")
    assert made == path.read_text(encoding="utf-8")


def test_all_formats_are_written_side_by_side(board, tmp_path):
    paths = write_all(board, tmp_path)
    assert [path.name for path in paths] == [*("ssb-c.md", "ssb-c.csv", "ssb-c.tex", "ssb-c.json")]
    assert all(path.stat().st_size for path in paths)


def test_csv_and_json_hold_the_same_numbers(board):
    rows = list(csv.DictReader(data.as_csv(board).splitlines()))
    numbers = json.loads(data.as_json(board))["numbers"]
    assert len(rows) == len(numbers) == 2 * 2 * 3 * 3
    for row, number in zip(rows, numbers, strict=True):
        assert row["mean"] == ("" if number["mean"] is None else f"{number['mean']:.4f}")
        assert (row["seeds"], row["planned"]) == (str(number["seeds"]), "3")


def test_a_column_is_added_by_one_entry(board, monkeypatch):
    added = Column("lost", attrgetter("drop"), ("md", "json", "page"), "difference")
    for module in (markdown, data, build):
        monkeypatch.setattr(module, "standing_columns", lambda b: [*standing_columns(b), added])
    assert "| average rank | cells | lost |" in markdown.as_markdown(board)
    assert "| 1.00 | 6 of 6 | +29.0 |" in markdown.as_markdown(board)
    assert json.loads(data.as_json(board))["methods"][0]["lost"] == pytest.approx(29.028889)
    assert re.search(r'<td data-sort="lost" data-v="29\.028889">\+29\.0</td>', build.page(board))


def test_missing_cells_are_visible_in_every_format(board):
    assert "| RankStats+ | – | – | – | – | – | – | 0 of 3 |" in markdown.as_markdown(board)
    assert "fgvc-c,original,source,All,rankstats,3,0,,,," in data.as_csv(board)
    assert "RankStats+ &" in FORMATS["latex"](board)
    assert " & -- & -- & -- & -- & -- & -- \\\\" in FORMATS["latex"](board)
    assert "$^{2/3}$" in FORMATS["latex"](board)
    assert {"dataset": "fgvc-c", "method": "rankstats", "seed": 0} in json.loads(
        data.as_json(board)
    )["missing"]


def test_the_impossible_triple_is_flagged(board):
    assert "| FGVC-C | Original | HiLo |" in markdown.as_markdown(board)
    assert "44.2 / 50.6 / 47.4 †" in markdown.as_markdown(board)
    assert r"44.2$^\dagger$ & 50.6 & 47.4" in FORMATS["latex"](board)


def test_latex_escapes_what_it_would_read():
    assert escape("a_b & 50% ~ {x}") == r"a\_b \& 50\% \textasciitilde{} \{x\}"


def test_wide_suites_are_parted_into_readable_tables(tmp_path):
    made = collection(
        tmp_path, methods=["gcd"], datasets=[f"real+d{n}" for n in range(5)], seeds=[0]
    )
    written = FORMATS["latex"](make_leaderboard(made, "wide"))
    assert written.count(r"\begin{table*}") == 2
    assert r"\label{tab:wide}" in written
    assert r"\label{tab:wide-2}" in written


@pytest.mark.latex
def test_latex_compiles_without_a_complaint(board, tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed (Debian: texlive-latex-recommended)")
    head = r"\documentclass{article}\usepackage[margin=2cm]{geometry}\usepackage{booktabs,graphicx}"
    body = rf"{head}\begin{{document}}{FORMATS['latex'](board)}\end{{document}}"
    (tmp_path / "board.tex").write_text(body, encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "board.tex"]
    for _ in range(2):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:]
    log = (tmp_path / "board.log").read_text(encoding="latin-1")
    assert [line for line in log.splitlines() if "Warning" in line or "Overfull" in line] == []
    assert (tmp_path / "board.pdf").read_bytes().startswith(b"%PDF")
