"""Runs cells one after the other in this process, skipping those that are recorded."""

from __future__ import annotations

import logging
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from gcdbench import records
from gcdbench.errors import UserError
from gcdbench.plan import Cell
from gcdbench.runner import journal
from gcdbench.runner.cell import CellRun, Setting
from gcdbench.runner.circle import Circle, Seat, groups

WAIT_SECONDS = 2.0  # before asking again for cells that another run holds
log = logging.getLogger(__name__)


@dataclass
class Outcome:
    """What became of the cells of a run."""

    trained: list[Cell] = field(default_factory=list)
    skipped: list[Cell] = field(default_factory=list)
    failed: list[tuple[Cell, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Attempt:
    """What became of one cell; busy: another run has it."""

    kind: Literal["trained", "skipped", "failed", "busy"]
    message: str = ""


def choose_device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # which meta, a device without numbers, does not know
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {name}: not available on this machine") from error
    return device


def run_cells(
    cells: Sequence[Cell],
    results: Path,
    *,
    device: torch.device,
    workers: int = 0,
    share_trunk: bool = False,
    **more: Any,
) -> Outcome:
    """Run all cells without a record; a cell that fails does not stop the others."""
    records.check_writable(results)
    setting = Setting(results, device, workers=workers, **more)
    solo = Solo(setting)
    with setting.stop:
        return work_off(cells, SideBySide(solo, cells) if share_trunk else solo)


class Solo:
    """Runs one cell after the other, here and now."""

    def __init__(self, setting: Setting) -> None:
        self.setting = replace(setting, store=setting.fresh_store())
        self._dataset = ""

    def __call__(self, cell: Cell) -> Attempt:
        """Run a cell, with the features of the last one if it was of the same dataset."""
        return attempt(cell, self.prepare(cell))

    def prepare(self, cell: Cell) -> Setting:
        """Return the setting for a cell, with room for the features of its dataset."""
        self.setting.stop.check()
        if cell.dataset != self._dataset:
            self.setting.store.retire()
            self._dataset = cell.dataset
        return self.setting


class SideBySide:
    """Runs a cell together with all others that draw the same batches."""

    def __init__(self, solo: Solo, cells: Sequence[Cell]) -> None:
        self.solo = solo
        self._group = {cell.key: group for group in groups(cells) for cell in group}
        self._done: dict[str, Attempt] = {}

    def __call__(self, cell: Cell) -> Attempt:
        """Run a cell's group when its first cell is asked for; one that is busy is alone later."""
        if cell.key in self._group:
            self._run(self._group[cell.key])
        return self._done.pop(cell.key, None) or self.solo(cell)

    def _run(self, group: Sequence[Cell]) -> None:
        setting = self.solo.prepare(group[0])

        def job(cell: Cell) -> Callable[[Seat], Attempt]:
            return lambda seat: attempt(cell, replace(setting, seat=seat))

        results = Circle(len(group)).run([job(cell) for cell in group])
        for cell, result in zip(group, results, strict=True):
            del self._group[cell.key]
            if isinstance(result, BaseException):
                raise result
            self._done[cell.key] = result


def work_off(cells: Sequence[Cell], run: Callable[[Cell], Attempt]) -> Outcome:
    """Run all cells; those that another run holds are asked for again when the others are done."""
    outcome, queue, held, told = Outcome(), deque(cells), 0, False
    while queue:
        cell = queue.popleft()
        result = run(cell)
        if result.kind == "busy":
            queue.append(cell)
            held += 1
            if held == len(queue):
                if not told:
                    log.info("waiting for %d cells that another run is training", len(queue))
                held, told = 0, True
                time.sleep(WAIT_SECONDS)
            continue
        held = 0
        note(outcome, cell, result, len(cells))
    return outcome


def note(outcome: Outcome, cell: Cell, result: Attempt, total: int) -> None:
    """Add a result to the outcome and say it."""
    if result.kind == "skipped":
        outcome.skipped.append(cell)
        return
    number = len(outcome.trained) + len(outcome.failed) + len(outcome.skipped) + 1
    if result.kind == "failed":
        outcome.failed.append((cell, result.message))
        log.error("[%d/%d] %s failed: %s", number, total, cell.label, result.message)
    else:
        outcome.trained.append(cell)
        log.info("[%d/%d] %s: %s", number, total, cell.label, result.message)


def attempt(cell: Cell, setting: Setting) -> Attempt:
    """Run one cell under its lock, unless it is done; a failure is noted in its folder."""
    folder = records.cell_folder(setting.results, cell)
    if records.is_done(setting.results, cell, since=setting.since):
        return Attempt("skipped")
    try:
        with journal.locked(folder):
            # somebody may have finished it between the two lines above
            if records.is_done(setting.results, cell, since=setting.since):
                return Attempt("skipped")
            return run_locked(cell, setting, folder)
    except journal.Busy:
        return Attempt("busy")
    except OSError as error:  # of the folder itself: others may be sound
        return no_folder(folder, error)


def no_folder(folder: Path, error: OSError) -> Attempt:
    """Fail a cell whose folder cannot be made, locked or cleaned up, and note it if possible."""
    reason = error.strerror or str(error)
    message = f"{folder} cannot be used ({reason}); remove what is in its way and run again"
    journal.note_failure(folder, message)
    return Attempt("failed", message)


def run_locked(
    cell: Cell,
    setting: Setting,
    folder: Path,
    survives: tuple[type[Exception], ...] = (Exception,),
) -> Attempt:
    """Run a cell whose lock is held; an error that the run does not survive is raised as well."""
    began = time.time()
    records.clean_up(folder)
    before = records.read_done(setting.results, cell)
    log.info("%s", cell.label)
    try:
        with journal.Heart(folder, key=cell.key) as heart:
            record = CellRun(cell, setting, heart).execute()
    except Exception as error:
        message = explain(error)
        journal.note_failure(folder, message, traceback.format_exc(), since=began)
        if not isinstance(error, survives):
            raise
        return Attempt("failed", message)
    journal.forget_failure(folder)
    return Attempt("trained", _summary(record, before, setting, cell))


def explain(error: Exception) -> str:
    """Turn an error of a cell into a sentence; out of memory comes with what to turn."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, torch.OutOfMemoryError):
        return (
            f"the device is out of memory ({str(error).splitlines()[0]}); lower train.batch_size, "
            "or give one cell several devices (--nproc-per-node)"
        )
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return f"the machine is out of memory ({text}); lower --jobs, --workers or train.view_bank"
    if isinstance(error, OSError) and error.strerror:
        return f"{text}; what was saved before is kept: run again to go on from there"
    return text


def _summary(record: dict[str, Any], before: Any, setting: Setting, cell: Cell) -> str:
    scores = ", ".join(
        f"{name} {100 * s['all']:.1f}"
        for name, s in record["sets"].items()
        if s["role"] != "unseen" and "/" not in name
    )
    text = f"{scores} ({record['timing']['wall_seconds']:.0f} s)"
    if isinstance(before, dict):
        now = records.read_done(setting.results, cell)
        same = isinstance(now, dict) and records.same_numbers(before, now)
        text += ", the same numbers as before" if same else ", NOT the numbers of the record before"
    return text
