"""Verbs of the command line that look, check and score, without running cells.

``list``, ``show``, ``check``, ``new-method``, ``evaluate`` and ``estimate-k``; the verbs that run
cells, report on them and prepare data are with the runner, the report and the data layer.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gcdbench import registry
from gcdbench.errors import UserError

Row = dict[str, Any]


def add_list(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``list``."""
    parser.add_argument("what", choices=tuple(LISTS))
    parser.add_argument("--json", action="store_true", help="for programs")


def list_(arguments: argparse.Namespace) -> int:
    """List what there is, one line each."""
    rows, problems = LISTS[arguments.what]()
    if arguments.json:
        print(json.dumps(rows, indent=1))
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
            "summary": face.summary,
            "paper": face.constants.get("paper", ""),
            "config": _fields(face),
        }
        for name, face in registry.faces(kind).items()
    ]
    return rows, registry.broken(kind)


def _fields(face: registry.Face) -> dict[str, Row]:
    return {
        f.name: {
            "default": None if f.default is dataclasses.MISSING else f.default,
            "required": f.default is dataclasses.MISSING,
            "source": face.notes.get(f.name, ""),
        }
        for f in dataclasses.fields(face.config)
    }


def _suites() -> tuple[list[Row], dict[str, str]]:
    from gcdbench.suites import Suite, suites

    loaded = {name: Suite.load(name) for name in suites()}
    rows: list[Row] = [
        {"name": name, "summary": suite.description, "datasets": list(suite.datasets)}
        for name, suite in loaded.items()
    ]
    return rows, {}


def _backbones() -> tuple[list[Row], dict[str, str]]:
    from gcdbench.settings import BACKBONES

    return [{"name": name, "summary": summary} for name, summary in BACKBONES.items()], {}


LISTS: dict[str, Callable[[], tuple[list[Row], dict[str, str]]]] = {
    "methods": lambda: _plugins("method"),
    "techniques": lambda: _plugins("technique"),
    "datasets": lambda: _plugins("source"),
    "suites": _suites,
    "backbones": _backbones,
}
KINDS = {"method": "method", "technique": "technique", "dataset": "source"}


def add_show(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``show``."""
    add = parser.add_argument
    add("kind", choices=tuple(KINDS))
    add("name")
    add("--suite", help="also say how large the method is and what a cell costs on this suite")
    add("--results", type=Path, default=Path("results/runs"), metavar="DIR", help="to judge by")


def show(arguments: argparse.Namespace) -> int:
    """Show a plug-in: settings with sources, the paper's numbers, cost."""
    from gcdbench import describe

    face = registry.face(KINDS[arguments.kind], arguments.name)
    print(describe.plugin(face, _fields(face)))
    if face.kind == "method":
        print(describe.paper(face.name), end="")
        if arguments.suite:
            print(describe.size_and_cost(face.name, arguments.suite, arguments.results))
        else:
            print("\nsize and cost depend on the suite: add --suite NAME")
    return 0


def add_check(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``check``."""
    parser.add_argument("target", help="a .py file, or the name of a method or technique")


def check(arguments: argparse.Namespace) -> int:
    """Run the contract's checks on a plug-in, in sentences."""
    from gcdbench.authoring import check as findings

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
    from gcdbench.authoring import new_method as create

    name, package = arguments.name, arguments.package
    path = create(name, arguments.out, base=arguments.base, package=package)
    print(f"written: {path}")
    if package:
        print(f"next: pip install -e {path} && gcdbench check {name}")
        plugin = ""
    else:
        print(f"next: gcdbench check {path}")
        plugin = f" --plugin {path}"
    print(f"then: gcdbench run --suite drawshift --quick --methods {name} simgcd{plugin}")
    return 0


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``evaluate``."""
    parser.add_argument("--features", type=Path, required=True, metavar="FILE.npz")
    parser.add_argument("--classes", type=int, metavar="K", help="clusters (default: all classes)")
    parser.add_argument("--seed", type=int, default=0, help="of k-means")
    parser.add_argument("--json", action="store_true", help="for programs")


def evaluate(arguments: argparse.Namespace) -> int:
    """Score the features or predictions of a file, per domain."""
    from gcdbench.features import evaluate_file

    scores = evaluate_file(arguments.features, num_classes=arguments.classes, seed=arguments.seed)
    if arguments.json:
        print(json.dumps({name: one.as_dict() for name, one in scores.items()}, indent=1))
        return 0
    print(f"{'domain':<16} {'All':>6} {'Old':>6} {'New':>6} {'NMI':>6} {'ARI':>6} {'images':>8}")
    for name, one in scores.items():
        rates = (one.all, one.old, one.new, one.nmi, one.ari)
        print(f"{name:<16} " + " ".join(f"{100 * r:6.1f}" for r in rates) + f" {one.n:>8}")
    return 0


def add_estimate(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``estimate-k``."""
    parser.add_argument("--features", type=Path, required=True, metavar="FILE.npz")
    parser.add_argument("--out", type=Path, default=Path("results/k"), help="folder of the curve")
    parser.add_argument("--search", choices=("brent", "binary"), default="brent")
    parser.add_argument("--max-k", type=int, default=1000, help="largest number of classes")


def estimate(arguments: argparse.Namespace) -> int:
    """Estimate the number of classes from features."""
    from gcdbench.estimate import run_estimate

    try:
        found = run_estimate(
            arguments.features, arguments.out, search=arguments.search, high=arguments.max_k
        )
    except (ValueError, OSError) as error:
        raise UserError(f"{arguments.features}: {error}") from error
    print(f"K = {found.k} (labelled accuracy {100 * found.accuracy:.1f} %)")
    return 0
