"""Functions that tests run in other processes."""

from __future__ import annotations

import os
import time
from pathlib import Path


def pid_for_ever(path: Path) -> None:
    (path / str(os.getpid())).touch()
    time.sleep(100)


def nothing() -> None:
    pass
