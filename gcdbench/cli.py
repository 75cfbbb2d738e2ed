"""Command line: arguments to a request, one small function per verb.

Results go to stdout, progress and messages to stderr. Exit codes: 0 done, 1 some cells failed, 2
the request was wrong, 130 interrupted. Heavy modules are imported inside the verbs that need them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gcdbench import __version__, registry, tools
from gcdbench.config import parse_assignments
from gcdbench.data import commands as data
from gcdbench.errors import UserError
from gcdbench.report import commands as reports

EXAMPLES = """examples:
  gcdbench run --suite drawshift --methods simgcd gcd     train, score, print the leaderboard
  gcdbench run --suite drawshift --quick                  the same cells, tiny, in a minute
  gcdbench plan --suite drawshift --seeds 0 1 2           what would run, and what is done
  gcdbench leaderboard --suite drawshift                  from the records, nothing is trained
  gcdbench list methods                                   what there is
"""
log = logging.getLogger("gcdbench")


class _Parser(argparse.ArgumentParser):
    """Parser that answers a wrong argument with one sentence."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    debug = "--debug" in (sys.argv[1:] if argv is None else argv)
    try:
        arguments = _parser().parse_args(argv)
        for plugin in getattr(arguments, "plugin", None) or ():
            registry.add_plugin(Path(plugin))
        return arguments.verb(arguments)
    except UserError as error:
        if debug:
            raise
        print(f"gcdbench: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("gcdbench: interrupted; run the same command again to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gcdbench",
        description="Compare methods of Generalized Category Discovery under domain shift.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gcdbench {__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    def verb(name: str, function: Callable[[Any], int], text: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=text)
        sub.set_defaults(verb=function)
        sub.add_argument("--debug", action="store_true", help="show tracebacks")
        return sub

    run = verb("run", _run, "train and score the cells that have no record yet")
    _add_request(run)
    run.add_argument("--device", default="auto", help="cpu, cuda, cuda:1, ... (default: auto)")
    run.add_argument("--workers", type=int, default=0, help="processes that load images")

    plan = verb("plan", _plan, "show what would run and what is done")
    _add_request(plan)
    plan.add_argument("--json", action="store_true", help="for programs")

    for name, add, on_request in (
        ("leaderboard", reports.add_leaderboard, reports.leaderboard),
        ("plot", reports.add_plot, reports.plot),
        ("report", reports.add_report, reports.report),
    ):
        sub = verb(name, _with_request(on_request), _first_line(on_request))
        _add_request(sub)
        add(sub)
    data.add_parser(verbs)

    for name, add, function in (
        ("list", tools.add_list, tools.list_),
        ("show", tools.add_show, tools.show),
        ("check", tools.add_check, tools.check),
        ("new-method", tools.add_new_method, tools.new_method),
        ("evaluate", tools.add_evaluate, tools.evaluate),
        ("estimate-k", tools.add_estimate, tools.estimate),
    ):
        sub = verb(name, function, _first_line(function))
        add(sub)
        sub.add_argument("--plugin", action="append", metavar="FILE", help="add a plug-in file")
    return parser


def _with_request(function: Callable[[Any, Any], int]) -> Callable[[Any], int]:
    return lambda arguments: function(arguments, _request(arguments))


def _first_line(function: Callable[..., int]) -> str:
    text = (function.__doc__ or "").strip().splitlines()[0].rstrip(".")
    return text[0].lower() + text[1:]


def _add_request(parser: argparse.ArgumentParser) -> None:
    """Add the flags by which all verbs name the same cells."""
    add = parser.add_argument
    add("--suite", required=True, help="name of a suite, or a YAML file")
    add("--methods", nargs="+", default=(), metavar="SPELLING", help="simgcd, hilo-patchmix, ...")
    add("--datasets", nargs="+", default=(), metavar="NAME", help="of the suite (default: all)")
    add("--seeds", nargs="+", type=int, default=(), metavar="N", help="default: the suite's")
    add("--set", action="append", default=[], metavar="KEY=VALUE", dest="assignments")
    add("--quick", action="store_true", help="a tiny version of the same cells, for a first look")
    add("--results", type=Path, default=Path("results/runs"), metavar="DIR")
    add("--data-root", type=Path, metavar="DIR", help="where the datasets are (or GCDBENCH_DATA)")
    add("--plugin", action="append", metavar="FILE", help="a file with a method or technique")


def _request(arguments: argparse.Namespace) -> Any:
    from gcdbench.plan import Request

    return Request(
        suite=arguments.suite,
        methods=tuple(arguments.methods),
        datasets=tuple(arguments.datasets),
        seeds=tuple(arguments.seeds),
        assignments=parse_assignments(arguments.assignments),
        quick=arguments.quick,
        data_root=arguments.data_root,
    )


def _run(arguments: argparse.Namespace) -> int:
    from gcdbench.plan import make_cells
    from gcdbench.records import check_writable

    request = _request(arguments)
    cells = make_cells(request)
    check_writable(arguments.results)
    for cell in cells:
        _ = cell.key  # needs the data and the weights: says what is missing before any training

    from gcdbench.runner.local import choose_device, run_cells

    device = choose_device(arguments.device)
    outcome = run_cells(cells, arguments.results, device=device, workers=arguments.workers)
    if not outcome.trained and not outcome.failed:
        log.info("all %d cells are recorded already: nothing was trained", len(cells))
    elif outcome.skipped:
        log.info("%d of %d cells were recorded already", len(outcome.skipped), len(cells))
    if outcome.trained or outcome.skipped:
        requested = dataclasses.replace(
            request, methods=tuple(dict.fromkeys(c.spelling.text for c in cells))
        )
        reports.publish(arguments, requested)
    if outcome.failed:
        log.error("%d of %d cells failed", len(outcome.failed), len(cells))
        return 1
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    from gcdbench.plan import make_cells
    from gcdbench.records import is_done

    cells = make_cells(_request(arguments))
    rows = [
        {
            "dataset": cell.dataset,
            "method": cell.spelling.text,
            "seed": cell.seed,
            "key": cell.key,
            "done": is_done(arguments.results, cell),
        }
        for cell in cells
    ]
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return 0
    for row in rows:
        state = "done" if row["done"] else "to do"
        place = f"{row['dataset']:<20} {row['method']:<24} seed {row['seed']:<4}"
        print(f"{place} {row['key']}  {state}")
    print(f"{len(rows)} cells, {sum(bool(row['done']) for row in rows)} done")
    return 0
