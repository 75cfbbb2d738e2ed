"""Text of somebody else in tables: no formula, no HTML, no LaTeX command, no new line."""

from __future__ import annotations

import pytest

from gcdbench.cli.data.download import _file_name
from gcdbench.errors import UserError
from gcdbench.report.formats.data import no_formula
from gcdbench.report.formats.latex import _table, escape
from gcdbench.report.formats.markdown import as_text


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1"])
def test_a_cell_of_a_csv_file_is_no_formula(text):
    assert no_formula(text) == f"'{text}"


def test_html_and_tables_cannot_be_made_in_markdown():
    shown = as_text("<img src=x onerror=alert(1)>\n\n# a | b [x](javascript:y) `c`")
    assert "<" not in shown
    assert "\n" not in shown
    assert " | " not in shown.replace("\\|", "")
    assert "\\[x]" in shown


def test_latex_shows_special_characters_and_keeps_to_one_line():
    assert escape("a\n\nb\\input{x}%#$&_{}~^\0") == (
        r"a  b\textbackslash{}input\{x\}\%\#\$\&\_\{\}\textasciitilde{}\textasciicircum{} "
    )
    assert r"\label{tab:a--b--c}" in _table(["x"], "caption", "tab:a\n}b%{c")


@pytest.mark.parametrize(
    "address",
    [
        *("https://h/..", "https://h/a/%2e%2e", "https://h/x%00.zip", "https://h/a%0ab.zip"),
        *(f"https://h/{'x' * 400}.zip", "https://h/a/.", "https://h/..%5Cx", "https://h/.ssh"),
        *("https://h/", "ssh://h/x.zip", "https://h/con", "https://h/C%3Ax"),
    ],
)
def test_an_address_whose_file_could_land_elsewhere_is_refused(address):
    with pytest.raises(UserError):
        _file_name(address)


def test_an_ordinary_address_names_its_file():
    assert _file_name("https://h/a/b%20c.tar.gz?download=1") == "b c.tar.gz"
    assert _file_name("https://h/a%2Fb.zip") == "b.zip"
