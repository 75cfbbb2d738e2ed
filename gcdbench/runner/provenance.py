"""Where a result comes from: versions, machine, commit."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gcdbench.core.paths import PACKAGE

PACKAGES = ("gcdbench", "torch", "torchvision", "timm", "numpy", "scipy", "pillow", "faiss-gpu")


def provenance() -> dict[str, Any]:
    """Return the versions and the machine that a result was made with."""
    return {
        "versions": {"python": platform.python_version(), **{p: _version(p) for p in PACKAGES}},
        "platform": platform.platform(),
        "processor": _processor(),
        "git": _git(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(x.split(":", 1)[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def _git() -> dict[str, Any] | None:
    """Return commit and dirty flag of the checkout that the code runs from, if it is one."""
    root = PACKAGE.parent
    if not (root / ".git").exists():
        return None

    def ask(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = ask("status", "--porcelain", "--untracked-files=no")
        return {"commit": ask("rev-parse", "HEAD"), "dirty": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return None
