"""The command line: build a request from the arguments; each verb has a module next to this one.

Results go to stdout, progress and messages to stderr. Exit codes: 0 done, 1 some cells failed, 2
the request was wrong, 130 interrupted. Heavy modules are imported inside the verbs that need them.
"""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

# Set before numpy is imported. Torch uses many threads; additional ones that BLAS starts for numpy
# and scipy slow everything down: corrupting an image takes fifty times as long.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from gcdbench import __version__
from gcdbench.cli import (
    completion,
    data,
    doctor,
    paper,
    plot,
    plugins,
    report,
    results,
    run,
    score,
    show,
    site,
)
from gcdbench.cli import plan as plans
from gcdbench.cli.arguments import PlainFormatter, plain, seed
from gcdbench.cli.tuning import study, tune
from gcdbench.core import registry
from gcdbench.core.config import parse_assignments
from gcdbench.errors import UserError, unknown

HELP = """usage: gcdbench VERB ...  (gcdbench VERB --help says more; gcdbench --version)

Compare methods of Generalized Category Discovery under domain shift.

verbs:
{verbs}

examples:
  gcdbench run --suite drawshift --quick             a tiny version for a look
  gcdbench run --suite drawshift --methods hilo gcd  train, score and rank
  gcdbench report --suite drawshift                  a web page from the records
  gcdbench reproduce --list                          the paper's tables
"""
EXAMPLES = {
    "run": """
  gcdbench run --suite drawshift --methods simgcd gcd        two methods, all datasets
  gcdbench run --suite drawshift --methods hilo-patchmix simgcd+mcc --seeds 0 1 2
  gcdbench run --suite drawshift --set train.lr=0.05 --set backbone.train_blocks=2
  gcdbench run --suite ssb-c --methods hilo --data-root /data --device cuda:0""",
    "tune": """
  gcdbench tune --suite drawshift --methods simgcd gcd --budget 8      no hidden label is used
  gcdbench tune --suite drawshift --methods simgcd --show              what is recorded""",
    "plan": """
  gcdbench plan --suite drawshift --seeds 0 1 2              what is done, what the rest costs""",
    "doctor": """
  gcdbench doctor --suite ssb-c --data-root /data            before the first run of a suite""",
    "status": """
  gcdbench status --suite drawshift --watch                  until all cells are done""",
    "leaderboard": """
  gcdbench leaderboard --suite drawshift --format latex""",
    "report": """
  gcdbench report --suite drawshift --methods hilo simgcd --out page""",
    "site": """
  gcdbench site --results results/runs --out site            for any static host""",
    "results": """
  gcdbench results merge node1/runs node2/runs --into results/runs
  gcdbench results verify results/runs
  gcdbench results rescore results/runs --check              from stored predictions
  gcdbench results pack --methods simgcd --out simgcd.zip    for others to verify
  gcdbench results verify simgcd.zip
  gcdbench results export-weights --methods simgcd           for a model hub
  gcdbench results import-weights models/simgcd-a-seed0      for plot pca, plot attention""",
    "list": """
  gcdbench list methods --json                               settings, defaults and sources""",
    "show": """
  gcdbench show method hilo --suite drawshift                also size and cost""",
    "check": """
  gcdbench check myidea.py
  gcdbench check patchmix""",
    "new-method": """
  gcdbench new-method myidea                                 myidea.py, to be filled in
  gcdbench new-method myidea --from simgcd --package         a package with entry point, test""",
    "evaluate": """
  gcdbench evaluate --features f.npz --json                  features, labels, labelled
  gcdbench evaluate --weights models/simgcd-a-seed0          a trained cell, once more""",
    "estimate-k": """
  gcdbench estimate-k --features f.npz --max-k 300""",
    "completion": """
  gcdbench completion bash                                   a script for ~/.bashrc""",
}
log = logging.getLogger("gcdbench")


class _Parser(argparse.ArgumentParser):
    """Parser that reports a wrong argument in one sentence, with the nearest known name."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if wrong is not None:
            known = [name.strip(" '") for name in wrong[2].split(",")]
            kind = message.split(":")[0].removeprefix("argument ").lower()
            raise unknown(kind, wrong[1], known)
        raise UserError(f"{message} (see {self.prog} --help)")


class _Main(_Parser):
    """The top-level parser, whose help fits one screen."""

    verbs: Any

    def format_help(self) -> str:
        lines = [f"  {name:<12} {sub.description}" for name, sub in self.verbs.choices.items()]
        return HELP.format(verbs="\n".join(lines))

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, left = self.parse_known_args(args, namespace)
        if left:
            words = sys.argv[1:] if args is None else args
            inner, _ = completion.descend(self, words)
            near = difflib.get_close_matches(left[0], completion.flags(inner), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UserError(f"unknown argument {left[0]!r}{hint} (see {inner.prog} --help)")
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True)
    logging.getLogger().handlers[0].setFormatter(PlainFormatter("%(message)s"))
    debug = "--debug" in (sys.argv[1:] if argv is None else argv)
    try:
        arguments = _parser().parse_args(argv)
        for path in getattr(arguments, "plugin", None) or ():
            registry.add_plugin(Path(path))
        code = _call(arguments)
        sys.stdout.flush()  # here, where a full disk gets its sentence
        return code
    except UserError as error:
        if debug:
            raise
        print(plain(f"gcdbench: {error}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("gcdbench: interrupted; run the same command again to continue", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except OSError as error:
        if debug:
            raise
        where = error.filename or "stdout"
        print(plain(f"gcdbench: {error.strerror or error} ({where})"), file=sys.stderr)
        return 2


def _call(arguments: argparse.Namespace) -> int:
    """Call the verb; a plug-in that ends the process must not look like success."""
    try:
        return int(arguments.verb(arguments))
    except (SystemExit, GeneratorExit) as error:
        name = type(error).__name__
        text = f"gcdbench: a plug-in tried to end the program ({name}: {error})"
        print(plain(text), file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = _Main(prog="gcdbench")
    parser.add_argument("--version", action="version", version=f"gcdbench {__version__}")
    verbs = parser.add_subparsers(metavar="VERB", required=True, parser_class=_Parser)
    parser.verbs = verbs

    def verb(name: str, function: Callable[[Any], int], text: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=text)
        if name in EXAMPLES:
            sub.formatter_class = argparse.RawDescriptionHelpFormatter
            sub.epilog = f"examples:{EXAMPLES[name]}"
        sub.set_defaults(verb=function)
        sub.add_argument("--debug", action="store_true", help="show tracebacks")
        return sub

    for name, add, on_request in (
        ("run", run.add_run, run.run),
        ("plan", plans.add_plan, plans.plan),
        ("status", plans.add_status, plans.status),
        ("leaderboard", report.add_leaderboard, report.leaderboard),
        ("plot", plot.add_plot, plot.plot),
        ("report", report.add_report, report.report),
    ):
        sub = verb(name, _with_request(on_request), _first_line(on_request))
        _add_request(sub)
        add(sub)
    sub = verb("tune", _with_request(tune.tune), _first_line(tune.tune))
    _add_request(sub)
    tune.add_tune(sub)
    run.add_run(sub)
    sub = verb("reproduce", paper.reproduce, _first_line(paper.reproduce))
    paper.add_reproduce(sub)
    study.add_study(sub)
    _add_selection(sub)
    run.add_run(sub)
    data.add_parser(verbs)

    for name, add, function in (
        ("doctor", doctor.add_doctor, doctor.doctor),
        ("site", site.add_site, site.site),
        ("results", results.add_results, results.results),
        ("list", plugins.add_list, plugins.list_),
        ("show", show.add_show, show.show),
        ("check", plugins.add_check, plugins.check),
        ("new-method", plugins.add_new_method, plugins.new_method),
        ("evaluate", score.add_evaluate, score.evaluate),
        ("estimate-k", score.add_estimate, score.estimate),
    ):
        sub = verb(name, function, _first_line(function))
        add(sub)
        sub.add_argument("--plugin", action="append", metavar="FILE", help="add a plug-in file")

    def complete(arguments: argparse.Namespace) -> int:
        """Print a script that completes words in your shell."""
        if arguments.shell == "words":
            print("\n".join(completion.candidates(parser, arguments.words)))
        else:
            print(completion.SCRIPTS[arguments.shell], end="")
        return 0

    sub = verb("completion", complete, _first_line(complete))
    sub.add_argument("shell", choices=(*completion.SCRIPTS, "words"))
    sub.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _with_request(function: Callable[[Any, Any], int]) -> Callable[[Any], int]:
    return lambda arguments: function(arguments, _request(arguments))


def _first_line(function: Callable[..., int]) -> str:
    text = (function.__doc__ or "").strip().splitlines()[0].rstrip(".")
    return text[0].lower() + text[1:]


def _add_request(parser: argparse.ArgumentParser) -> None:
    """Add the flags that name cells, the same for all verbs."""
    add = parser.add_argument
    add("--suite", required=True, help="name of a suite, or a YAML file")
    add("--methods", nargs="+", default=(), metavar="METHOD", help="simgcd, hilo-patchmix, ...")
    _add_selection(parser)
    parser.add_argument(
        "--class-splits",
        nargs="+",
        type=int,
        choices=range(5),
        default=(),
        metavar="N",
        help="other choices of old classes, 0 to 4, as datasets NAME@N (default: 0, the published)",
    )


def _add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the flags that select cells of a suite or table and change their settings."""
    add = parser.add_argument
    add("--datasets", nargs="+", default=(), metavar="NAME", help="some of them (default: all)")
    add(
        "--seeds",
        nargs="+",
        type=seed,
        default=(),
        metavar="N",
        help="default: those of the suite or table",
    )
    add("--set", action="append", default=[], metavar="KEY=VALUE", dest="assignments")
    add("--quick", action="store_true", help="a tiny version of the same cells, for a first look")
    add("--results", type=Path, default=Path("results/runs"), metavar="DIR")
    add("--data-root", type=Path, metavar="DIR", help="where the datasets are (or GCDBENCH_DATA)")
    add("--plugin", action="append", metavar="FILE", help="a file with a method or technique")


def _request(arguments: argparse.Namespace) -> Any:
    from gcdbench.experiment.plan import Request

    return Request(
        suite=arguments.suite,
        methods=tuple(arguments.methods),
        datasets=tuple(arguments.datasets),
        seeds=tuple(arguments.seeds),
        class_splits=tuple(arguments.class_splits),
        assignments=parse_assignments(arguments.assignments),
        quick=arguments.quick,
        data_root=arguments.data_root,
    )
