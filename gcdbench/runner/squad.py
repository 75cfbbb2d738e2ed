"""Runs every cell by several processes: those that it starts itself, or those of torchrun.

An error that all processes meet alike fails the cell and nothing else. One that a single process
meets (out of memory, killed) ends all of them, since the others would wait for it forever.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from gcdbench import records, registry
from gcdbench.errors import UserError
from gcdbench.plan import Cell
from gcdbench.runner import journal
from gcdbench.runner.cell import CellRun, Setting
from gcdbench.runner.distributed import Together, check_devices, own_device
from gcdbench.runner.local import Attempt, Outcome, explain, no_folder, run_locked, work_off
from gcdbench.runner.pool import (
    CHANGED,
    POLL_SECONDS,
    Post,
    cause_of_death,
    deaf,
    plugins,
    posts,
    threads,
)
from gcdbench.runner.stop import Interrupted, Stop
from gcdbench.trainer import Diverged

ALIKE = (Diverged, UserError)  # what every process meets in the same step
GRACE_SECONDS = 10.0  # for the others to notice that one has died
INTERRUPTED = 130
log = logging.getLogger(__name__)


class Squad:
    """One process of several that run a cell together."""

    def __init__(self, setting: Setting, team: Together) -> None:
        self.setting, self.team = setting, team

    def __call__(self, cell: Cell) -> Attempt:
        """Run a cell if the leading process, which holds its lock, says so."""
        self.team.check_same(cell.key, "cell (code, data or weights differ)")
        if self.team.tell(self.setting.stop.asked):
            raise Interrupted
        with contextlib.ExitStack() as stack:
            verdict = self.team.tell(self._judge(stack, cell) if self.team.leads else None)
            if verdict is not None:
                return verdict
            folder = records.cell_folder(self.setting.results, cell)
            if self.team.leads:
                return run_locked(cell, self.setting, folder, survives=ALIKE)
            return self._assist(cell, folder)

    def _judge(self, stack: contextlib.ExitStack, cell: Cell) -> Attempt | None:
        setting = self.setting
        try:
            stack.enter_context(journal.locked(records.cell_folder(setting.results, cell)))
        except journal.Busy:
            return Attempt("busy")
        except OSError as error:
            return no_folder(records.cell_folder(setting.results, cell), error)
        done = records.is_done(setting.results, cell, since=setting.since)
        return Attempt("skipped") if done else None

    def _assist(self, cell: Cell, folder: Path) -> Attempt:
        began = time.time()
        try:
            CellRun(cell, self.setting, journal.Mute(folder)).execute()
        except ALIKE as error:
            return Attempt("failed", explain(error))
        except Exception as error:
            message = f"process {self.team.rank} of {self.team.size}: {explain(error)}"
            journal.note_failure(folder, message, traceback.format_exc(), since=began)
            raise
        return Attempt("trained")


def run_as_member(cells: Sequence[Cell], results: Path, device: str, **options: Any) -> Outcome:
    """Run cells as one of the processes that torchrun has started."""
    own, stop = own_device(device), Stop(patient=True)
    team = Together(own)
    if not team.leads:
        logging.getLogger().setLevel(logging.WARNING)
    squad = Squad(Setting(results, own, team=team, stop=stop, **options), team)
    try:
        with stop:
            return work_off(cells, squad)
    finally:
        team.leave()


class Launcher:
    """Starts the processes of one cell after the other and sees to it that all of them end."""

    def __init__(
        self, results: Path, device: str, processes: int, stop: Stop, options: dict[str, Any]
    ) -> None:
        check_devices(device, processes)
        self.results, self.device, self.options, self.stop = results, device, options, stop
        self.posts = posts(device, processes)

    def __call__(self, cell: Cell) -> Attempt:
        """Run a cell, unless it is done; a process that dies fails it."""
        self.stop.check()
        if records.is_done(self.results, cell, since=self.options.get("since", 0.0)):
            return Attempt("skipped")
        began = time.time()
        answer, codes = self._run(cell)
        if self.stop.asked or INTERRUPTED in codes:
            raise Interrupted
        if answer is not None:
            return answer
        return self._failed(records.cell_folder(self.results, cell), codes, began)

    def _run(self, cell: Cell) -> tuple[Attempt | None, list[int]]:
        """Return what the leading process has said and how all of them have ended."""
        here, there = multiprocessing.Pipe(duplex=False)
        team: list[SpawnProcess] = []
        with here, tempfile.TemporaryDirectory(prefix="gcdbench-") as folder:
            try:
                with there:
                    for post in self.posts:
                        team.append(self._start(post, f"file://{folder}/meeting", there, cell))
                codes = self._watch(team)
            finally:
                for process in team:
                    process.kill()
                    process.join()
            with contextlib.suppress(EOFError):
                return here.recv(), codes
            return None, codes

    def _start(self, post: Post, meeting: str, there: Connection, cell: Cell) -> SpawnProcess:
        member = Member(post, len(self.posts), meeting, cell, cell.key, plugins())
        arguments = (member, there, self.results, self.device, self.options)
        process = multiprocessing.get_context("spawn").Process(target=_serve, args=arguments)
        with threads(post.threads), deaf():
            process.start()
        return process

    def _watch(self, team: list[SpawnProcess]) -> list[int]:
        """Wait for the end of all processes; those that outlive a dead one are ended as well."""
        told, deadline, codes = False, float("inf"), [0] * len(team)
        while living := [process for process in team if process.is_alive()]:
            wait([process.sentinel for process in living], timeout=POLL_SECONDS)
            codes = [process.exitcode or 0 for process in team]
            if any(codes):
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            if time.monotonic() > deadline:
                break
            if self.stop.asked and not told:
                told = True
                for process in living:
                    process.terminate()
        return codes

    def _failed(self, folder: Path, codes: list[int], began: float) -> Attempt:
        """Note why a team has ended: what killed one of it, or what one of it has noted."""
        rank = codes.index(min(codes) or max(codes))
        death = f"process {rank} of {len(codes)}: {cause_of_death(codes[rank])}"
        journal.note_failure(folder, death, since=0.0 if codes[rank] < 0 else began)
        noted = journal.read(folder, journal.FAILURE)
        return Attempt("failed", death if noted is None else noted["message"])


def launch(
    cells: Sequence[Cell],
    results: Path,
    device: str,
    processes: int,
    *,
    stop: Stop | None = None,
    **options: Any,
) -> Outcome:
    """Run all cells without a record, each by several processes of this machine."""
    with stop or Stop() as stop:
        return work_off(cells, Launcher(results, device, processes, stop, options))


@dataclass(frozen=True)
class Member:
    """What a process must know to join the others."""

    post: Post
    size: int  # of the team
    meeting: str
    cell: Cell
    key: str
    plugins: list[Path]

    def join(self, device: str) -> Together:
        """Become one of the team, as if torchrun had started this process."""
        leads = self.post.number == 0
        level = logging.INFO if leads else logging.WARNING
        logging.basicConfig(level=level, format="%(message)s", stream=sys.stderr, force=True)
        rank = str(self.post.number)
        os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=str(self.size))
        torch.set_num_threads(self.post.threads)
        for path in self.plugins:
            registry.add_plugin(path)
        return Together(own_device(device), self.meeting)


def _serve(
    member: Member, parent: Connection, results: Path, device: str, options: dict[str, Any]
) -> None:
    """Run a cell as one of several processes; the leading one tells the parent how it ended."""
    team = member.join(device)
    try:
        with Stop(parent=os.getppid()) as stop:
            squad = Squad(Setting(results, team.device, team=team, stop=stop, **options), team)
            same = member.cell.key == member.key
            answer = squad(member.cell) if same else Attempt("failed", CHANGED)
        if team.leads:
            parent.send(answer)
    except Interrupted:
        sys.exit(INTERRUPTED)
    except Exception as error:  # its traceback is in the cell's folder
        log.warning("process %d of %d: %s", team.rank, team.size, explain(error))
        sys.exit(1)
    finally:
        team.leave()
