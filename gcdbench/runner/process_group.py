"""Train one cell on several devices, with the same numbers as on one.

Every process loads and encodes a part of each batch; the features, but not the images, are
gathered, and heads and losses see the whole batch in every process. Contrastive terms, optimal
transport and clustering of a batch are therefore those of a single process for any method, and so
is the gradient: that of the gathered rows is scaled by the number of processes before all gradients
are averaged. The result is the sum for what was computed in parts, and the mean of equal values for
the rest.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gcdbench.errors import UserError

TIMEOUT = timedelta(minutes=30)  # the others wait while the main process scores or clusters
T = TypeVar("T")


def is_torchrun_worker() -> bool:
    """Return whether torchrun has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


class TorchProcessGroup:
    """The processes that run a cell, over torch.distributed.

    Rank and size come from the variables that torchrun sets; ``init_method`` is a URL of
    torch.distributed at which the processes find each other.
    """

    def __init__(self, device: torch.device, init_method: str = "env://") -> None:
        self.device = device
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.is_main = self.rank == 0
        dist.init_process_group(
            # what only the CPUs exchange must not wait for the GPUs
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            init_method=init_method,
            rank=self.rank,
            world_size=self.size,
            timeout=TIMEOUT,
        )
        self._count()

    def _count(self) -> None:
        """Raise if fewer or more processes than requested have joined."""
        present = torch.ones(1, device=self.device)
        dist.all_reduce(present)
        if int(present) != self.size or dist.get_world_size() != self.size:
            raise RuntimeError(f"{int(present)} processes have joined instead of {self.size}")

    def close(self) -> None:
        """End the group."""
        dist.destroy_process_group()

    def broadcast_object(self, value: T | None = None) -> T:
        """Return the main process's value."""
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]  # type: ignore[return-value]

    def check_same(self, value: Any, what: str) -> None:
        """Raise if the processes do not pass the same value."""
        seen = self.gather_objects(value)
        if any(other != seen[0] for other in seen):
            raise UserError(f"the processes of this run do not see the same {what}: {seen}")

    def gather_objects(self, value: T) -> list[T]:
        """Return the values of all processes, in the order of their ranks."""
        seen: list[Any] = [None] * self.size
        dist.all_gather_object(seen, value)
        return seen

    def any(self, flag: bool) -> bool:
        """Return whether a flag is set in any process; no device waits for the answer."""
        found = torch.tensor([flag], dtype=torch.uint8)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return bool(found)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Let every process encode by itself in the context: each has other images there."""
        size, self.size = self.size, 1
        try:
            yield
        finally:
            self.size = size

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Set the tensors to their values in the main process."""
        for tensor in tensors:
            sent = tensor.detach().to(self.device).contiguous()
            plain = sent.view(torch.uint8) if sent.dtype == torch.bool else sent
            dist.broadcast(plain, src=0)
            with torch.no_grad():
                tensor.copy_(sent)

    def all_reduce_mean(self, parameters: Iterable[nn.Parameter]) -> None:
        """Set the gradients to their mean over the processes, in one collective."""
        grads = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat)
        flat /= self.size
        for grad, mean in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            grad.copy_(mean.view_as(grad))

    def rows(self, number: int) -> Tensor:
        """Return this process's share of some rows."""
        return share_of(number, self.rank, self.size)

    def gather(self, part: Tensor, number: int) -> Tensor:
        """Return the rows of all processes' shares."""
        return _Gather.apply(part.contiguous(), self.rank, self.size)[:number]


def share_of(number: int, rank: int, size: int) -> Tensor:
    """Return the rows of a process; all shares have the same size, the last row may repeat.

    >>> [share_of(5, rank, 2).tolist() for rank in range(2)]
    [[0, 1, 2], [3, 4, 4]]
    """
    share = -(-number // size)
    return torch.arange(rank * share, (rank + 1) * share).clamp(max=number - 1)


class _Gather(torch.autograd.Function):
    """Gather rows of all processes; backward returns the gradients of this process's rows."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, rank: int, size: int) -> Tensor:
        ctx.place, ctx.size = slice(rank * len(part), (rank + 1) * len(part)), size
        whole = part.new_empty(size * len(part), *part.shape[1:])
        dist.all_gather(list(whole.chunk(size)), part)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        # every process computes the whole loss, so the gradient is the same in all of them
        return grads[0][ctx.place] * ctx.size, None, None
