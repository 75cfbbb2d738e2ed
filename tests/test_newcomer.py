"""A newcomer's first quarter of an hour: install the wheel, write a method, check, run, compare.

Everything happens in a fresh virtual environment, with the commands that the messages on the way
name. The environment holds the freshly built wheel alone; what gcdbench depends on (gigabytes) is
read from the environment of the tests. No network is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.paths import ROOT

THIRD_PARTY = Path(__file__).with_name("third_party")
TINY = """description: one dataset, a few images, one epoch
extends: drawshift
train: {epochs: 1, batch_size: 32, draws_per_epoch: 64, view_bank: 0}
datasets:
  line+solid: {source: drawshift, config: {shifted: [solid]}, limit: 48}
"""
pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").is_file(), reason="needs the source tree, to build the wheel"
)


class Newcomer:
    """A user with an empty folder and a fresh environment."""

    def __init__(self, home: Path) -> None:
        self.home, self.environment = home, home / "venv"
        venv.create(self.environment, with_pip=False, symlinks=os.name == "posix")
        self.bin = self.environment / ("bin" if os.name == "posix" else "Scripts")
        paths = sysconfig.get_paths(
            "venv", {"base": self.environment, "platbase": self.environment}
        )
        self.packages = Path(paths["purelib"])
        here = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
        (self.packages / "dependencies.pth").write_text("".join(f"{path}\n" for path in here))
        (home / "tiny.yaml").write_text(TINY)

    def install(self, *what: str | Path) -> None:
        """Install with the pip of the tests' environment, without looking anywhere."""
        flags = ["--ignore-installed", "--no-deps", "--no-index", "--no-build-isolation", "--quiet"]
        python = ["--python", str(self.bin / "python")]
        self.call(sys.executable, "-m", "pip", *python, "install", *flags, *map(str, what))

    def gcdbench(self, *words: str) -> str:
        """Run a command of gcdbench and return what it printed."""
        return self.call(str(self.bin / "gcdbench"), *words).stdout

    def call(self, *command: str) -> subprocess.CompletedProcess[str]:
        hidden = ("PYTHONPATH", "PYTHONHOME", "PIP_CONSTRAINT", "PIP_REQUIRE_VIRTUALENV")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        done = subprocess.run(
            command, cwd=self.home, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory):
    pytest.importorskip("hatchling")
    user = Newcomer(tmp_path_factory.mktemp("newcomer"))
    wheels = tmp_path_factory.mktemp("wheels")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    user.install(*wheels.glob("gcdbench-*.whl"))
    return user


def test_the_wheel_in_the_fresh_environment_is_what_runs(newcomer):
    code = "import gcdbench; print(gcdbench.__file__)"
    found = Path(newcomer.call(str(newcomer.bin / "python"), "-c", code).stdout.strip())
    assert newcomer.packages.resolve() in found.resolve().parents
    assert newcomer.gcdbench("--version").startswith("gcdbench ")
    assert {"simgcd", "hilo"} <= {line.split()[0] for line in _lines(newcomer, "list", "methods")}


def test_from_an_idea_to_the_leaderboard(newcomer):
    written = newcomer.gcdbench("new-method", "myidea").splitlines()
    assert written[0] == "written: myidea.py"
    check = written[1].removeprefix("next: gcdbench ").split()
    assert "all checks passed" in newcomer.gcdbench(*check)
    run = written[2].removeprefix("then: gcdbench ").split()
    assert run[:3] == ["run", "--suite", "drawshift"]
    tiny = [word if word != "drawshift" else "tiny.yaml" for word in run if word != "--quick"]
    board = newcomer.gcdbench(*tiny)
    assert {"Myidea", "SimGCD"} <= _methods(board)
    again = newcomer.gcdbench(
        "leaderboard", "--suite", "tiny.yaml", "--plugin", "myidea.py", "--format", "csv"
    )
    assert again == (newcomer.home / "results/runs/leaderboard/tiny.csv").read_text()
    table = pd.read_csv(newcomer.home / "results/runs/leaderboard/tiny.csv")
    assert set(table["method"]) == {"myidea", "simgcd"}
    # the row for others
    packed = ["--methods", "myidea", "--plugin", "myidea.py", "--out", "myidea.zip"]
    assert newcomer.gcdbench("results", "pack", *packed) == "myidea.zip: 1 record\n"
    verified = newcomer.gcdbench("results", "verify", "myidea.zip", "--plugin", "myidea.py")
    assert "1 valid record (1 recomputed" in verified


def test_features_of_other_code_are_scored(newcomer):
    labels = np.repeat(np.arange(4), 20)
    features = 9.0 * np.eye(4)[labels] + np.random.RandomState(0).randn(80, 4)
    labelled = (labels < 2) & (np.arange(80) % 2 == 0)
    np.savez(newcomer.home / "f.npz", features=features, labels=labels, labelled=labelled)
    head, row = _lines(newcomer, "evaluate", "--features", "f.npz")[:2]
    assert head.split()[:4] == ["domain", "All", "Old", "New"]
    assert row.split()[1:4] == ["100.0", "100.0", "100.0"]


def test_an_installed_package_adds_its_methods_and_techniques(newcomer, tmp_path):
    newcomer.install(_copy(THIRD_PARTY, tmp_path / "package"))
    assert "elsewhere" in {line.split()[0] for line in _lines(newcomer, "list", "methods")}
    assert "closer" in {line.split()[0] for line in _lines(newcomer, "list", "techniques")}
    assert "all checks passed" in newcomer.gcdbench("check", "elsewhere")
    # the package's other method cannot be imported; it breaks only itself
    spec = "elsewhere+closer"
    tracked = ["--tracker", "notes"]
    board = newcomer.gcdbench("run", "--suite", "tiny.yaml", "--methods", spec, *tracked)
    assert {"Elsewhere + Closer"} <= _methods(board)
    (noted,) = newcomer.home.glob(f"results/runs/line+solid/{spec}/*/notes.json")
    first, last = json.loads(noted.read_text())["rows"]
    assert "lr" in first[1]
    assert "final/solid" in last[1]
    with pytest.raises(AssertionError, match=r"unfinished.py: cannot be imported"):
        newcomer.gcdbench("check", "unfinished")


def test_a_package_written_by_new_method_can_be_installed(newcomer):
    written = newcomer.gcdbench("new-method", "packed", "--package").splitlines()
    assert written[0] == "written: packed"
    assert written[1] == "next: pip install -e packed && gcdbench check packed"
    newcomer.install("./packed")
    assert "packed" in {line.split()[0] for line in _lines(newcomer, "list", "methods")}
    plan = newcomer.gcdbench("plan", "--suite", "tiny.yaml", "--methods", "packed")
    assert "1 cell, 0 done; " in plan


def _lines(newcomer: Newcomer, *words: str) -> list[str]:
    return newcomer.gcdbench(*words).splitlines()


def _methods(board: str) -> set[str]:
    """Return the methods of the first table of a leaderboard that is printed as text."""
    lines = board.splitlines()
    head = next(number for number, line in enumerate(lines) if line.split()[:1] == ["method"])
    start, found = lines[head].index("method"), set()
    for line in lines[head + 1 :]:
        if not line:
            break
        found.add(line[start:].split("  ")[0])
    return found


def _copy(source: Path, target: Path) -> Path:
    """Copy a package so that building it leaves no files in the source tree."""
    for path in source.rglob("*"):
        if path.suffix in (".py", ".toml"):
            place = target / path.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    return target
