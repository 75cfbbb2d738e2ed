"""Measure what a cell costs: time, memory and, if the device reports it, energy."""

from __future__ import annotations

import contextlib
import importlib
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch


class Meter:
    """Measures one cell over all its restarts: the totals are stored in the checkpoint."""

    def __init__(self, device: torch.device, devices: int = 1) -> None:
        self.device = device
        self.started = time.time()
        self.restarts = 0
        self._before: dict[str, float] = {}
        self._clock = time.monotonic()
        self._cpu = time.process_time()
        self._energy = energy_counter(device, devices)
        self._energy_start = self._energy() if self._energy else 0.0
        self._event: Any = None
        if device.type == "cuda":
            torch.cuda.init()  # before the first use there are no statistics to reset
            torch.cuda.reset_peak_memory_stats(device)
            self._event = self._mark()

    def carry(self, spent: dict[str, Any]) -> None:
        """Add what an interrupted run had spent."""
        self.started, self.restarts = float(spent["started"]), int(spent["restarts"]) + 1
        self._before = {k: v for k, v in spent.items() if k not in ("started", "restarts")}

    def read(self) -> dict[str, Any]:
        """Return what has been spent so far."""
        now = {
            "wall_seconds": time.monotonic() - self._clock,
            "cpu_seconds": time.process_time() - self._cpu,
        }
        if self._event is not None:
            end = self._mark()
            end.synchronize()
            now["device_seconds"] = self._event.elapsed_time(end) / 1000
        if self._energy is not None:
            now["energy_joules"] = self._energy() - self._energy_start
        spent = {name: value + self._before.get(name, 0.0) for name, value in now.items()}
        peak = max(self._peak_memory_mb(), self._before.get("peak_memory_mb", 0.0))
        stamps = {"started": self.started, "restarts": self.restarts}
        return {**stamps, **spent, "peak_memory_mb": peak}

    def _mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def _peak_memory_mb(self) -> float:
        """Return the peak memory of this cell on a GPU, or of the process so far on a CPU."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**20
        unit = 2**20 if sys.platform == "darwin" else 2**10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def energy_counter(device: torch.device, devices: int = 1) -> Callable[[], float] | None:
    """Return a function that reads the energy in joules a GPU has used, if NVML reports it.

    For a cell on several devices, those of this machine are counted.
    """
    if device.type != "cuda":
        return None
    with contextlib.suppress(Exception):  # no pynvml, no driver, or a GPU without a counter
        pynvml = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        here = range(min(devices, torch.cuda.device_count()))
        own = [device] if devices == 1 else [torch.device("cuda", number) for number in here]
        uuids = [str(torch.cuda.get_device_properties(d).uuid).removeprefix("GPU-") for d in own]
        handles = [pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}") for uuid in uuids]

        def joules() -> float:
            return sum(map(pynvml.nvmlDeviceGetTotalEnergyConsumption, handles)) / 1000

        joules()  # fails here on a GPU without a counter
        return joules
    return None


def device_name(device: torch.device) -> str:
    """Return the name of a device in records."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
