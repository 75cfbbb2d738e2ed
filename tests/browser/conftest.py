"""Opens pages in headless Chromium and listens to what it logs and asks for."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--hide-scrollbars",
]


class Browser:
    """A driver with the few things that the tests do with it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, *, width: int = 1280, dark: bool = False) -> None:
        """Open a file in a window of a width, in a light or dark environment."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setDeviceMetricsOverride", size)
        still = {"name": "prefers-reduced-motion", "value": "reduce"}  # a click waits for nothing
        self.command("Emulation.setEmulatedMedia", {"features": [scheme, still]})
        self.driver.get(path.as_uri())

    def command(self, name: str, arguments: dict[str, Any]) -> Any:
        return self.driver.execute_cdp_cmd(name, arguments)

    def js(self, code: str, *arguments: Any) -> Any:
        """Run a piece of JavaScript and return its value."""
        return self.driver.execute_script(f"return {code}", *arguments)

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        """Return the visible elements."""
        found = self.driver.find_elements("css selector", selector)
        return [element for element in found if element.is_displayed()]

    def choose(self, selector: str, value: str) -> None:
        """Choose an option as a user does: the form hears of it."""
        heard = "arguments[0].dispatchEvent(new Event('input', {bubbles: true}))"
        code = f"arguments[0].value = arguments[1]; {heard}"
        self.driver.execute_script(code, self.one(selector), value)

    def complaints(self) -> list[str]:
        """Return what the console has shown since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that the page has asked for since the last call."""
        messages = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        sent = [m for m in messages if m["method"] == "Network.requestWillBeSent"]
        urls = [message["params"]["request"]["url"] for message in sent]
        schemes = ("file:", "http:", "https:", "ws:", "wss:")  # not chrome:, the first tab's own
        return [url for url in urls if url.startswith(schemes)]

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page."""
        size = self.js(
            "[document.documentElement.clientWidth, document.documentElement.scrollHeight]"
        )
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        shot = {"captureBeyondViewport": True, "clip": clip}
        path.write_bytes(base64.b64decode(self.command("Page.captureScreenshot", shot)["data"]))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Return a browser; it is closed after the last test."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("Chromium is not installed (Debian: chromium, chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in [*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    yield Browser(driver)
    driver.quit()
