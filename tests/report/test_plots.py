"""Plots: each can be drawn, says what it shows, and is the same file every time."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from helpers.synthetic_records import collection
from PIL import Image

from gcdbench.errors import UserError
from gcdbench.report import plot_data, plots
from gcdbench.report.collect import Place
from gcdbench.report.leaderboard import make_leaderboard
from gcdbench.report.plots import PLOTS, NothingToDraw
from gcdbench.report.plots.canvas import write
from gcdbench.report.style import looks


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """Three methods, one of which lacks a dataset."""
    without = [Place("line+solid", "uno", seed) for seed in range(2)]
    methods = ["uno", "simgcd", "hilo"]
    folder = tmp_path_factory.mktemp("runs")
    return make_leaderboard(
        collection(folder, methods=methods, seeds=range(2), without=without), "drawshift"
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    chosen = {"methods": ["gcd", "hilo"], "datasets": ["line+solid", "line+color"], "seeds": [0, 1]}
    return make_leaderboard(collection(folder, **chosen), "drawshift")


@pytest.fixture(scope="module")
def corrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    made = collection(folder, methods=["gcd", "hilo"], datasets=["cub-c"], corrupted=True)
    return make_leaderboard(made, "ssb-c")


def texts(figure):
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


@pytest.mark.parametrize("name", [name for name, plot in PLOTS.items() if not plot.over])
def test_a_plot_is_written_as_png_and_pdf_with_the_same_bytes_every_time(
    name, small, corrupted, tmp_path
):
    chosen = corrupted if name == "corruptions" else small
    first = write(PLOTS[name].draw(chosen), tmp_path / "first")
    second = write(PLOTS[name].draw(chosen), tmp_path / "second")
    assert [path.name for path in first] == ["first.png", "first.pdf"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    with Image.open(first[0]) as image:
        assert min(image.size) > 200
    pdf = first[1].read_bytes()
    assert b"CreationDate" not in pdf
    assert b"/Type3" not in pdf


def test_plots_and_their_modules_belong_together():
    folder = Path(plots.__file__).parent
    others = {"__init__", "canvas", "selection"}  # selection draws searches, not leaderboards
    modules = {path.stem for path in folder.glob("*.py")} - others
    assert modules == set(PLOTS)
    for name in PLOTS:
        assert callable(getattr(import_module(f"gcdbench.report.plots.{name}"), name))


@pytest.mark.parametrize("name", ["bars", "drop", "radar", "errors", "curves", "critical"])
def test_methods_are_named_as_in_the_paper(name, board):
    shown = " ".join(texts(PLOTS[name].draw(board)))
    assert "SimGCD" in shown
    assert "HiLo" in shown


@pytest.mark.parametrize("name", ["radar", "errors", "critical"])
def test_a_method_without_all_datasets_is_named_and_not_drawn(name, board):
    shown = texts(PLOTS[name].draw(board))
    assert sum("UNO+" in text for text in shown) == 1
    assert any(re.search("datasets are missing: UNO+", text) for text in shown)


def test_a_bar_that_was_not_measured_is_a_cross(board):
    panels = PLOTS["bars"].draw(board).axes
    crosses = [
        sum(len(line.get_xdata()) for line in axis.lines if line.get_marker() == "x")
        for axis in panels
    ]
    assert crosses == [2] * 3 + [0] * 6  # a row of three splits for each dataset


def test_bars_have_the_colours_of_their_methods(board):
    panel = PLOTS["bars"].draw(board).axes[0]
    shown = {_hex(bar.get_facecolor()) for bar in panel.patches}
    assert shown == {looks(board.rows)[method].colour for method in ("simgcd", "hilo")}


def _hex(colour):
    return "#" + "".join(f"{round(255 * part):02X}" for part in colour[:3])


def test_outcomes_add_up_to_all_images(board):
    assert plot_data.outcomes(board).sum(axis=1).to_list() == pytest.approx([100] * 6)


def test_drops_are_source_and_shifted_means(board):
    point = next(
        p for p in plot_data.drops(board) if (p.dataset, p.method) == ("line+color", "hilo")
    )
    assert point.source == pytest.approx(board.lookup["line+color", "line", "All", "hilo"].mean)
    assert point.shifted_std == pytest.approx(
        board.lookup["line+color", "color", "All", "hilo"].std
    )


def test_curves_end_in_the_recorded_accuracy(board):
    table = plot_data.learning(board.collection.records)
    record = board.collection.records[0]
    rows = table[
        (table["method"] == record.method)
        & (table["dataset"] == record.dataset)
        & (table["seed"] == record.seed)
        & (table["role"] == "source")
    ]
    assert rows["epoch"].to_list() == [2, 4, 6, 8]
    assert rows["accuracy"].iloc[-1] == pytest.approx(100 * record.sets["line"].all)


def test_terms_and_diagnostics_have_panels_of_their_own(board):
    figure = PLOTS["curves"].draw(board, terms=["distil", "predicted_new"])
    assert [axis.get_ylabel() for axis in figure.axes[:: len(board.collection.datasets)]] == [
        "distil",
        "predicted new",
    ]
    record = board.collection.records[0]
    table = plot_data.terms(board.collection.records)
    rows = table[
        (table["name"] == "distil")
        & (table["method"] == record.method)
        & (table["dataset"] == record.dataset)
        & (table["seed"] == record.seed)
    ]
    assert rows["value"].to_list() == [point.terms["distil"] for point in record.curve]
    assert set(table["name"]) == {*record.curve[0].terms, "predicted_new"}
    with pytest.raises(UserError, match="--terms"):
        PLOTS["curves"].draw(board, terms=["distill"])


def test_losses_of_methods_are_not_on_one_scale(board):
    panels = PLOTS["curves"].draw(board).axes
    top = [axis for axis in panels if axis.get_ylabel() == "loss, own scale"]
    assert top
    for line in top[0].lines:
        values = np.asarray(line.get_ydata(), dtype=float)
        assert values.min() >= -1e-9
        assert values.max() <= 1 + 1e-9


def test_no_marker_of_a_drop_is_hidden_by_another(board):
    panels = PLOTS["drop"].draw(board).axes
    titles = {axis.get_title() for axis in panels}
    assert len(titles) == len(board.collection.datasets)
    for axis in panels:
        for dots in axis.collections:
            assert dots.get_facecolor()[0][3] < 0.5  # what is below shines through
        shapes = [str(dots.get_paths()[0].vertices.tolist()) for dots in axis.collections]
        assert len(set(shapes)) == len(shapes)


@pytest.mark.parametrize("name", ["bars", "drop", "radar"])
def test_nothing_is_cut_off_at_the_edges(board, name):
    figure = PLOTS[name].draw(board)
    figure.draw_without_rendering()
    box = figure.get_tightbbox(figure.canvas.get_renderer())
    width, height = figure.get_size_inches()
    assert box.x0 >= -0.02
    assert box.y0 >= -0.02
    assert box.x1 <= width + 0.02
    assert box.y1 <= height + 0.02


def test_a_plot_without_data_says_what_is_missing(board, tmp_path):
    with pytest.raises(NothingToDraw, match="no sets by corruption and severity"):
        PLOTS["corruptions"].draw(board)
    alone = make_leaderboard(
        collection(tmp_path, methods=["gcd"], datasets=["line+solid"], seeds=[0]), "one"
    )
    with pytest.raises(NothingToDraw, match="two methods on two datasets"):
        PLOTS["critical"].draw(alone)
    with pytest.raises(NothingToDraw, match="at least three evaluation sets"):
        PLOTS["radar"].draw(alone)
