"""The leaderboard in a terminal: as wide as it is and aligned; ``--quick`` ranks nothing."""

from __future__ import annotations

import re

import pytest
from helpers.synthetic_records import collection

from gcdbench.report.collect import Place
from gcdbench.report.formats import FORMATS
from gcdbench.report.formats.terminal import as_terminal, table
from gcdbench.report.leaderboard import SMOKE, make_leaderboard
from gcdbench.report.page import build


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return collection(
        tmp_path_factory.mktemp("runs"),
        methods=["rankstats", "simgcd", "hilo"],
        datasets=["cub-c", "fgvc-c"],
        without=[Place("cub-c", "simgcd", 1), *(Place("fgvc-c", "rankstats", s) for s in range(3))],
        corrupted=True,
    )


@pytest.fixture(scope="module")
def board(made):
    return make_leaderboard(made, "ssb-c")


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(board, width):
    lines = as_terminal(board, width).splitlines()
    assert max(map(len, lines)) <= width
    assert not any(line.startswith(("|", "#")) for line in lines)


def test_a_wide_terminal_shows_more_columns_side_by_side(board):
    narrow, wide = (as_terminal(board, width).splitlines() for width in (80, 200))
    assert len(wide) < len(narrow)


@pytest.mark.parametrize("width", [80, 200])
def test_digits_stand_below_each_other(board, width):
    blocks = as_terminal(board, width).split("\n\n")
    tables = [block.splitlines() for block in blocks if re.search(r"^ +(All|source) ", block, re.M)]
    for lines in tables:
        rows = [line for line in lines if re.search(r"\d\.\d", line)]
        ends = [{found.end() for found in re.finditer(r"\d\.\d(?![\d±])", row)} for row in rows]
        longest = max(ends, key=len)
        assert all(one <= longest for one in ends)


def test_every_number_of_the_markdown_is_there_and_the_best_are_marked(board):
    text = as_terminal(board, 120)
    best = [n for n in board.numbers if n.is_best and n.set == "original"]
    assert best
    for number in board.numbers:
        if number.set == "original" and number.seeds:
            shown = f"{number.mean:.1f}±{number.std:.1f}" + "*" * number.is_best
            assert shown in text
    assert "against the paper" in text
    assert "47.4!" in text  # an impossible triple


def test_what_does_not_fit_is_continued_after_the_names():
    text = table(["", "a", "b"], [["x", "11", "22"], ["y", "3", "4"]], width=8)
    assert text == "    a   b\nx  11  22\ny   3   4" if len("x  11  22") <= 8 else text
    first, second = text.split("\n\n")
    assert first.splitlines() == ["    a", "x  11", "y   3"]
    assert second.splitlines() == ["    b", "x  22", "y   4"]
    grouped = table(["", "a", "b", "a", "b"], [["x", *"1234"]], width=8, over=["one", "two"])
    assert [part.splitlines()[2] for part in grouped.split("\n\n")] == ["x  1  2", "x  3  4"]


def test_a_smoke_test_is_neither_ranked_nor_marked_nor_compared(made):
    quick = make_leaderboard(made, "ssb-c-quick", smoke=True)
    assert [one.place for one in quick.standings] == [None] * 3
    assert quick.methods == quick.rows  # the paper's order, not that of the numbers
    assert quick.incomplete == ["rankstats"]  # without a place, but not for that reason
    for text in (*(render(quick) for render in FORMATS.values()), as_terminal(quick, 120)):
        assert "Against the paper" not in text
        assert "against the others" not in text
    texts = {name: FORMATS[name](quick) for name in ("md", "latex")} | {"text": as_terminal(quick)}
    assert all(SMOKE.split(":")[0] in " ".join(text.split()) for text in texts.values())
    assert "**" not in texts["md"]
    assert r"\textbf" not in texts["latex"]
    assert not re.search(r"\d\*", texts["text"])
    assert SMOKE in build.page(quick, command="gcdbench report")
