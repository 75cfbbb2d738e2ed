"""The verbs leaderboard, plot and report, from arguments to files."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

import pytest
from helpers.synthetic_records import collection

from gcdbench.cli import completion, main
from gcdbench.cli import plot as plotting
from gcdbench.cli import report as commands
from gcdbench.errors import UserError
from gcdbench.experiment.plan import Request
from gcdbench.report import collect as collecting
from gcdbench.report import formats as leaderboard
from gcdbench.report import plots
from gcdbench.report.collect import Collection, LeftOut

REQUEST = Request(
    "drawshift", methods=("gcd", "hilo"), seeds=(0, 1), assignments={"train": {"lr": 0.1}}
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return collection(
        folder, methods=["gcd", "hilo"], datasets=["line+solid", "line+color"], seeds=[0, 1]
    )


@pytest.fixture
def arguments(made, monkeypatch, tmp_path):
    """Return a parser of a verb's arguments; its records are invented."""
    monkeypatch.setattr(collecting, "collect", lambda *request, **more: made)

    def parse(add, *words):
        parser = argparse.ArgumentParser()
        parser.add_argument("--results", type=Path, default=tmp_path)
        add(parser)
        return parser.parse_args(words)

    return parse


@pytest.mark.parametrize("name", leaderboard.FORMATS)
def test_a_leaderboard_is_printed_in_the_format_asked_for(name, arguments, tmp_path, capsys):
    given = arguments(commands.add_leaderboard, "--format", name)
    assert commands.leaderboard(given, REQUEST) == 0
    suffix = leaderboard.SUFFIXES.get(name, name)
    assert capsys.readouterr().out == (tmp_path / "leaderboard" / f"drawshift.{suffix}").read_text()


def test_the_formats_offered_are_those_there_are():
    assert list(commands.FORMATS) == ["text", *leaderboard.FORMATS]


def test_the_leaderboard_is_as_wide_as_the_terminal(arguments, monkeypatch, capsys):
    widest = {}
    for columns in ("80", "120"):
        monkeypatch.setenv("COLUMNS", columns)
        assert commands.leaderboard(arguments(commands.add_leaderboard), REQUEST) == 0
        widest[columns] = max(map(len, capsys.readouterr().out.splitlines()))
    assert widest["80"] <= 80 < widest["120"] <= 120


def test_a_plot_is_added_by_one_entry(arguments, monkeypatch, capsys):
    added = plots.Plot("mine", "a plot of mine")
    monkeypatch.setattr(plots, "PLOTS", {**plots.PLOTS, "mine": added})
    with pytest.raises(SystemExit):
        arguments(plotting.add_plot, "--help")
    assert "  mine         a plot of mine\n" in capsys.readouterr().out
    assert "mine" in completion.candidates(main._parser(), ["plot", "mi"])


def test_plots_are_written_where_asked_and_their_paths_printed(arguments, tmp_path, capsys):
    given = arguments(plotting.add_plot, "drop", "--out", str(tmp_path / "here"))
    assert plotting.plot(given, REQUEST) == 0
    paths = capsys.readouterr().out.splitlines()
    assert [Path(path).name for path in paths] == ["drawshift-drop.png", "drawshift-drop.pdf"]
    assert all(Path(path).exists() for path in paths)


def test_a_plot_without_data_is_refused_if_asked_for_and_passed_over_otherwise(
    arguments, monkeypatch, capsys, caplog
):
    with pytest.raises(UserError, match="corruption and severity"):
        plotting.plot(arguments(plotting.add_plot, "corruptions"), REQUEST)
    chosen = {name: plots.PLOTS[name] for name in ("drop", "corruptions")}
    monkeypatch.setattr(plots, "PLOTS", chosen)
    with caplog.at_level(logging.INFO):
        assert plotting.plot(arguments(plotting.add_plot), REQUEST) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert "corruption and severity" in caplog.text


def test_a_sensitivity_needs_a_setting(arguments):
    with pytest.raises(UserError, match="say over which setting"):
        plotting.plot(arguments(plotting.add_plot, "sensitivity"), REQUEST)


def test_the_page_names_the_command_that_makes_it_and_no_folder(arguments, tmp_path, capsys):
    assert commands.report(arguments(commands.add_report), REQUEST) == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == tmp_path / "leaderboard" / "drawshift.html"
    html = path.read_text()
    command = "gcdbench report --suite drawshift --methods gcd hilo --seeds 0 1 --set train.lr=0.1"
    assert command in html
    assert str(tmp_path) not in html


def test_after_a_run_everything_is_written_and_the_leaderboard_printed(arguments, tmp_path, capsys):
    commands.publish(arguments(commands.add_report), REQUEST)
    assert capsys.readouterr().out.startswith("drawshift: clustering accuracy in percent")
    written = {path.name for path in (tmp_path / "leaderboard").iterdir()}
    assert {"drawshift.md", "drawshift.html", "drawshift-bars.png", "drawshift-bars.pdf"} <= written


def test_what_is_left_out_is_said_on_the_way(made, arguments, monkeypatch, caplog):
    reason = "does not match its checksum"
    left_out = [LeftOut(f"{name}/record.json", "damaged", reason) for name in "xyz"]
    changed = Collection(**{**made.__dict__, "left_out": left_out})
    monkeypatch.setattr(collecting, "collect", lambda *request, **more: changed)
    commands.report(arguments(commands.add_report), REQUEST)
    assert caplog.messages == [f"left out: x/record.json and 2 more: {reason}"]


@pytest.mark.parametrize("flags", [(), ("--any-code",)])
def test_records_of_any_code_are_asked_for_and_named_in_the_command(
    made, arguments, monkeypatch, tmp_path, flags
):
    asked = []

    def collect(request, results, *, any_code, **others):
        asked.append(any_code)
        return made

    monkeypatch.setattr(collecting, "collect", collect)
    commands.report(arguments(commands.add_report, *flags), REQUEST)
    assert asked == [bool(flags)]
    page = (tmp_path / "leaderboard" / "drawshift.html").read_text()
    assert ("--set train.lr=0.1 --any-code" in page) == bool(flags)


def test_without_records_there_is_nothing_to_report(arguments, monkeypatch, made):
    empty = Collection(made.table.head(0), planned=made.planned, missing=made.planned)
    monkeypatch.setattr(collecting, "collect", lambda *request, **more: empty)
    with pytest.raises(UserError, match="none of these cells has a record"):
        commands.report(arguments(commands.add_report), REQUEST)
