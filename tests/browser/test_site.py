"""The site as its users meet it: search, follow links by keyboard, both themes, on a phone."""

from __future__ import annotations

import pytest
from helpers.synthetic_records import collection
from selenium.webdriver.common.keys import Keys

from gcdbench.report.leaderboard import make_leaderboard
from gcdbench.report.page.site import site_files

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    runs = collection(
        tmp_path_factory.mktemp("runs"), methods=["rankstats", "simgcd", "hilo"], datasets=["cub-c"]
    )
    others = collection(
        tmp_path_factory.mktemp("more"), methods=["simgcd"], datasets=["fgvc-c"], corrupted=True
    )
    boards = {"ssb-c": make_leaderboard(runs, "ssb-c"), "mine": make_leaderboard(others, "mine")}
    for name, text in site_files(boards):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def opened(browser, site):
    browser.complaints()
    browser.open(site / "index.html")
    yield browser
    assert browser.complaints() == []


def test_search_shows_the_rows_with_all_words(opened):
    def rows():
        return [row.text.split()[0] for row in opened.all("#methods tbody tr")]

    assert rows() == ["RankStats+", "SimGCD", "HiLo"]
    opened.one("#search").send_keys("domain hilo")
    assert rows() == ["HiLo"]
    assert opened.one("#found").text == "1 found"


def test_a_method_is_reached_and_left_by_keyboard_only(opened):
    active = opened.driver.switch_to.active_element
    for _ in range(40):
        active.send_keys(Keys.TAB)
        active = opened.driver.switch_to.active_element
        if active.text == "HiLo":
            break
    assert active.text == "HiLo"
    active.send_keys(Keys.ENTER)
    assert opened.one("h1").text == "HiLo"
    assert "hilo.preset" in opened.one("body").text
    assert "@misc{hilo," in opened.one("body").text
    opened.one("a.brand").send_keys(Keys.ENTER)
    assert opened.one("h1").text == "Leaderboards"


def test_every_link_leads_to_a_file(opened, site):
    for page in sorted(site.rglob("*.html")):
        opened.open(page)
        targets = opened.js("[...document.querySelectorAll('a')].map(a => a.href.split('#')[0])")
        local = {target for target in targets if target.startswith("file:")}
        files = {path.as_uri() for path in site.rglob("*")}
        assert local <= files, page.name


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_wider_than_the_window(opened, site, width, dark):
    for name in ("index.html", "methods/simgcd.html", "suites/ssb-c.html"):
        opened.open(site / name, width=width, dark=dark)
        assert opened.js("document.documentElement.scrollWidth") <= width


def test_the_theme_is_switched_and_kept(opened, site):
    before = opened.js("getComputedStyle(document.body).backgroundColor")
    opened.one("#theme").click()
    after = opened.js("getComputedStyle(document.body).backgroundColor")
    assert before != after
