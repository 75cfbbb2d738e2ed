"""All that a GPU user may run, on a pretend CUDA device (``pretend/``) in processes of their own.

Two processes share the cases; each test reads what became of one of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from device.cases import GROUPS
from device.pretend.environment import build, compiler, device_environment

SECONDS = 600
SHARES = (
    ("methods", "rules", "scores", "operations", "steps"),
    ("techniques", "caches", "resume", "views"),
)

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C compiler")


@pytest.fixture(scope="session")
def results(tmp_path_factory) -> dict[str, dict[str, str]]:
    """Return the tracebacks of all cases by group and name, empty where a case passed."""
    folder = tmp_path_factory.mktemp("device")
    build(folder)
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "device.cases", str(folder), *share],
            env=device_environment(folder),
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for share in SHARES
    ]
    try:
        said = [run.communicate(timeout=SECONDS)[1] for run in runs]
    finally:
        for run in runs:
            run.kill()
    return {group: _read(folder / f"{group}.jsonl", said) for group in GROUPS}


def _read(path: Path, said: list[str]) -> dict[str, str]:
    if not path.exists():
        pytest.fail("\n".join(said))
    return dict(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


def test_every_group_is_run():
    assert sorted(group for share in SHARES for group in share) == sorted(GROUPS)


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    ("group", "case"), [(group, case) for group, make in GROUPS.items() for case in make()]
)
def test_a_gpu_user_succeeds(results, group, case):
    assert case in results[group], "the process ended before this case"
    assert not results[group][case], results[group][case]
