"""Imports point one way: see the drawing in CONTRIBUTING.md."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gcdbench.layout import PACKAGE, shipped

# what a part must never import, directly
FORBIDDEN = {
    "report": (
        *("torch", "gcdbench.trainer", "gcdbench.runner", "gcdbench.evaluator", "gcdbench.nn"),
        "gcdbench.figures",
    ),
    "figures/clusters.py": ("torch", "gcdbench.nn", "gcdbench.runner"),
    "plan.py": ("torch", "gcdbench.method", "gcdbench.trainer", "gcdbench.nn"),
    "records.py": ("torch", "gcdbench.trainer"),
    "registry.py": ("torch", "gcdbench.method", "gcdbench.methods"),
    "config.py": ("torch", "gcdbench.registry"),
    "data/problem.py": ("torch",),
    "data/sources": ("torch", "gcdbench.method"),
    "nn": ("gcdbench.method", "gcdbench.trainer", "gcdbench.data"),
    "losses.py": ("gcdbench.method", "gcdbench.nn"),
    "clustering.py": ("gcdbench.method", "gcdbench.evaluator"),
    "metrics.py": ("gcdbench.method", "gcdbench.evaluator"),
    "method.py": ("gcdbench.trainer", "gcdbench.data", "gcdbench.evaluator", "gcdbench.compose"),
    "compose.py": ("gcdbench.trainer", "gcdbench.data", "gcdbench.evaluator"),
    "trainer.py": ("gcdbench.evaluator", "gcdbench.runner", "gcdbench.records"),
    "evaluator.py": ("gcdbench.trainer", "gcdbench.runner", "gcdbench.records"),
}
PLUGINS_MAY_NOT = (
    *("gcdbench.trainer", "gcdbench.evaluator", "gcdbench.runner", "gcdbench.data"),
    *("gcdbench.records", "gcdbench.registry", "gcdbench.plan", "gcdbench.methods", "gcdbench.cli"),
)


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def offences(path: Path, forbidden: tuple[str, ...]) -> set[str]:
    return {
        name
        for name in imported(path)
        if any(name == bad or name.startswith(f"{bad}.") for bad in forbidden)
    }


@pytest.mark.parametrize("part", FORBIDDEN)
def test_a_part_of_the_core_looks_in_one_direction(part):
    target = PACKAGE / part
    files = [target] if target.suffix else sorted(target.rglob("*.py"))
    assert files
    found = {path.name: offences(path, FORBIDDEN[part]) for path in files}
    assert {name: bad for name, bad in found.items() if bad} == {}


def test_plugins_look_up_to_the_contract_only():
    files = sorted(shipped("methods").rglob("*.py"))
    found = {path.name: offences(path, PLUGINS_MAY_NOT) for path in files}
    assert {name: bad for name, bad in found.items() if bad} == {}


def test_the_core_names_no_method():
    names = {p.stem for p in shipped("methods").glob("[!_]*.py")}
    for path in PACKAGE.rglob("*.py"):
        relative = path.relative_to(PACKAGE).as_posix()
        if relative.startswith(("methods/", "benchmarks/", "report/")) or relative == "cli.py":
            continue
        strings = {
            node.value
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not strings & names, f"{relative} names {strings & names}"
