"""The faults of the campaign: kills, endings, hangs, disks, damage."""

from __future__ import annotations

import errno
import functools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from faults.campaign import Case, Place
from helpers.faults import die, dies_at_step, dies_while_writing, ended, fork

from gcdbench.core import registry
from gcdbench.experiment import heartbeat, records
from gcdbench.runner import cell as cell_module
from gcdbench.runner import checkpoint, watchdog
from gcdbench.runner import stop as stop_module

PLUGIN = """from __future__ import annotations
import os, sys, time
from gcdbench.plugin import Batch, Clock, Technique
{at_import}

class Ender(Technique):
    def mix(self, batch: Batch, clock: Clock) -> Batch:
        if clock.step == 1:
            {in_step}
        return batch
"""
ENDINGS = (
    *("sys.exit(0)", "sys.exit(130)", "raise SystemExit", "raise GeneratorExit", "os._exit(0)"),
    *("raise KeyboardInterrupt", "raise BaseException('x')", "raise StopIteration", "1 / 0"),
)
SWALLOW = """
            while True:
                try:
                    time.sleep(1)
                except BaseException:
                    pass"""


def fault(group: str, name: str, inject: Callable[[Place], None]) -> Case:
    return Case("fault", group, name, inject)


def killed(arrange: Callable[[], object], place: Place) -> None:
    assert place.run(arrange) == -signal.SIGKILL
    place.check_finished()


def dies_in(module: object, name: str) -> None:
    setattr(module, name, lambda *rest, **more: die())


def write_plugin(place: Place, in_step: str = "pass", at_import: str = "") -> None:
    path = place.folder / "work" / "ender.py"
    path.parent.mkdir()
    path.write_text(PLUGIN.format(in_step=in_step, at_import=at_import))
    registry.add_plugin(path)


def fails_alone(place: Place, in_step: str = "pass", at_import: str = "", **options: float) -> None:
    """Run a cell with a plug-in that misbehaves, and another one after it."""
    write_plugin(place, in_step, at_import)
    bad = place.toy.cell("simgcd+ender")

    def run() -> None:
        outcome = place.toy.run([bad, place.cell], **options)
        assert [cell for cell, _ in outcome.failed] == [bad]
        assert outcome.trained == [place.cell]

    assert place.call(run) == 0
    place.check_finished()


def ends_by_signals(place: Place, code: str, number: int) -> None:
    """Send a hung cell two signals; the second one ends it."""
    write_plugin(place, code)
    bad = place.toy.cell("simgcd+ender")

    def run() -> None:
        heartbeat.BEAT_SECONDS, stop_module.GRACE_SECONDS = 0.1, 1.0
        place.toy.run([bad])

    pid = fork(run)
    folder = records.cell_folder(place.toy.results, bad)
    deadline = time.monotonic() + 60
    while not (heartbeat.read(folder, heartbeat.PROGRESS) or {}).get("step"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for _ in range(2):
        os.kill(pid, number)
        time.sleep(stop_module.TWICE_SECONDS + 0.1)
    assert ended(pid) == 130
    place.check_finished()


def takes_its_process(place: Place) -> None:
    """Let a cell swallow its limit: its process ends, and the failure is noted."""
    write_plugin(place, SWALLOW)
    bad = place.toy.cell("simgcd+ender")

    def run() -> None:
        watchdog.GRACE_SECONDS = 1.0
        place.toy.run([bad], stall_timeout=5.0)

    assert ended(fork(run)) == watchdog.FAILED
    assert heartbeat.read(records.cell_folder(place.toy.results, bad), heartbeat.FAILURE)
    place.check_finished()


def disk_fails(place: Place, name: str, code: int) -> None:
    """Let the disk refuse a file; the cell fails or continues, and the next run finishes it."""

    def arrange() -> None:
        fsync = os.fsync

        def refuse(handle: int) -> None:
            if f"/.{name}" in str(Path(f"/proc/self/fd/{handle}").readlink()):
                raise OSError(code, os.strerror(code))
            fsync(handle)

        os.fsync = refuse

    assert place.run(arrange) == 0
    assert not records.is_done(place.toy.results, place.cell)
    place.check_finished()


def raises(place: Place, target: str, error: BaseException) -> None:
    """Let a part of the run raise an error once."""

    def fail(*rest: object, **more: object) -> None:
        raise error

    def arrange() -> None:
        if target == "step":
            cell_module.trainer._Loop.step = fail
        else:
            setattr(cell_module, target, fail)

    assert place.run(arrange) == 0
    assert (place.cell_folder / heartbeat.FAILURE).exists()
    place.check_finished()


def damaged(place: Place, damage: Callable[[Path], None], *, of: str, finished: bool) -> None:
    """Damage a file of a cell that is done, or was killed in its sixth step."""
    if finished:
        place.check_finished()
    else:
        assert place.run(lambda: dies_at_step(5)) == -signal.SIGKILL
    for path in sorted(place.cell_folder.glob(of)):
        damage(path)
    place.check_finished()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def note(place: Place, name: str, text: str) -> None:
    """Leave a note that is none in the cell's folder."""
    place.cell_folder.mkdir(parents=True)
    (place.cell_folder / name).write_text(text)
    place.check_finished()


def odd_file(place: Place, make: Callable[[Path], object], name: str) -> None:
    place.cell_folder.mkdir(parents=True)
    make(place.cell_folder / name)
    place.check_finished()


def cases() -> Iterator[Case]:
    """Yield all faults."""
    bind = functools.partial
    for step in range(9):
        yield fault("kill", f"in step {step}", bind(killed, bind(dies_at_step, step)))
    for on in (1, 2, 5):
        for half in (True, False):
            arrange = bind(dies_while_writing, "checkpoint", on=on, half=half)
            how = "half written" if half else "not yet in place"
            yield fault("kill", f"in checkpoint {on}, {how}", bind(killed, arrange))
    for name in ("predictions.npz", "record.json"):
        for half in (True, False):
            arrange = bind(dies_while_writing, name, half=half)
            how = "half written" if half else "not yet in place"
            yield fault("kill", f"in {name}, {how}", bind(killed, arrange))
    yield fault("kill", "while it is scored", bind(killed, bind(dies_in, cell_module, "evaluate")))
    yield fault("kill", "before the end", bind(killed, bind(dies_in, checkpoint, "discard")))
    yield fault(
        "kill", "while it is assembled", bind(killed, bind(dies_in, cell_module, "assemble"))
    )
    for code in ENDINGS:
        yield fault("plug-in", f"{code} in a step", bind(fails_alone, in_step=code))
        yield fault("plug-in", f"{code} at import", bind(fails_alone, at_import=code))
    limits = {"cell_timeout": 12.0}, {"stall_timeout": 6.0}
    for code in ("while True: pass", "time.sleep(1000)"):
        for limit in limits:
            name = f"{code}, {next(iter(limit))}"
            yield fault("hang", name, bind(fails_alone, in_step=code, **limit))
        for number in (signal.SIGTERM, signal.SIGINT):
            name = f"{code}, {number.name} twice"
            yield fault("hang", name, bind(ends_by_signals, code=code, number=number))
    yield fault("hang", "swallows every error", takes_its_process)
    for name in ("checkpoint", "predictions.npz", "record.json"):
        for code in (errno.ENOSPC, errno.EIO, errno.EROFS):
            text = f"{name}: {os.strerror(code)}"
            yield fault("disk", text, bind(disk_fails, name=name, code=code))
    errors = MemoryError(), torch.OutOfMemoryError("Tried to allocate"), RuntimeError("bad luck")
    for target in ("step", "evaluate"):
        for error in errors:
            name = f"{type(error).__name__} in {target}"
            yield fault("error", name, bind(raises, target=target, error=error))
    for damage in (flip, halve, Path.unlink):
        for of, finished in (
            ("checkpoint-*", False),
            ("record.json", True),
            ("predictions.npz", True),
        ):
            name = f"{damage.__name__} {of}"
            yield fault("damage", name, bind(damaged, damage=damage, of=of, finished=finished))
    texts = {"junk": "\0junk", "deep": "[" * 100_000, "null": "null", "infinite": json.dumps({
        "host": "h", "pid": 10**30, "born": "1", "updated": 1e999, "phase": "x"})}  # fmt: skip
    for name in (heartbeat.PROGRESS, heartbeat.FAILURE, heartbeat.JOB):
        for what, text in texts.items():
            yield fault("note", f"{name}: {what}", bind(note, name=name, text=text))
    for name in ("checkpoint-abc.pt", "checkpoint-99999999.pt"):
        yield fault("file", f"{name} is a folder", bind(odd_file, make=Path.mkdir, name=name))
        yield fault("file", f"{name} is a pipe", bind(odd_file, make=os.mkfifo, name=name))
