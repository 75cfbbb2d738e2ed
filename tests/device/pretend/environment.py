"""Builds the two stubs and says how a process that uses the device is started."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
LIBRARIES = {"runtime.c": "libpretend_runtime.so", "driver.c": "libcuda.so.1"}


def compiler() -> str | None:
    """Return the system's C compiler, if there is one."""
    return shutil.which(os.environ.get("CC", "cc"))


def build(folder: Path) -> None:
    """Compile the stubs into a folder."""
    for source, library in LIBRARIES.items():
        command = [str(compiler()), "-shared", "-fPIC", "-o", folder / library, HERE / source]
        subprocess.run(command, check=True, capture_output=True)


def device_environment(folder: Path) -> dict[str, str]:
    """Return the environment of a process that finds the stubs of a folder."""
    root = HERE.parents[2]
    paths = [root, root / "tests", *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "LD_PRELOAD": str(folder / LIBRARIES["runtime.c"]),
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "OMP_NUM_THREADS": "1",
    }
