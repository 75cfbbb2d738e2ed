"""Processes that are forked to die, and the moments at which they do."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import traceback
from collections.abc import Callable
from pathlib import Path

from gcdbench.runner import cell as cell_module


def fork(function: Callable[[], object]) -> int:
    """Run a function in a process of its own and return that process's number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        cell_module.CHECKPOINT_SECONDS = 0.0  # a checkpoint after every step
        function()
        code = 0
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    """Wait for a process and return its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def obey_permissions() -> None:
    """Give up what lets root write to files that it may not write to (Linux)."""
    header = struct.pack("=II", 0x20080522, 0)  # version 3, this process
    nothing = bytes(24)  # no capabilities: effective, permitted, inheritable
    if ctypes.CDLL(None, use_errno=True).capset(header, nothing):
        raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")


def die() -> None:
    """End this process as kill -9 and the system's out-of-memory killer do."""
    os.kill(os.getpid(), signal.SIGKILL)


def dies_at_step(number: int) -> None:
    """Let this process die in the middle of a training step."""
    step = cell_module.trainer._Loop.step

    def fatal(loop, batch, clock) -> None:
        if clock.step == number:
            die()
        step(loop, batch, clock)

    cell_module.trainer._Loop.step = fatal


def dies_while_writing(name: str, *, on: int = 1, half: bool = True) -> None:
    """Let this process die when a file is written for the nth time, with half of it on disk."""
    fsync, seen = os.fsync, []

    def fatal(handle: int) -> None:
        path = str(Path(f"/proc/self/fd/{handle}").readlink())
        if f"/.{name}" in path:
            seen.append(path)
            if len(seen) == on:
                if half:
                    os.ftruncate(handle, os.fstat(handle).st_size // 2)
                die()
        fsync(handle)

    os.fsync = fatal
