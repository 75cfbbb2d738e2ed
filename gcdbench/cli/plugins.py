"""The verbs list, check and new-method: list, test and write plug-ins."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcdbench.cli.arguments import say
from gcdbench.core import registry
from gcdbench.core.json_text import json_text
from gcdbench.core.paths import bundled
from gcdbench.errors import UserError

Row = dict[str, Any]


def add_list(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``list``."""
    parser.add_argument("what", choices=tuple(LISTS))
    parser.add_argument("--json", action="store_true", help="for programs")


def list_(arguments: argparse.Namespace) -> int:
    """List methods, techniques, datasets, suites or backbones."""
    rows, problems = LISTS[arguments.what]()
    if arguments.json:
        say(json_text(rows))
    else:
        width = max((len(row["name"]) for row in rows), default=0)
        for row in rows:
            print(f"{row['name']:<{width}}  {row['summary']}")
    for name, reason in problems.items():
        print(f"{name}: left out: {reason}", file=sys.stderr)
    return 0


def _plugins(kind: str) -> tuple[list[Row], dict[str, str]]:
    rows = [
        {
            "name": name,
            "summary": info.summary,
            "paper": info.constants.get("paper", ""),
            "config": registry.config_fields(info),
        }
        for name, info in registry.available(kind).items()
    ]
    return rows, registry.broken(kind)


def _suites() -> tuple[list[Row], dict[str, str]]:
    from gcdbench.core.suites import Suite, suites

    loaded = {name: Suite.load(name) for name in suites()}
    rows: list[Row] = [
        {"name": name, "summary": suite.description, "datasets": list(suite.datasets)}
        for name, suite in loaded.items()
    ]
    return rows, {}


def _backbones() -> tuple[list[Row], dict[str, str]]:
    from gcdbench.core.settings import BACKBONES

    return [{"name": name, "summary": summary} for name, summary in BACKBONES.items()], {}


LISTS: dict[str, Callable[[], tuple[list[Row], dict[str, str]]]] = {
    "methods": lambda: _plugins("method"),
    "techniques": lambda: _plugins("technique"),
    "datasets": lambda: _plugins("dataset"),
    "suites": _suites,
    "backbones": _backbones,
}


def add_check(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``check``."""
    parser.add_argument("target", help="a .py file, or the name of a method or technique")


def check(arguments: argparse.Namespace) -> int:
    """Run the contract's checks on a plug-in and report failures."""
    failed = 0
    for finding in findings(arguments.target):
        state = "ok  " if finding.problem is None else "FAIL"
        print(f"{state}  {finding.check}", flush=True)
        if finding.problem is not None:
            print(f"      {finding.problem}", flush=True)
            failed += 1
    print(f"{failed} checks failed" if failed else "all checks passed")
    return 1 if failed else 0


def add_new_method(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``new-method``."""
    parser.add_argument("name", help="the method's name on the command line")
    parser.add_argument("--from", dest="base", metavar="METHOD", help="start from this method")
    parser.add_argument("--package", action="store_true", help="an installable package")
    parser.add_argument("--out", type=Path, default=Path(), help="folder (default: this one)")


def new_method(arguments: argparse.Namespace) -> int:
    """Write a method file (or package) that trains as it is."""
    name, package = arguments.name, arguments.package
    path = write_method(name, arguments.out, base=arguments.base, package=package)
    print(f"written: {path}")
    if package:
        print(f"next: pip install -e {path} && gcdbench check {name}")
        plugin = ""
    else:
        print(f"next: gcdbench check {path}")
        plugin = f" --plugin {path}"
    print(f"then: gcdbench run --suite drawshift --quick --methods {name} simgcd{plugin}")
    return 0


TEMPLATE = "_template"
PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "gcdbench-{name}"
version = "0.1.0"
description = "{title}, a method for gcdbench"
requires-python = ">=3.11"
dependencies = ["gcdbench"]

[project.entry-points."gcdbench.methods"]
{name} = "gcdbench_{name}.{name}:{title}"

[tool.hatch.build.targets.wheel]
packages = ["gcdbench_{name}"]
"""
TEST = """from __future__ import annotations

import pytest

from gcdbench.plugin import CHECKS, Bench


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_method_keeps_the_contract(check):
    check(lambda: Bench.of("{name}"))
"""


@dataclass(frozen=True)
class Finding:
    """Outcome of one check."""

    check: str  # what must hold
    problem: str | None  # the sentence if it does not


def write_method(
    name: str, folder: Path, *, base: str | None = None, package: bool = False
) -> Path:
    """Write a runnable method file, or a whole installable package, and return its path."""
    if not registry.NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UserError(f"{name!r}: a method's name has lower-case letters, digits and _ only")
    if name in registry.available("method"):
        raise UserError(f"the name {name!r} is taken by {registry.get('method', name).path}")
    title = "".join(part.capitalize() for part in name.split("_"))
    if base is None:
        source, old = bundled("methods") / f"{TEMPLATE}.py", "MyIdea"
    else:
        info = registry.get("method", base)
        source, old = info.path, info.class_name
    text = re.sub(rf"\b{old}\b", title, source.read_text(encoding="utf-8"))
    text += "" if base else _further_needs()
    target = folder / name if package else folder / f"{name}.py"
    if target.exists():
        raise UserError(f"{target} exists already; choose another name or remove it")
    if not package:
        _write(target, text)
        return target
    _write(target / "pyproject.toml", PYPROJECT.format(name=name, title=title))
    _write(target / f"gcdbench_{name}" / "__init__.py", f'"""{title} for gcdbench."""\n')
    _write(target / f"gcdbench_{name}" / f"{name}.py", text)
    _write(target / "tests" / f"test_{name}.py", TEST.format(name=name))
    return target


def _further_needs() -> str:
    """Return the examples of methods/README.md of what a method may need, as comments."""
    page = (bundled("methods") / "README.md").read_text(encoding="utf-8")
    section = page.partition("## What a method may need\n")[2].partition("\n## ")[0]
    examples = re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S)
    lines = "\n".join(
        ["What else a method may need: copy the lines that yours does.", "", *examples]
    )
    return "\n\n" + "\n".join(f"# {line}".rstrip() for line in lines.splitlines()) + "\n"


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror})") from error


def findings(target: str) -> Iterator[Finding]:
    """Run the contract's checks on a method or technique, by its file or its name."""
    if target.endswith(".py"):
        found = registry.add_plugin(Path(target))
        kind, name = found.kind, found.name
    else:
        name = target
        kind = "technique" if target in registry.available("technique") else "method"
        registry.get(kind, name)
    if kind == "dataset":
        raise UserError(f"{target} is a dataset; use: gcdbench data verify {name}")
    registry.load(kind, name)

    from gcdbench.training.conformance import CHECKS, Bench

    spec = name if kind == "method" else f"simgcd+{name}"
    for one in CHECKS:
        title = (one.__doc__ or one.__name__).strip().splitlines()[0]
        try:
            one(lambda: Bench.of(spec))
        except Exception as error:  # a plug-in may fail in any way; its author gets a sentence
            yield Finding(title, _sentence(error, registry.get(kind, name).path))
        else:
            yield Finding(title, None)


def _sentence(error: Exception, path: Path) -> str:
    """Return an error as a sentence, with the last line of the plug-in in the traceback."""
    message = str(error).strip().splitlines()[0] if str(error).strip() else ""
    if type(error).__name__ == "ContractError":
        return message
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if Path(f.filename).resolve() == path.resolve()]
    place = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {message}{place}"
