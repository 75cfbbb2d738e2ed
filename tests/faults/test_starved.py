"""No room, no permission, no memory, no finite loss: a clear sentence, and a way to continue."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest
import torch
from helpers.faults import ended, fork
from helpers.toy import Toy

from gcdbench.cli import main as cli
from gcdbench.experiment import heartbeat, records
from gcdbench.runner import cell as cell_module
from gcdbench.runner import checkpoint

pytestmark = pytest.mark.faults


@pytest.fixture
def small_disk(tmp_path):
    """Return a function that mounts a file system of some kilobytes, if that is allowed."""
    mounted = []

    def mount(size: int, *options: str) -> Path:
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        given = ",".join((f"size={size}k", *options))
        command = ["mount", "-t", "tmpfs", "-o", given, "none", str(place)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a file system needs root")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_small_disk_is_full_at_a_checkpoint(made, undisturbed, small_disk):
    cell, place = made.cell(), small_disk(20_000)
    toy = Toy(made.suite, place)
    ballast, folder = place / "ballast", records.cell_folder(place, cell)

    def run() -> None:
        save = checkpoint.save

        def fill(where, step, state) -> None:
            save(where, step, state)
            if step == 4:  # leave less than one more checkpoint needs
                free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
                ballast.write_bytes(b"x" * (free - 100_000))

        checkpoint.save = fill
        ((_, message),) = toy.run([cell]).failed
        (place.parent / "said").write_text(message)

    assert ended(fork(run)) == 0
    message = (place.parent / "said").read_text()
    assert "after step 5 cannot be written" in message
    assert "No space left on device" in message
    assert "checkpoint-00000004.pt is kept; make room and run again" in message
    assert checkpoint.files(folder)[0].name == "checkpoint-00000004.pt"
    ballast.unlink()
    assert undisturbed.met(toy, cell)
    assert records.read_done(place, cell).timing.restarts == 1


@pytest.mark.parametrize("name", ["predictions.npz", "record.json"])
def test_the_disk_is_full_when_the_record_is_written(toy, undisturbed, monkeypatch, name):
    cell, fsync = toy.cell(), os.fsync

    def full(handle: int) -> None:
        if f"/.{name}" in str(Path(f"/proc/self/fd/{handle}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        ((_, message),) = toy.run([cell]).failed
    assert "No space left on device" in message
    assert "run again to resume" in message
    assert not records.is_done(toy.results, cell)
    assert undisturbed.met(toy, cell)


def test_a_read_only_results_folder_is_refused_before_anything_is_trained(made, small_disk, capsys):
    place = small_disk(1000, "ro")
    code = cli.main(Toy(made.suite, place).command("run", "--methods", "simgcd")[3:])
    said = capsys.readouterr().err
    assert code == 2
    assert f"--results {place}: cannot be written to (Read-only file system)" in said


def test_a_file_in_the_place_of_the_results_folder_is_refused(toy, capsys):
    toy.results.write_text("")
    assert cli.main(toy.command("run", "--methods", "simgcd")[3:]) == 2
    assert "cannot be written to" in capsys.readouterr().err


def test_a_loss_that_is_not_finite_fails_its_cell_only(toy, undisturbed, capsys):
    arguments = ["--methods", "simgcd", "gcd", "--datasets", "toy", "--set", "train.lr=1e30"]
    (bad,) = toy.cells("simgcd", datasets=("toy",), train={"lr": 1e30})
    assert cli.main(toy.command("run", *arguments[:2], *arguments[3:])[3:]) == 1
    note = heartbeat.read(records.cell_folder(toy.results, bad), heartbeat.FAILURE)
    assert "the loss is not finite at step" in note["message"]
    assert "a lower train.lr is the usual remedy" in note["message"]
    assert undisturbed.met(toy, toy.cell())


def test_a_device_out_of_memory_names_the_knob(toy, undisturbed, monkeypatch):
    def starve(*rest):
        raise torch.OutOfMemoryError("Tried to allocate 20.00 GiB")

    cell = toy.cell()
    with monkeypatch.context() as patch:
        patch.setattr(cell_module.trainer._Loop, "step", starve)
        ((_, message),) = toy.run([cell]).failed
    assert "Tried to allocate 20.00 GiB" in message
    assert "lower train.batch_size" in message
    assert undisturbed.met(toy, cell)


def test_a_machine_out_of_memory_names_the_knobs(toy, undisturbed, monkeypatch):
    def starve(*rest, **more):
        raise MemoryError

    cell = toy.cell()
    with monkeypatch.context() as patch:
        patch.setattr(cell_module, "evaluate", starve)
        ((_, message),) = toy.run([cell]).failed
    assert "lower --jobs" in message
    assert undisturbed.met(toy, cell)
