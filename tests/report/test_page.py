"""The page: self-contained, the same bytes for the same records, and true to them."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
import textwrap
from html import escape
from html.parser import HTMLParser

import numpy as np
import pytest
from helpers.synthetic_records import collection

from gcdbench.report.collect import LeftOut, Place
from gcdbench.report.correctness import right_images
from gcdbench.report.leaderboard import make_leaderboard
from gcdbench.report.page.build import page
from gcdbench.report.page.data import _common, as_script, page_data
from gcdbench.report.page.figures import inline
from gcdbench.report.plots import PLOTS, Plot
from gcdbench.report.plots.canvas import FAINT, INK, MUTED, PAPER

VOID = {"meta", "input", "br"}


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    made = collection(
        tmp_path_factory.mktemp("runs"),
        methods=["uno", "simgcd", "hilo"],
        without=[Place("line+solid", "uno", seed) for seed in range(3)],
    )
    made.left_out = [LeftOut("a/<b>/record.json", "stale", "is of another version (x < y)")]
    return make_leaderboard(made, "drawshift")


@pytest.fixture(scope="module")
def html(board):
    return page(board, command="gcdbench report --suite drawshift")


class Reader(HTMLParser):
    """Collects tags and attributes, and checks that elements are closed in order."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


def data_of(html):
    return json.loads(re.search(r'id="data">(.*?)</script>', html, re.S)[1])


def test_the_page_is_well_formed_and_asks_nobody_for_anything(html):
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    assert not {"link", "iframe", "object", "embed", "base", "img"} & set(reader.seen)
    places = [value for name, value in reader.attributes if name in ("src", "href", "action")]
    assert all(value.startswith("#") for value in places)
    assert not re.search(r"https?:|url\((?!#)|@import|fetch\(|XMLHttpRequest", html)
    assert "default-src 'none'" in html


def test_ids_are_unique_and_links_lead_somewhere(html):
    reader = Reader()
    reader.feed(html)
    ids = [value for name, value in reader.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    targets = {value[1:] for name, value in reader.attributes if name == "href"}
    targets |= set(re.findall(r"url\(#([^)]*)\)", html))
    assert targets <= set(ids)
    labels = {value for name, value in reader.attributes if name == "aria-labelledby"}
    assert labels <= set(ids)


def test_the_same_records_give_the_same_bytes_wherever_they_lie(board, html, tmp_path):
    folders = {
        key: shutil.copytree(folder, tmp_path / key)
        for key, folder in board.collection.folders.items()
    }
    moved = make_leaderboard(
        board.collection.__class__(**{**board.collection.__dict__, "folders": folders}), "drawshift"
    )
    assert page(moved, command="gcdbench report --suite drawshift") == html


def test_text_from_records_cannot_become_markup(html):
    assert "a/<b>/record.json" not in html
    assert "a/&lt;b&gt;/record.json" in html
    assert "</script" not in as_script({"x": "</script><b>"})


def test_the_numbers_on_the_page_are_the_boards(board, html):
    numbers = data_of(html)["numbers"]
    for number in board.numbers:
        mean, std, *_ = numbers[f"{number.method}|{number.dataset}|{number.set}"][number.split]
        assert (mean is None) == (number.seeds == 0)
        if mean is not None:
            assert (mean, std) == (
                pytest.approx(number.mean, rel=1e-4),
                pytest.approx(number.std, rel=1e-4),
            )


def test_missing_and_left_out_records_are_named(html):
    assert "uno on line+solid, seed 2" in html
    assert "is of another version (x &lt; y)" in html
    assert "not recorded" in html


def test_who_is_right_where_is_what_the_predictions_say(board, html):
    record = next(r for r in board.collection.records if r.method == "hilo")
    dataset, truth = record.dataset, board.collection.truths[record.dataset]
    name = dataset.split("+")[1]
    listing = data_of(html)["images"][dataset]["sets"][name]
    bits = np.unpackbits(
        np.frombuffer(base64.b64decode(listing["right"][f"hilo|{record.seed}"]), np.uint8)
    )
    ids = [g["start"] + text + g["end"] for g in listing["groups"] for text in g["ids"]]
    folder = board.collection.folders[record.key]
    hits = right_images(record, folder, truth, [name])[name]
    assert dict(zip(ids, bits, strict=False)) == dict(zip(truth.ids[name], hits, strict=True))


def test_cells_show_config_curve_and_the_end_of_the_log(board, tmp_path):
    record = board.collection.records[0]
    folder = tmp_path / "cell"
    shutil.copytree(board.collection.folders[record.key], folder)
    (folder / "log.jsonl").write_text("".join(f"line {n}\n" for n in range(20)))
    folders = {**board.collection.folders, record.key: folder}
    changed = make_leaderboard(
        board.collection.__class__(**{**board.collection.__dict__, "folders": folders}), "d"
    )
    data = page_data(changed)
    cell = data["cells"][f"{record.method}|{record.dataset}"][0]
    assert cell["log"] == [f"line {n}" for n in range(14, 20)]
    assert data["settings"][cell["settings"]]["train.lr"] == 0.1
    assert cell["curve"]["epochs"] == list(range(1, 9))
    assert cell["curve"]["terms"].keys() == {"classify", "distil"}


def test_predictions_that_cannot_be_trusted_are_named_and_not_compared(board, tmp_path):
    record = board.collection.records[0]
    folders = {**board.collection.folders, record.key: tmp_path}
    changed = make_leaderboard(
        board.collection.__class__(**{**board.collection.__dict__, "folders": folders}), "d"
    )
    data = page_data(changed)
    assert data["problems"] == [
        f"{record.label}: has no readable predictions (No such file or directory)"
    ]
    assert data["problems"][0].split(":")[0] in page(changed)


def test_names_lose_what_they_have_in_common_and_nothing_else():
    assert _common(["line/cat/1.png", "line/cat/2.png"]) == "line/cat/"
    assert _common(["alone"]) == ""
    assert _common(["same", "same"]) == "same"


SVG = """<?xml version="1.0"?>
<svg xmlns="http://www.w3.org/2000/svg" width="20pt" viewBox="0 0 20.5 10"><defs>
<style type="text/css">*{stroke-linecap: butt}</style></defs><g id="figure_1"><!-- a -->
<g id="method:simgcd+mcc"><path id="m1" d="M 1.23456 2
L 3 4" clip-path="url(#p1)" style="stroke: #0072b2"/></g>
<g id="text_1"><text style="font-size: 8px; font-family: 'X'; fill: #222222">p = 0.12345</text></g>
<use xlink:href="#m1"/><clipPath id="p1"/></g></svg>"""


def test_a_figure_becomes_an_element_of_the_page():
    plot = Plot("mine", 'of "mine"', "figures", "Mine")
    colours = {"#222222": "currentColor", "#0072B2": "var(--m3)"}
    assert inline(SVG, plot, colours, {"simgcd+mcc": "m3"}) == (
        '<svg viewBox="0 0 20.5 10" role="img" aria-label="Mine: of &quot;mine&quot;" '
        'style="width:31px;min-width:23px"><defs></defs><g><g class="m3">'
        '<path id="mine-m1" d="M 1.23 2 L 3 4" clip-path="url(#mine-p1)" '
        'style="stroke: var(--m3)"/></g><g>'
        '<text style="font-size: 8px; fill: currentColor">p = 0.12345</text></g>'
        '<use href="#mine-m1"/><clipPath id="mine-p1"/></g></svg>'
    )


def test_the_page_has_every_plot_that_belongs_there_with_a_name_for_screen_readers(html):
    labels = re.findall(r'<svg [^>]*role="img" aria-label="([^"]*)"', html)
    for plot in PLOTS.values():
        drawn = plot.section != "" and plot.name != "corruptions"  # of which there are no records
        assert (f"{plot.title}: {escape(plot.help)}" in labels) == drawn


def test_figures_have_no_colours_that_only_suit_a_light_page(html):
    figures = "".join(re.findall(r'<svg [^>]*role="img".*?</svg>', html, re.S))
    used = set(re.findall(r"#[0-9a-f]{6}\b", figures))
    assert used
    assert not used & {colour.lower() for colour in (INK, PAPER, MUTED, FAINT, "#000000")}


def test_neither_page_nor_leaderboard_imports_torch():
    code = """
        import sys
        import gcdbench.cli.report
        assert not {"torch", "pandas", "matplotlib", "scipy", "jinja2"} & set(sys.modules)
        import gcdbench.report.formats, gcdbench.report.page.build, gcdbench.report.plots
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
