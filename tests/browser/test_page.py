"""The page as its users meet it: sort, filter, open a cell, compare, in both themes, on a phone."""

from __future__ import annotations

import pytest
from helpers.synthetic_records import collection

from gcdbench.report.collect import Place
from gcdbench.report.leaderboard import make_leaderboard
from gcdbench.report.page.build import page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    return make_leaderboard(
        collection(
            tmp_path_factory.mktemp("runs"),
            methods=["rankstats", "simgcd", "hilo"],
            datasets=["cub-c", "fgvc-c"],
            without=[Place("fgvc-c", "rankstats", seed) for seed in range(3)],
            corrupted=True,
            unseen=True,
        ),
        "ssb-c",
    )


@pytest.fixture(scope="module")
def file(board, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "ssb-c.html"
    path.write_text(page(board), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser, file):
    """Return the browser with the page open and nothing heard so far."""
    browser.complaints()
    browser.requests()
    browser.open(file)
    yield browser
    assert browser.complaints() == []


def methods(browser):
    return [row.get_attribute("data-method") for row in browser.all("#board tbody tr")]


def test_the_page_asks_for_itself_only(opened, file):
    opened.choose("#pair [name=second]", "rankstats")
    assert set(opened.requests()) == {file.as_uri()}


def test_every_column_has_a_heading_that_is_seen(opened):
    headings = [head.text for head in opened.all("#board thead tr:nth-child(2) th")]
    sets = ["Original", "Corrupted", "Others"] * 2
    assert headings == ["source", "shifted", "unseen", "95% interval", "rank", *sets]


def test_a_column_sorts_both_ways_and_says_so(opened):
    button = opened.one('.sort[data-sort="cub-c|original"]')
    button.click()
    assert methods(opened) == ["hilo", "simgcd", "rankstats"]
    button.click()
    assert methods(opened) == ["rankstats", "simgcd", "hilo"]
    head = opened.one("th[aria-sort]")
    assert head.get_attribute("aria-sort") == "ascending"
    assert opened.one("#status").text == "sorted by Original, worst first"


def test_what_is_missing_stays_last_whichever_way_a_column_is_sorted(opened):
    button = opened.one('.sort[data-sort="fgvc-c|original"]')
    for _ in range(2):
        button.click()
        assert methods(opened)[-1] == "rankstats"


def test_methods_are_filtered_by_their_names(opened):
    opened.one("[name=filter]").send_keys("hi")
    assert methods(opened) == ["hilo"]
    assert opened.one("#status").text == "1 of 3 methods shown"


def test_a_dataset_can_be_looked_at_alone(opened):
    opened.choose("#controls [name=dataset]", "cub-c")
    keys = {cell.get_attribute("data-key").split("|")[1] for cell in opened.all(".cell")}
    assert keys == {"cub-c"}


@pytest.mark.parametrize("split", ["All", "Old", "New"])
def test_the_table_shows_the_classes_that_are_asked_for(opened, board, split):
    opened.js(f"document.querySelector('[name=split][value={split}]').click()")
    number = board.lookup["cub-c", "corrupted", split, "hilo"]
    shown = opened.one('.cell[data-key="hilo|cub-c|corrupted"]').text
    assert shown.split() == [f"{number.mean:.1f}", f"±{number.std:.1f}"]


def test_the_difference_to_the_paper_is_shown_on_request(opened):
    cell = opened.one('.cell[data-key="hilo|fgvc-c|original"]')
    assert "†" not in cell.text
    opened.one("[name=delta]").click()
    assert "†" in cell.text


def test_provenance_appears_on_focus_and_goes_with_escape(opened):
    cell = opened.one('.cell[data-key="hilo|fgvc-c|original"]')
    opened.js("arguments[0].focus()", cell)
    tip = opened.one("#tip")
    assert "seed 2:" in tip.text
    assert "commit 0123456789" in tip.text
    assert "an impossible triple" in tip.text
    cell.send_keys("\ue00c")
    assert not tip.is_displayed()


def test_arrow_keys_walk_through_the_numbers(opened):
    first = opened.one(".cell[tabindex='0']")
    assert len(opened.driver.find_elements("css selector", ".cell[tabindex='0']")) == 1
    first.send_keys("\ue014")  # right
    opened.driver.switch_to.active_element.send_keys("\ue015")  # down
    assert opened.js("document.activeElement.dataset.key") == "simgcd|cub-c|corrupted"


def test_a_cell_opens_by_key_shows_its_run_and_closes_by_key(opened, board):
    cell = opened.one('.cell[data-key="simgcd|cub-c|original"]')
    cell.send_keys("\ue007")  # enter
    dialog = opened.one("#details")
    assert "SimGCD on CUB-C" in dialog.text
    assert "train.lr" in dialog.text
    assert "classify" in dialog.text
    opened.js("document.querySelectorAll('#details input[name=run]')[2].click()")
    record = next(
        r for r in board.collection.records
        if (r.method, r.dataset, r.seed) == ("simgcd", "cub-c", 2)
    )  # fmt: skip
    assert record.key in dialog.text
    assert f"{100 * record.sets['original'].all:.1f}" in dialog.text
    opened.driver.switch_to.active_element.send_keys("\ue00c")  # escape
    assert not dialog.is_displayed()


def test_a_number_that_is_missing_opens_nothing(opened):
    opened.one('.cell[data-key="rankstats|fgvc-c|original"]').click()
    assert not opened.one("#details").is_displayed()


def test_two_methods_are_compared_image_by_image(opened, board):
    opened.choose("#pair [name=first]", "simgcd")
    opened.choose("#pair [name=second]", "rankstats")
    opened.choose("#pair [name=seed]", "1")
    counts = [int(span.text or 0) for span in opened.all("#outcome .stack:nth-of-type(1) span")]
    record = {
        r.method: r.sets["original"]
        for r in board.collection.records
        if (r.dataset, r.seed) == ("cub-c", 1)
    }
    only_first, both, _, only_second = counts
    total = record["simgcd"].n
    assert sum(counts) == total
    assert (only_first + both) / total == pytest.approx(record["simgcd"].all)
    assert (only_second + both) / total == pytest.approx(record["rankstats"].all)
    rows = opened.all("#classes details")
    assert len(rows) == 12
    rows[0].find_element("css selector", "summary").click()
    assert "only SimGCD original/class" in rows[0].text


def test_methods_without_common_predictions_are_not_compared(opened):
    opened.choose("#pair [name=second]", "rankstats")
    opened.choose("#pair [name=dataset]", "fgvc-c")
    assert "no predictions for the same seed" in opened.one("#outcome").text


def test_a_chip_hides_its_method_in_all_figures(opened):
    groups = "#figures g.m2"
    before = len(opened.all(groups))
    chip = opened.one(".chip[data-method='2']")
    chip.click()
    assert before > 0
    assert opened.all(groups) == []
    assert chip.get_attribute("aria-pressed") == "false"
    chip.click()
    assert len(opened.all(groups)) == before


def test_the_theme_follows_the_system_until_it_is_chosen(browser, file):
    def background():
        return browser.js("getComputedStyle(document.body).backgroundColor")

    browser.open(file, dark=True)
    browser.js("localStorage.clear()")
    browser.open(file, dark=True)
    dark = background()
    browser.open(file, dark=False)
    assert background() != dark
    browser.one("#theme").click()
    assert background() == dark
    browser.js("localStorage.clear()")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_and_text_has_contrast(browser, file, tmp_path, width, dark):
    browser.open(file, width=width, dark=dark)
    assert browser.js("document.documentElement.scrollWidth") == width
    assert _contrast(browser, "body") > 12
    assert _contrast(browser, ".note, .lead") > 4.5
    browser.picture(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 50_000


def _contrast(browser, selector):
    """Return the contrast of a text with the page, as the accessibility guidelines define it."""
    ink = browser.js("getComputedStyle(document.querySelector(arguments[0])).color", selector)
    paper = browser.js("getComputedStyle(document.body).backgroundColor")
    light = sorted(_luminance(colour) for colour in (ink, paper))
    return (light[1] + 0.05) / (light[0] + 0.05)


def _luminance(colour):
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
