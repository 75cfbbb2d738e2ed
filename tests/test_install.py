"""What pyproject.toml promises can be installed: versions, platforms and Pythons agree."""

from __future__ import annotations

import sys
import tomllib

import pytest
from helpers.paths import ROOT
from packaging.requirements import Requirement
from packaging.version import Version

from gcdbench import __main__ as entry

PYPROJECT = ROOT / "pyproject.toml"
needs_tree = pytest.mark.skipif(not PYPROJECT.is_file(), reason="needs the source tree")
PLATFORMS = {
    "faiss-gpu": [("linux", "x86_64")],
    "faiss-cpu": [
        ("linux", "aarch64"),
        ("darwin", "arm64"),
        ("darwin", "x86_64"),
        ("win32", "AMD64"),
    ],
}


def requirements() -> dict[str, Requirement]:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    return {one.name: one for one in map(Requirement, project["dependencies"])}


def pins(name: str) -> dict[str, Version]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {package: Version(version) for package, version in pairs}


@needs_tree
@pytest.mark.parametrize(
    ("package", "system", "machine"),
    [(name, *where) for name, places in PLATFORMS.items() for where in places],
)
def test_each_platform_gets_the_faiss_that_has_wheels_for_it(package, system, machine):
    here = {"sys_platform": system, "platform_machine": machine}
    found = [
        name
        for name, one in requirements().items()
        if name.startswith("faiss") and one.marker is not None and one.marker.evaluate(here)
    ]
    assert found == [package]


@needs_tree
def test_the_lowest_versions_are_those_that_pyproject_names():
    floors = {}
    for name, one in requirements().items():
        (bound,) = one.specifier
        assert bound.operator == ">=", f"{name} has no lowest version"
        floors[name] = Version(bound.version)
    lowest = pins("constraints-lowest.txt")
    assert lowest.keys() == floors.keys()
    for name, floor in floors.items():  # 1.14 may have no wheel but 1.14.3
        assert lowest[name].release[: len(floor.release)] == floor.release, name


@needs_tree
def test_the_versions_of_the_committed_results_may_be_installed():
    pinned = pins("constraints.txt")
    for name, one in requirements().items():
        assert one.specifier.contains(pinned[name]), name


def test_windows_is_answered_with_a_sentence(monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "win32")
    assert entry.main() == 2
    assert capsys.readouterr().err == (
        "gcdbench: Windows is not supported; use it inside WSL (Linux)\n"
    )
