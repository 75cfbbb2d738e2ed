"""Imports point one way: see the table in CONTRIBUTING.md. Imports inside functions count, too."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    "report": {"core", "experiment"},
    "cell_plots": {"core", "data", "nn", "experiment", "training", "report"},
    "paper_tables": {"core", "experiment", "report"},
    "cli": {
        *("core", "ops", "data", "nn", "experiment", "training", "runner", "report"),
        *("cell_plots", "paper_tables", "api"),
    },
}
# modules at the root: errors is for everybody, plugin hands names on, api is for notebooks
EVERYBODY = {"errors"}
ROOT_MODULES = {
    "__init__": {"api", "core", "ops", "training"},
    "__main__": {"cli"},
    "api": {"core", "experiment", "runner", "report"},
    "errors": set(),
    "methods": {"core"},
    "plugin": {"ops", "nn", "training"},
}
WITHOUT_TORCH = (
    *("gcdbench.cli.main", "gcdbench.experiment.plan", "gcdbench.experiment.records"),
    *("gcdbench.report.collect", "gcdbench.report.formats", "gcdbench.training.scores"),
    *("gcdbench.runner.status", "gcdbench.runner.launchers", "gcdbench.paper_tables.results"),
)
MOST_MODULES = 15  # in a folder


def imported(path: Path) -> Iterator[str]:
    """Yield the modules and names of ours that a file imports, wherever the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms(path: Path) -> set[str]:
    """Return the folders and root modules of gcdbench that a file imports."""
    parts = [name.split(".") for name in imported(path)]
    return {words[1] for words in parts if words[0] == "gcdbench" and len(words) > 1}


def offences(path: Path, folder: str) -> set[str]:
    allowed = MAY_IMPORT[folder] | EVERYBODY | {folder, "__version__"}
    return rooms(path) - allowed


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_a_folder_imports_only_what_it_may(folder):
    files = sorted((PACKAGE / folder).rglob("*.py"))
    assert files
    found = {path.relative_to(PACKAGE).as_posix(): offences(path, folder) for path in files}
    assert {name: bad for name, bad in found.items() if bad} == {}


def test_an_arrow_that_is_turned_is_found(tmp_path):
    path = tmp_path / "losses.py"
    path.write_text("def f():\n    from gcdbench.training.method import Batch\n    return Batch\n")
    assert offences(path, "ops") == {"training"}
    path.write_text("from gcdbench.runner import status\n")
    assert offences(path, "report") == {"runner"}


def test_the_table_has_all_folders_and_no_cycle():
    folders = {p.name for p in PACKAGE.iterdir() if p.is_dir() and any(p.glob("*.py"))}
    assert folders - {"methods", "benchmarks"} == set(MAY_IMPORT)
    order: list[str] = []
    while len(order) < len(MAY_IMPORT):
        ready = [f for f in MAY_IMPORT if f not in order and MAY_IMPORT[f] - {"api"} <= set(order)]
        assert ready, f"a cycle among {set(MAY_IMPORT) - set(order)}"
        order += ready


def test_modules_at_the_root_import_only_what_they_may():
    files = {path.stem: path for path in PACKAGE.glob("*.py")}
    assert set(files) == set(ROOT_MODULES)
    found = {n: rooms(p) - ROOT_MODULES[n] - EVERYBODY for n, p in files.items()}
    assert {name: bad - {"__version__"} for name, bad in found.items() if bad} == {}


def test_no_folder_is_a_hall():
    for folder in [PACKAGE, *(p for p in PACKAGE.rglob("*") if p.is_dir())]:
        modules = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
        assert len(modules) <= MOST_MODULES, f"{folder} has {len(modules)} modules"


def test_plugins_import_the_facade_alone():
    for path in sorted(bundled("methods").rglob("*.py")):
        ours = {name.rpartition(".")[0] for name in imported(path) if name.startswith("gcdbench")}
        assert ours <= {"gcdbench.plugin"}, f"{path.name} imports {ours}"


def test_the_facade_hands_on_all_that_it_names():
    from gcdbench import plugin

    assert sorted(plugin.__all__) == plugin.__all__ or len(set(plugin.__all__)) == len(
        plugin.__all__
    )
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
