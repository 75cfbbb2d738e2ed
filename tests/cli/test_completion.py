"""Completion: what may come next, and that real shells ask for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from gcdbench.cli.completion import SCRIPTS, candidates
from gcdbench.cli.main import _parser, main
from gcdbench.core.registry import available


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ru", ["run"]),
        ("run --su", ["--suite"]),
        ("run --suite drawshift-al", ["drawshift-all"]),
        ("run --suite drawshift --datasets line+s", ["line+solid"]),
        ("run --methods hilo sim", ["simgcd"]),
        ("run --methods simgcd+mc", ["simgcd+mcc"]),
        ("run --methods hilo-", ["hilo-curriculum", "hilo-patchmix"]),
        ("leaderboard --format l", ["latex"]),
        ("plot att", ["attention"]),
        ("plot pca --suite ssb-", ["ssb-c"]),
        ("list --json da", ["datasets"]),
        ("show method hi", ["hilo"]),
        ("show technique mc", ["mcc"]),
        ("show dataset cu", ["cub"]),
        ("check patch", ["patchmix"]),
        ("data verify aircr", ["aircraft"]),
        ("data download cif", ["cifar10", "cifar100"]),
        ("data stats --suite drawshift --datasets line+s", ["line+solid"]),
        ("data make-ssb-c c", ["cars", "cub"]),
        ("new-method mine --from un", ["uniot", "uno"]),
        ("run --seeds 1 ", []),
        ("fly ", []),
    ],
)
def test_the_next_word_is_known(line, expected):
    assert candidates(_parser(), line.split(" ")) == expected


def test_without_a_word_all_verbs_are_offered_and_none_is_hidden():
    assert {"run", "plan", "list", "completion"} <= set(candidates(_parser(), [""]))
    assert candidates(_parser(), ["run", "--suite", "drawshift", "--methods", ""]) == sorted(
        available("method")
    )


@pytest.fixture
def path(tmp_path):
    """Return a PATH on which gcdbench is this one."""
    shim = tmp_path / "gcdbench"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gcdbench "$@"\n')
    shim.chmod(0o755)
    return f"{tmp_path}{os.pathsep}{os.environ['PATH']}"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [("run --suite drawshift --methods hi", ["hilo"]), ("fly ''", []), ("pla", ["plan"])],
)
def test_bash_completes_with_the_script(path, capsys, words, expected):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    ask = f"COMP_WORDS=(gcdbench {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _gcdbench"
    shown = 'printf "%s\\n" "${COMPREPLY[@]}"'
    answer = subprocess.run(
        ["bash", "--norc", "-euo", "pipefail", "-c", f"{script}\n{ask}\n{shown}"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert answer.stdout.split() == expected


@pytest.mark.parametrize("shell", SCRIPTS)
def test_scripts_are_valid_where_their_shell_is_here(shell):
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    subprocess.run([shell, "-n"], input=SCRIPTS[shell], text=True, check=True)
