"""The rules of the pretend device itself: what it must refuse, and what it must count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from device.pretend.counts import counting
from device.pretend.machine import one_gpu
from device.pretend.rules import DeviceError
from device.pretend.tensor import CUDA


def _refused() -> dict[str, Callable[[], Any]]:
    def here(*shape: int) -> Tensor:
        return torch.ones(shape, device="cuda")

    rows = torch.tensor([0, 0])
    return {
        "two devices in one operation": lambda: here(3) + torch.ones(3),
        "a CPU tensor indexed by the device": lambda: torch.ones(3)[rows.to(CUDA)],
        "CPU values written to the device": lambda: here(3).index_put_((rows,), torch.ones(2)),
        "numpy of the device": lambda: here(3).numpy(),
        "a CPU generator for the device": lambda: torch.rand(
            3, device="cuda", generator=torch.Generator()
        ),
        "an integer matrix product": lambda: here(2, 2).long() @ here(2, 2).long(),
        "distances in half precision": lambda: torch.cdist(here(2, 2).half(), here(2, 2).half()),
        "two values for one place": lambda: here(3).index_put_(
            (rows.to(CUDA),), torch.tensor([1.0, 2.0]).to(CUDA)
        ),
        "two scattered values for one place": lambda: here(3).scatter_(
            0, rows.to(CUDA), torch.tensor([1.0, 2.0]).to(CUDA)
        ),
        "pinned memory of the device": lambda: here(3).pin_memory(),
    }


def _waits() -> dict[str, tuple[int, Callable[[Tensor], Any]]]:
    cpu = torch.arange(3)
    return {
        "a number read": (1, lambda x: x.sum().item()),
        "a mask as an index": (1, lambda x: x[x > 0]),
        "a copy to the device": (1, lambda x: cpu.to(CUDA)),
        "a copy that need not be waited for": (0, lambda x: cpu.to(CUDA, non_blocking=True)),
        "a copy from the device": (1, lambda x: x.cpu()),
        "rows by number": (0, lambda x: x[x.long()]),
        "a masked sum": (0, lambda x: torch.where(x > 0, x, 0.0).sum()),
    }


def _refusal(attempt: Callable[[], Any]) -> Callable[[Any], None]:
    def case(_: Any) -> None:
        with one_gpu():
            try:
                attempt()
            except DeviceError:
                return
        raise AssertionError("it was not refused")

    return case


def _waiting(number: int, work: Callable[[Tensor], Any]) -> Callable[[Any], None]:
    def case(_: Any) -> None:
        with one_gpu():
            x = torch.ones(3).to("cuda")
            with counting() as counts:
                work(x)
        assert sum(counts.syncs.values()) == number, counts

    return case


def _launches(_: Any) -> None:
    with one_gpu():
        x = torch.ones(4, 4).to("cuda")
        with counting() as counts:
            (x @ x + 1).view(-1).exp_()
    assert counts.launches == 3, counts


def _index_less(_: Any) -> None:
    with one_gpu():
        x = torch.zeros(2, device="cuda")
        assert x.device == torch.device("cuda:0") != torch.device("cuda")
        assert x.to("cuda").device == CUDA
        assert torch.nn.Linear(2, 2).to("cuda").weight.device == CUDA


def rule_cases() -> dict[str, Callable[[Any], None]]:
    """Return the cases of all rules."""
    return {
        **{f"refused: {name}": _refusal(attempt) for name, attempt in _refused().items()},
        **{f"waited for: {name}": _waiting(*what) for name, what in _waits().items()},
        "launches are counted without views": _launches,
        "cuda without a number is the first device": _index_less,
    }
