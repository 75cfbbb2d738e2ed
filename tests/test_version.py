"""The version is in one place, gcdbench.__version__; the other files agree with it."""

from __future__ import annotations

import re

import pytest
import yaml
from helpers.paths import ROOT

from gcdbench import __version__
from gcdbench.cli.main import main

CITATION, CHANGELOG = ROOT / "CITATION.cff", ROOT / "CHANGELOG.md"
pytestmark = pytest.mark.skipif(not CITATION.is_file(), reason="needs the source tree")


def test_the_citation_names_the_version():
    citation = yaml.safe_load(CITATION.read_text(encoding="utf-8"))
    assert str(citation["version"]) == __version__


def test_the_newest_release_in_the_changelog_is_the_version():
    text = CHANGELOG.read_text(encoding="utf-8")
    released = re.findall(r"^## (\d\S*) - \d{4}-\d\d-\d\d$", text, re.M)
    assert released[0] == __version__


def test_hatchling_builds_the_version():
    metadata = pytest.importorskip("hatchling.metadata.core")
    manager = pytest.importorskip("hatchling.plugin.manager").PluginManager()
    assert metadata.ProjectMetadata(str(ROOT), manager).version == __version__


def test_the_command_line_prints_the_version(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"gcdbench {__version__}\n"
