"""Every folder imports only what it may, see CONTRIBUTING.md. Nested imports count, too."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.paths import ROOT

from gcdbench.core.paths import PACKAGE, bundled

# folder of gcdbench/ -> folders that it may import
MAY_IMPORT = {
    "core": set(),
    "ops": set(),
    "data": {"core", "ops"},
    "nn": {"core", "ops"},
    "experiment": {"core", "data"},
    "training": {"core", "ops", "data", "nn", "experiment"},
    "runner": {"core", "ops", "data", "nn", "experiment", "training"},
    "sharing": {"core", "data", "nn", "experiment", "training", "runner"},
    "report": {"core", "experiment"},
    "cell_plots": {"core", "data", "nn", "experiment", "training", "report"},
    "paper_tables": {"core", "experiment", "report"},
    "cli": {
        *("core", "ops", "data", "nn", "experiment", "training", "runner", "report"),
        *("cell_plots", "paper_tables", "sharing", "api"),
    },
}
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
# modules at the root: every folder may import errors; plugin re-exports names; api is for notebooks
EVERYBODY = {"errors"}
ROOT_MODULES = {
    "__init__": {"api", "core", "ops", "training"},
    "__main__": {"cli"},
    "api": {"core", "experiment", "runner", "training", "report"},
    "errors": set(),
    "methods": {"core"},
    "plugin": {"data", "ops", "nn", "training"},
}
WITHOUT_TORCH = (
    *("gcdbench.cli.main", "gcdbench.experiment.plan", "gcdbench.experiment.records"),
    *("gcdbench.report.collect", "gcdbench.report.formats", "gcdbench.training.scoring.scores"),
    *("gcdbench.experiment.record", "gcdbench.training.scoring.rescore"),
    *("gcdbench.runner.status", "gcdbench.runner.launchers", "gcdbench.paper_tables.results"),
)
MOST_MODULES = 15  # in a folder


def imported(path: Path) -> Iterator[str]:
    """Yield the modules and names that a file imports, at any level of nesting."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def folders(path: Path) -> set[str]:
    """Return the folders and root modules of gcdbench that a file imports."""
    parts = [name.split(".") for name in imported(path)]
    return {words[1] for words in parts if words[0] == "gcdbench" and len(words) > 1}


def forbidden(path: Path, folder: str) -> set[str]:
    """Return the folders and root modules that a file of the folder must not import, but does."""
    allowed = MAY_IMPORT[folder] | EVERYBODY | {folder, "__version__"}
    return folders(path) - allowed


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_a_folder_imports_only_what_it_may(folder):
    files = sorted((PACKAGE / folder).rglob("*.py"))
    assert files
    found = {path.relative_to(PACKAGE).as_posix(): forbidden(path, folder) for path in files}
    assert {name: bad for name, bad in found.items() if bad} == {}


def test_a_forbidden_import_is_found(tmp_path):
    path = tmp_path / "losses.py"
    path.write_text("def f():\n    from gcdbench.training.method import Batch\n    return Batch\n")
    assert forbidden(path, "ops") == {"training"}
    path.write_text("from gcdbench.runner import status\n")
    assert forbidden(path, "report") == {"runner"}


def test_the_table_has_all_folders_and_no_cycle():
    names = {p.name for p in PACKAGE.iterdir() if p.is_dir() and any(p.glob("*.py"))}
    assert names - {"methods", "benchmarks"} == set(MAY_IMPORT)
    order: list[str] = []
    while len(order) < len(MAY_IMPORT):
        ready = [f for f in MAY_IMPORT if f not in order and MAY_IMPORT[f] - {"api"} <= set(order)]
        assert ready, f"a cycle among {set(MAY_IMPORT) - set(order)}"
        order += ready


@pytest.mark.skipif(not CONTRIBUTING.is_file(), reason="needs the source tree")
def test_the_table_in_contributing_is_the_one_that_is_checked():
    text = CONTRIBUTING.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/` \| .+ \| (.+) \|$", text, re.M)
    assert len(rows) == len(MAY_IMPORT)
    printed = {folder: set(re.findall(r"\w+", listed)) - {"nothing"} for folder, listed in rows}
    assert printed == MAY_IMPORT


def test_modules_at_the_root_import_only_what_they_may():
    files = {path.stem: path for path in PACKAGE.glob("*.py")}
    assert set(files) == set(ROOT_MODULES)
    found = {n: folders(p) - ROOT_MODULES[n] - EVERYBODY for n, p in files.items()}
    assert {name: bad - {"__version__"} for name, bad in found.items() if bad} == {}


def test_no_folder_has_too_many_modules():
    bundles = [PACKAGE / "methods", PACKAGE / "benchmarks"]  # in a wheel: one file per plug-in
    for folder in [PACKAGE, *(p for p in PACKAGE.rglob("*") if p.is_dir() and p not in bundles)]:
        modules = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
        assert len(modules) <= MOST_MODULES, f"{folder} has {len(modules)} modules"


def test_plugins_import_the_facade_alone():
    for path in sorted(bundled("methods").rglob("*.py")):
        ours = {name.rpartition(".")[0] for name in imported(path) if name.startswith("gcdbench")}
        assert ours <= {"gcdbench.plugin"}, f"{path.name} imports {ours}"


def test_the_facade_exports_every_name_once():
    from gcdbench import plugin

    assert len(set(plugin.__all__)) == len(plugin.__all__)
    assert all(hasattr(plugin, name) for name in plugin.__all__)


@pytest.mark.parametrize("module", WITHOUT_TORCH)
def test_planning_and_reporting_do_not_import_torch(module):
    code = f"import sys, {module}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_core_names_no_method():
    names = {p.stem for p in bundled("methods").glob("[!_]*.py")}
    for path in PACKAGE.rglob("*.py"):
        relative = path.relative_to(PACKAGE).as_posix()
        if relative.startswith(("methods/", "benchmarks/", "report/", "cli/")):
            continue
        strings = {
            node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        if relative.startswith("data/"):
            strings -= {"gcd"}  # the protocol, which is called as the method is
        assert not strings & names, f"{relative} names {strings & names}"
