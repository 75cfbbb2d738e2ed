"""Choose the device of a process."""

from __future__ import annotations

import torch

from gcdbench.errors import UserError


def count_gpus() -> int:
    """Return the number of CUDA devices."""
    return torch.cuda.device_count()


def choose_device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is CUDA where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # fails on devices that hold no values, such as meta
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {name}: not available on this machine") from error
    return device


def check_devices(name: str, processes: int) -> None:
    """Raise a UserError for a numbered device, or for more processes than there are GPUs."""
    if name == "cpu" or not torch.cuda.is_available():
        return
    if name not in ("auto", "cuda") or processes > torch.cuda.device_count():
        raise UserError(
            f"{processes} processes for one cell on --device {name}: each takes a GPU of its own, "
            f"and there are {torch.cuda.device_count()}; use --device auto and as many processes"
        )


def device_of_rank(name: str, local_rank: int) -> torch.device:
    """Return the device of a process of a group: GPUs by local rank, unless the CPU is chosen."""
    check_devices(name, local_rank + 1)
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)  # the one that collectives use
    return torch.device("cuda", local_rank)
