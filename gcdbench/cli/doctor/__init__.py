"""The verb doctor: what is installed and there, how fast this machine is, and what limits it."""

from __future__ import annotations

import argparse
import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gcdbench.cli.arguments import aligned, amount, say
from gcdbench.core.json_text import json_text
from gcdbench.errors import UserError
from gcdbench.experiment.plan import Cell, Request, make_cells

if TYPE_CHECKING:
    from gcdbench.cli.doctor.measure import CellTime, Speed

log = logging.getLogger("gcdbench")
DAY = 86_400.0  # seconds
SHOWN = 12  # rows of the table of cells


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``doctor``."""
    add = parser.add_argument
    add("--suite", default="drawshift", help="whose data, weights and cells (default: drawshift)")
    add("--methods", nargs="+", default=(), metavar="METHOD", help="default: those of the suite")
    add("--data-root", type=Path, metavar="DIR", help="where the datasets are (or GCDBENCH_DATA)")
    add("--results", type=Path, default=Path("results/runs"), metavar="DIR")
    add("--device", default="auto", help="cpu, cuda, cuda:1, ... (default: a GPU, else the CPU)")
    longest = "that the measurement may take (default: 60); 0: measure nothing"
    add("--seconds", type=amount, default=60.0, metavar="N", help=longest)
    add("--json", action="store_true", help="for programs")


def doctor(arguments: argparse.Namespace) -> int:
    """Check this machine: versions, devices, data, weights and speed."""
    cells = make_cells(
        Request(arguments.suite, tuple(arguments.methods), data_root=arguments.data_root)
    )
    log.info("looking at this machine ...")
    from gcdbench.cli.backbones import check_backbones
    from gcdbench.cli.doctor.machine import machine

    check_backbones(cells)
    facts: dict[str, Any] = machine(arguments.results)
    facts |= {"suite": arguments.suite, "data": data_of(cells), "weights": weights_of(cells)}
    if not arguments.json:
        say(describe(facts))
    if arguments.seconds:
        speed, times = _measured(arguments, cells)
        facts["speed"] = dataclasses.asdict(speed)
        facts["cells"] = [
            {**dataclasses.asdict(one), "seconds": one.seconds, "limit": one.limit} for one in times
        ]
        if not arguments.json:
            say(describe_speed(speed, times))
            for advice in advise(facts, times):
                say(advice)
    if arguments.json:
        say(json_text(facts))
    return 0


def _measured(arguments: argparse.Namespace, cells: Sequence[Cell]) -> tuple[Speed, list[CellTime]]:
    from gcdbench.cli.doctor.measure import cell_time, measure
    from gcdbench.runner.devices import choose_device

    log.info("measuring, about %.0f s ...", arguments.seconds)
    distinct = list({(cell.dataset, cell.spec.text): cell for cell in cells}.values())
    one_each = list({cell.spec.text: cell for cell in reversed(_present_first(distinct))}.values())
    speed = measure(one_each[::-1], choose_device(arguments.device), arguments.seconds)
    return speed, [cell_time(cell, speed) for cell in distinct]


def _present_first(cells: Sequence[Cell]) -> list[Cell]:
    """Return cells, those whose data is there before the others."""
    absent = {name for name, reason in data_of(cells).items() if reason}
    return sorted(cells, key=lambda cell: cell.dataset in absent)


def data_of(cells: Sequence[Cell]) -> dict[str, str]:
    """Return the datasets with the reason why one cannot be used, empty if it can."""
    found = {}
    for cell in {cell.dataset: cell for cell in cells}.values():
        try:
            cell.problem()
            found[cell.dataset] = ""
        except UserError as error:
            found[cell.dataset] = str(error)
    return found


def weights_of(cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    """Return for each backbone where its weights are, and whether they can be fetched if not."""
    from gcdbench.nn import hub

    found = {}
    for config in dict.fromkeys(cell.backbone for cell in cells):
        weights = hub.find_weights(config)
        fetched = config.from_hub and not weights.there
        error = hub.unreachable(weights) if fetched and "://" not in weights.place else None
        reason = "" if error is None else type(error).__name__
        found[config.name] = {**dataclasses.asdict(weights), "unreachable": reason}
    return found


def describe(facts: dict[str, Any]) -> str:
    """Return what is installed and what is there, a line for each."""
    versions = facts["versions"]
    wanted = ("gcdbench", "python", "torch", "timm", "faiss-gpu", "cuda")
    lines = [
        ("versions", ", ".join(f"{name} {versions[name]}" for name in wanted)),
        ("devices", _devices(facts)),
        ("cores", f"{facts['cores']:g} ({facts['processor']}), load {facts['load']}"),
        ("memory", _memory(facts["memory"])),
    ]
    lines += [("disk", f"{_gb(free)} free for {folder}") for folder, free in facts["disk"].items()]
    for name, reason in facts["data"].items():
        lines.append(("data", f"{name}: {reason or 'there'}"))
    for name, weights in facts["weights"].items():
        lines.append(("weights", f"{name}: {_weights(weights)}"))
    return "\n".join(f"{name:<9} {text}" for name, text in lines)


def _devices(facts: dict[str, Any]) -> str:
    if facts["gpus"]:
        return ", ".join(f"{gpu['name']} ({_gb(gpu['memory'])})" for gpu in facts["gpus"])
    if facts["driver_without_torch"]:
        return "the driver lists a GPU that torch cannot use: install a build of torch with CUDA"
    return "no GPU"


def _memory(memory: dict[str, int] | None) -> str:
    if memory is None:
        return "unknown"
    return f"{_gb(memory['total'])}, {_gb(memory['available'])} available"


def _gb(number: int) -> str:
    return f"{number / 1e9:.1f} GB"


def _weights(weights: dict[str, Any]) -> str:
    if weights["there"]:
        return f"there ({weights['place']})"
    if weights["unreachable"]:
        return (
            f"not there, and the hub ({weights['place']}) cannot be reached "
            f"({weights['unreachable']}); --set backbone.weights=FILE names a file"
        )
    return f"not there; the first run downloads them once ({weights['place']})"


def describe_speed(speed: Speed, times: Sequence[CellTime]) -> str:
    """Return what was measured and what a cell takes."""
    from gcdbench.runner.cost import duration

    random = ", random weights" if speed.random_weights else ""
    loading = "not measured: no data" if speed.loading is None else f"{speed.loading:,.0f} views/s"
    steps = ", ".join(f"{name} {_rate(found)}" for name, found in speed.step.items())
    lines = [
        f"measured on one process ({speed.batch} images a step{random}), views/s:",
        f"loading   {loading}",
        f"frozen    {_rate(speed.trunk)}",
        f"step      {steps}",
        "",
    ]
    rows = [["dataset", "method", "a cell here", "most of it in"]]
    for one in times[:SHOWN]:
        share = f"{one.limit} ({100 * one.parts[one.limit] / one.seconds:.0f} %)"
        rows.append([one.dataset, one.method, duration(one.seconds), share])
    lines += aligned(rows, left=(0, 1, 3))
    if len(times) > SHOWN:
        lines.append(f"... and {len(times) - SHOWN} more (--json has all)")
    return "\n".join(lines)


def advise(facts: dict[str, Any], times: Sequence[CellTime]) -> list[str]:
    """Return what the reader of the measurement should know."""
    found = []
    if facts["load"] is not None and facts["load"] > facts["cores"] + 1:
        found.append("Other processes kept this machine busy: alone it is faster.")
    if not facts["gpus"] and max(one.seconds for one in times) > DAY:
        suite = facts["suite"]
        found.append(f"A GPU is needed: 'gcdbench plan --suite {suite}' estimates the time on one.")
    if any(one.limit == "loading" for one in times):
        found.append("Loading limits: 'run --workers N' loads in N processes next to the training.")
    return found


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"
