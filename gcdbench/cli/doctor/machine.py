"""Facts about this machine: versions, devices, cores, memory and disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from gcdbench.runner.options import available_cores
from gcdbench.runner.provenance import provenance


def machine(results: Path) -> dict[str, Any]:
    """Return versions, devices, cores, memory and free disk space, in bytes."""
    origin = provenance()
    return {
        "versions": {**origin["versions"], "cuda": torch.version.cuda or "none"},
        "platform": origin["platform"],
        "processor": origin["processor"],
        "gpus": gpus(),
        "driver_without_torch": not torch.cuda.is_available() and bool(driver_gpus()),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "memory": memory(),
        "disk": {str(folder): free_space(folder) for folder in (results, _hub_cache())},
    }


def gpus() -> list[dict[str, Any]]:
    """Return name and memory of each CUDA device."""
    found = []
    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        found.append({"name": facts.name, "memory": total, "free": free})
    return found


def driver_gpus() -> list[str]:
    """Return the GPUs that NVIDIA's driver lists, whether torch can use them or not."""
    return [path.name for path in Path("/proc/driver/nvidia/gpus").glob("*")]


def cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> float:
    """Return how many cores this process may use; a container's quota may be a fraction."""
    number = float(available_cores())
    try:
        most, period = quota.read_text(encoding="utf-8").split()
        return number if most == "max" else min(number, round(int(most) / int(period), 2))
    except (OSError, ValueError, ZeroDivisionError):
        return number


def memory(
    listed: Path = Path("/proc/meminfo"), limit: Path = Path("/sys/fs/cgroup/memory.max")
) -> dict[str, int] | None:
    """Return total and available memory in bytes, at most what a container may use."""
    try:
        lines = listed.read_text(encoding="utf-8").splitlines()
        values = {name: 1024 * int(value.split()[0]) for name, value in _pairs(lines)}
        found = {"total": values["MemTotal"], "available": values["MemAvailable"]}
    except (OSError, ValueError, KeyError, IndexError):
        return None
    try:
        most = int(limit.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no container, or one without a limit
        return found
    return {name: min(value, most) for name, value in found.items()}


def _pairs(lines: list[str]) -> list[tuple[str, str]]:
    return [(name, value) for name, _, value in (line.partition(":") for line in lines)]


def free_space(folder: Path) -> int:
    """Return the free space of the disk that a folder is on, or would be on."""
    there = next(
        place for place in (folder.absolute(), *folder.absolute().parents) if place.exists()
    )
    return shutil.disk_usage(there).free


def _hub_cache() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)
