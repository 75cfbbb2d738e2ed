"""At least 95 % of the mutants are caught, and every one of them can still be applied."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mutants.run import ROOT, applied, project_copy
from mutants.table import MUTANTS

SCRIPT = Path(__file__).with_name("run.py")


def test_there_are_eighty_mutants_or_more_of_every_kind():
    assert len(set(MUTANTS)) == len(MUTANTS) >= 80
    files = " ".join(mutant.file for mutant in MUTANTS)
    kinds = ("methods/techniques", "ops/losses", "evaluator", "loader", "trainer", "splits")
    assert all(kind in files for kind in kinds)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}:{mutant.new[:30]}")
def test_a_mutant_changes_one_place_and_names_tests_that_exist(mutant):
    assert (ROOT / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1
    assert mutant.new != mutant.old
    assert mutant.files
    assert all((ROOT / file).is_file() for file in mutant.files)


def test_a_mutant_is_applied_to_the_copy_and_taken_back():
    mutant = MUTANTS[0]
    original = (ROOT / mutant.file).read_text(encoding="utf-8")
    with project_copy() as root:
        assert not root.is_relative_to(ROOT)
        with applied(mutant, root):
            changed = (root / mutant.file).read_text(encoding="utf-8")
            assert changed == original.replace(mutant.old, mutant.new)
            assert (ROOT / mutant.file).read_text(encoding="utf-8") == original
        assert (root / mutant.file).read_text(encoding="utf-8") == original
    assert not root.exists()


@pytest.mark.slow
def test_the_tests_catch_nearly_all_mutants():
    run = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
