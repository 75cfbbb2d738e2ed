"""Apply small wrong changes to a copy of the project, one at a time, and see which tests notice.

    python tests/mutants/run.py                  # all of them
    python tests/mutants/run.py uniot sampler    # those whose file or text contains a word
    python tests/mutants/run.py --part 1/3       # a third of them, for several processes at a time

The mutants are in table.py. The checkout is copied once and never written to. Every mutant is
tried in a forked process that has imported torch and timm, but nothing of the project.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("gcdbench", "methods", "benchmarks", "tests", "pyproject.toml")
SECONDS = 600.0  # a mutant that takes longer hangs, and counts as caught
PRELOADED = ("timm", "pytest", "PIL.Image", "scipy.io", "scipy.optimize", "scipy.sparse.csgraph")
MARKS = "not slow and not gpu and not data and not browser and not latex and not slurm"


@dataclass(frozen=True)
class Mutant:
    """A wrong change: a text that occurs once in a file, what replaces it, who should notice."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...]  # arguments of pytest

    @property
    def files(self) -> list[str]:
        """The test files."""
        return [test for test in self.tests if test.endswith(".py")]

    def __str__(self) -> str:
        return f"{self.file}: {self.old!r} -> {self.new!r}"


@contextlib.contextmanager
def project_copy() -> Iterator[Path]:
    """Yield the root of a copy of the project that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        for name in COPIED:
            source, target = ROOT / name, Path(folder) / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
                shutil.copytree(source, target, ignore=ignored)
            else:
                shutil.copy(source, target)
        yield Path(folder)


@contextlib.contextmanager
def applied(mutant: Mutant, root: Path) -> Iterator[None]:
    """Change a file of the copy for as long as the context lasts."""
    path = root / mutant.file
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.file}: {mutant.old!r} occurs {text.count(mutant.old)} times")
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def passes(root: Path, *runs: Sequence[str], seconds: float | None = SECONDS) -> bool:
    """Tell whether all runs of tests of the copy pass, in one process of their own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads: none computes yet
        process = multiprocessing.get_context("fork").Process(target=_test, args=(root, runs))
        process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
    return process.exitcode == 0


def _test(root: Path, runs: Sequence[Sequence[str]]) -> None:
    import pytest

    sys.dont_write_bytecode = True  # a stale one of another mutant must not be read
    sys.path.insert(0, str(root))
    os.environ["PYTHONPATH"] = str(root)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take longer than the tests
    os.chdir(root)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    options = ["-q", "-x", "-p", "no:cacheprovider", "--rootdir", str(root), "-m", MARKS]
    imported = "ignore:Module already imported"  # a plugin of pytest, by timm
    code = 0
    for tests in runs:
        code = code or int(pytest.main([*options, "-W", imported, *tests]))
    import gcdbench

    if not Path(gcdbench.__file__).is_relative_to(root):
        code = 99  # the tests were not those of the copy
    os._exit(code)


def survivors(
    mutants: Sequence[Mutant],
    report: Callable[[Mutant, bool, float], None],
    *,
    trust: bool = False,
) -> list[Mutant]:
    """Return the mutants that no test notices; raise if a test fails without any mutant.

    ``trust`` leaves out the run without mutants: the tests are known to pass.
    """
    import torch

    for name in PRELOADED:
        importlib.import_module(name)
    torch.set_num_threads(1)
    alive = []
    with project_copy() as root:
        runs = sorted({mutant.tests for mutant in mutants})
        if not trust and not passes(root, *runs, seconds=None):
            failing = [" ".join(run) for run in runs if not passes(root, run, seconds=None)]
            raise RuntimeError(f"without any mutant these fail: pytest {'; pytest '.join(failing)}")
        for mutant in mutants:
            began = time.monotonic()
            with applied(mutant, root):
                caught = not passes(root, mutant.tests)
            report(mutant, caught, time.monotonic() - began)
            alive += [] if caught else [mutant]
    return alive


def main(arguments: Sequence[str]) -> int:
    """Try the mutants and list the survivors."""
    sys.path.insert(0, str(ROOT / "tests"))
    from mutants.table import MUTANTS

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*")
    parser.add_argument("--part", default="1/1", help="such as 1/3")
    parser.add_argument("--trust", action="store_true", help="the tests pass without mutants")
    given = parser.parse_args(arguments)
    part, parts = map(int, given.part.split("/"))
    chosen = [m for m in MUTANTS if not given.words or any(word in str(m) for word in given.words)]
    chosen = chosen[part - 1 :: parts]

    def report(mutant: Mutant, caught: bool, seconds: float) -> None:
        print(f"{'caught' if caught else 'SURVIVES'} {seconds:5.1f} s  {mutant}", flush=True)

    alive = survivors(chosen, report, trust=given.trust)
    print(f"{len(chosen) - len(alive)} of {len(chosen)} mutants are caught")
    return 1 if len(alive) > 0.05 * len(chosen) else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main(sys.argv[1:]))
