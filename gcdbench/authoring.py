"""For the author of a new method: a file to start from, and the contract's checks on it."""

from __future__ import annotations

import keyword
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gcdbench import registry
from gcdbench.errors import UserError
from gcdbench.layout import shipped

TEMPLATE = "_template"
PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "gcdbench-{name}"
version = "0.1.0"
description = "{title}, a method for gcdbench"
requires-python = ">=3.10"
dependencies = ["gcdbench"]

[project.entry-points."gcdbench.methods"]
{name} = "gcdbench_{name}.{name}:{title}"

[tool.hatch.build.targets.wheel]
packages = ["gcdbench_{name}"]
"""
TEST = """from __future__ import annotations

import pytest

from gcdbench.contract import CHECKS, Bench
from gcdbench.plan import Spelling


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_method_keeps_the_contract(check):
    check(lambda: Bench(Spelling.parse("{name}")))
"""


@dataclass(frozen=True)
class Finding:
    """Outcome of one check."""

    check: str  # what must hold
    problem: str | None  # the sentence if it does not


def new_method(name: str, folder: Path, *, base: str | None = None, package: bool = False) -> Path:
    """Write a runnable method file, or a whole installable package, and return its path."""
    if not registry.NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UserError(f"{name!r}: a method's name has lower-case letters, digits and _ only")
    if name in registry.faces("method"):
        raise UserError(f"the name {name!r} is taken by {registry.face('method', name).path}")
    title = "".join(part.capitalize() for part in name.split("_"))
    if base is None:
        source, old = shipped("methods") / f"{TEMPLATE}.py", "MyIdea"
    else:
        face = registry.face("method", base)
        source, old = face.path, face.class_name
    text = re.sub(rf"\b{old}\b", title, source.read_text(encoding="utf-8"))
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


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror})") from error


def check(target: str) -> Iterator[Finding]:
    """Run the contract's checks on a method or technique, by its file or its name."""
    if target.endswith(".py"):
        found = registry.add_plugin(Path(target))
        kind, name = found.kind, found.name
    else:
        name = target
        kind = "technique" if target in registry.faces("technique") else "method"
        registry.face(kind, name)
    if kind == "source":
        raise UserError(f"{target} is a dataset source; use: gcdbench data verify {name}")
    registry.load(kind, name)

    from gcdbench.contract import CHECKS, Bench
    from gcdbench.plan import Spelling

    spelling = Spelling.parse(name if kind == "method" else f"simgcd+{name}")
    for one in CHECKS:
        title = (one.__doc__ or one.__name__).strip().splitlines()[0]
        try:
            one(lambda: Bench(spelling))
        except Exception as error:  # a plug-in may fail in any way; its author gets a sentence
            yield Finding(title, _sentence(error, registry.face(kind, name).path))
        else:
            yield Finding(title, None)


def _sentence(error: Exception, path: Path) -> str:
    """Say what went wrong, with the last line of the plug-in that was involved."""
    message = str(error).strip().splitlines()[0] if str(error).strip() else ""
    if type(error).__name__ == "ContractError":
        return message
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if Path(f.filename).resolve() == path.resolve()]
    place = f" (line {lines[-1]})" if lines else ""
    return f"{type(error).__name__}: {message}{place}"
