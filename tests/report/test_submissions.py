"""Rows that others have trained are marked, and their list is checked."""

from __future__ import annotations

import pytest
from helpers.synthetic_records import make_record, set_scores

from gcdbench.errors import UserError
from gcdbench.report.collect import Collection, Place, tidy
from gcdbench.report.formats.markdown import as_markdown
from gcdbench.report.formats.terminal import as_terminal
from gcdbench.report.leaderboard import make_leaderboard
from gcdbench.report.submissions import FILE, read_submissions

DIGEST = "0" * 64


def write(folder, text):
    (folder / FILE).write_text(text)
    return read_submissions(folder)


def entry(by="A Laboratory", status="self-reported", pack=DIGEST):
    return f"uno: {{by: {by}, status: {status}, pack: '{pack}'}}\n"


@pytest.mark.parametrize(("status", "mark"), [("self-reported", "§"), ("verified", "✓")])
def test_the_row_and_a_sentence_say_who_trained_it_and_what_was_checked(tmp_path, status, mark):
    found = write(tmp_path, entry(status=status) + entry().replace("uno", "orca"))
    made = [
        make_record(method=m, dataset="a+b", seed=0, sets={"a": set_scores("source", 0.5)})
        for m in ("uno", "gcd")
    ]
    planned = [Place(r.dataset, r.method, r.seed) for r in made]
    board = make_leaderboard(Collection(tidy(made), made, planned, submissions=found), "suite")
    sentence = f"{mark} {status.capitalize()}: UNO+ (A Laboratory), trained by others"
    markdown = as_markdown(board)
    assert f"> {sentence}" in markdown
    assert f"| UNO+ {mark} |" in markdown
    assert "| GCD |" in markdown
    assert "ORCA" not in markdown
    assert sentence in " ".join(as_terminal(board, 80).split())


def test_a_folder_without_the_file_has_no_submissions(tmp_path):
    assert read_submissions(tmp_path) == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (entry(status="trusted"), "status must be self-reported or verified"),
        (entry(by="'<b>bold</b>'"), "by must be a name"),
        (entry(pack="12"), "pack must be the sha256"),
        ("uno: {by: A}\n", "status"),
        ("uno: [1]\n", "uno"),
        ("[1]\n", "expected methods"),
        ("uno: {\n", "while parsing"),
    ],
)
def test_a_list_that_cannot_be_used_is_one_sentence(tmp_path, text, reason):
    with pytest.raises(UserError, match=reason) as error:
        write(tmp_path, text)
    assert str(tmp_path / FILE) in str(error.value)
    assert "\n" not in str(error.value)
