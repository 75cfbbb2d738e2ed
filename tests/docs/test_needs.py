"""The page "Add a method" shows parts of the plug-ins that tests/plugins executes."""

from __future__ import annotations

import ast
import re
import textwrap

import pytest
from helpers.paths import ROOT

PAGE = ROOT / "docs" / "pages" / "methods.md"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="needs the source tree")


def parts() -> dict[tuple[str, str], str]:
    """Return the parts that the page includes, by file and name."""
    found = re.findall(r'^--8<-- "(.+):(.+)"$', PAGE.read_text(encoding="utf-8"), re.M)
    texts = {}
    for file, name in found:
        text = (ROOT / file).read_text(encoding="utf-8")
        (part,) = re.findall(
            rf"^ *# --8<-- \[start:{name}\]\n(.*?)^ *# --8<-- \[end:{name}\]$", text, re.M | re.S
        )
        texts[file, name] = textwrap.dedent(part)
    return texts


def test_every_part_is_there_once_short_and_whole():
    for place, text in parts().items():
        assert ast.parse(text).body, place
        assert len(text.strip().splitlines()) <= 6, place


def test_every_plugin_is_shown():
    shown = {file for file, _ in parts()}
    probes = sorted((ROOT / "tests" / "plugins").glob("probe_*.py"))
    assert shown == {f"tests/plugins/{path.name}" for path in probes}
