"""Runs cells one after the other in this process, skipping those that are recorded."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from gcdbench import records
from gcdbench.errors import UserError
from gcdbench.plan import Cell
from gcdbench.runner.cell import CellRun
from gcdbench.tokens import TokenStore

log = logging.getLogger(__name__)


@dataclass
class Outcome:
    """What became of the cells of a run."""

    trained: list[Cell] = field(default_factory=list)
    skipped: list[Cell] = field(default_factory=list)
    failed: list[tuple[Cell, str]] = field(default_factory=list)


def choose_device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {name}: not available on this machine") from error
    return device


def run_cells(
    cells: Sequence[Cell], results: Path, *, device: torch.device, workers: int = 0
) -> Outcome:
    """Run all cells without a record; a cell that fails does not stop the others."""
    records.check_writable(results)
    outcome, store = Outcome(), TokenStore()
    for number, cell in enumerate(cells, start=1):
        if records.is_done(results, cell):
            outcome.skipped.append(cell)
            continue
        log.info("[%d/%d] %s", number, len(cells), cell.label)
        try:
            record = CellRun(cell, results, device, workers=workers, store=store).execute()
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            folder = records.cell_folder(results, cell)
            if folder.is_dir():
                (folder / "error.log").write_text(traceback.format_exc(), encoding="utf-8")
            outcome.failed.append((cell, message))
            log.error("[%d/%d] %s failed: %s", number, len(cells), cell.label, message)
            continue
        outcome.trained.append(cell)
        scores = ", ".join(
            f"{name} {100 * s['all']:.1f}"
            for name, s in record["sets"].items()
            if s["role"] != "unseen" and "/" not in name
        )
        seconds = record["timing"]["wall_seconds"]
        log.info("[%d/%d] %s: %s (%.0f s)", number, len(cells), cell.label, scores, seconds)
    return outcome
