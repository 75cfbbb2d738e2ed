"""One cell on several devices, with the numbers of one.

Every process loads and encodes a part of each batch; what it has made of it is gathered, and heads
and losses see the whole batch in every process. So contrastive terms, optimal transport and
clustering of a batch are those of a single process, whatever the method, and so is the gradient:
that of the gathered rows is scaled by the number of processes before all gradients are averaged,
which leaves the sum for what was computed in parts and the mean of equals for the rest.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gcdbench.data.images import Unreadable
from gcdbench.data.loader import Failure, Loader, substitutes
from gcdbench.errors import UserError
from gcdbench.method import Batch
from gcdbench.nn.backbone import Backbone

STOP_EVERY = 10  # steps between two looks at whether the run is to stop
TIMEOUT = timedelta(minutes=30)  # the others wait while the leading process scores or clusters
log = logging.getLogger(__name__)
T = TypeVar("T")


def is_member() -> bool:
    """Tell whether torchrun has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def check_devices(name: str, processes: int) -> None:
    """Refuse a device by its number, and more processes than this machine has GPUs."""
    if name == "cpu" or not torch.cuda.is_available():
        return
    if name not in ("auto", "cuda") or processes > torch.cuda.device_count():
        raise UserError(
            f"{processes} processes for one cell on --device {name}: each takes a GPU of its own, "
            f"and there are {torch.cuda.device_count()}; use --device auto and as many processes"
        )


def own_device(name: str) -> torch.device:
    """Return the device of this process: GPUs by local rank, unless the CPU is wanted."""
    number = int(os.environ.get("LOCAL_RANK", "0"))
    check_devices(name, number + 1)
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(number)  # the one that collectives use
    return torch.device("cuda", number)


class Together:
    """The processes that run a cell together, seen from one of them.

    Who they are is told by the variables that torchrun sets; they meet at ``meeting``, a URL of
    torch.distributed.
    """

    def __init__(self, device: torch.device, meeting: str = "env://") -> None:
        self.device = device
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.leads = self.rank == 0
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            init_method=meeting,
            rank=self.rank,
            world_size=self.size,
            timeout=TIMEOUT,
        )
        self._count()

    def _count(self) -> None:
        """Refuse to train with fewer or more processes than were asked for."""
        present = torch.ones(1, device=self.device)
        dist.all_reduce(present)
        if int(present) != self.size or dist.get_world_size() != self.size:
            raise RuntimeError(f"{int(present)} processes have met instead of {self.size}")

    def leave(self) -> None:
        """End the meeting."""
        dist.destroy_process_group()

    def tell(self, value: T | None = None) -> T:
        """Return what the leading process says."""
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]  # type: ignore[return-value]

    def check_same(self, value: Any, what: str) -> None:
        """Refuse to go on if the processes do not see the same."""
        seen: list[Any] = [None] * self.size
        dist.all_gather_object(seen, value)
        if any(other != seen[0] for other in seen):
            raise UserError(f"the processes of this run do not see the same {what}: {seen}")

    def follow(self, decision: bool, step: int) -> bool:
        """Return the leading process's decision, which is asked for every few steps."""
        return bool(self.tell(decision)) if step % STOP_EVERY == 0 else False

    def agree(self, tensors: Iterable[Tensor]) -> None:
        """Give the tensors the values that they have in the leading process."""
        for tensor in tensors:
            sent = tensor.detach().to(self.device).contiguous()
            plain = sent.view(torch.uint8) if sent.dtype == torch.bool else sent
            dist.broadcast(plain, src=0)
            with torch.no_grad():
                tensor.copy_(sent)

    def average(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give the gradients their mean over the processes, in one exchange."""
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
        """Return all rows from everybody's share of them."""
        return _Gather.apply(part.contiguous(), self.rank, self.size)[:number]

    def share(self, loader: Loader, device: torch.device) -> SharedLoader:
        """Let each process load a part of every batch."""
        return SharedLoader(loader, self, device)

    def split(self, backbone: Backbone) -> None:
        """Let each process encode a part of the rows that the backbone is given."""
        backbone.crew = self


def share_of(number: int, rank: int, size: int) -> Tensor:
    """Return the rows of a process, as many as any other's: the last row repeats.

    >>> [share_of(5, rank, 2).tolist() for rank in range(2)]
    [[0, 1, 2], [3, 4, 4]]
    """
    share = -(-number // size)
    return torch.arange(rank * share, (rank + 1) * share).clamp(max=number - 1)


class _Gather(torch.autograd.Function):
    """Rows of all processes; backward, this process's rows with the gradients of all losses."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, rank: int, size: int) -> Tensor:
        ctx.place, ctx.size = slice(rank * len(part), (rank + 1) * len(part)), size
        whole = part.new_empty(size * len(part), *part.shape[1:])
        dist.all_gather(list(whole.chunk(size)), part)
        return whole

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        # every process computes the whole loss, so its gradient is the same in all of them
        return grads[0][ctx.place] * ctx.size, None, None


class OnlyHere(RuntimeError):
    """An error that one process meets: the others would wait for it."""


def _own(
    answers: Iterator[tuple[Tensor, list[Failure]]],
) -> Iterator[tuple[Tensor, list[Failure]]]:
    try:
        yield from answers
    except Unreadable as error:  # the images are in this process's part of the batch
        raise OnlyHere(str(error)) from error


class SharedLoader:
    """A loader of which every process loads a part of each batch; all get the whole batch."""

    def __init__(self, loader: Loader, team: Together, device: torch.device) -> None:
        self.loader, self.team, self.device = loader, team, device
        self.steps_per_epoch = loader.steps_per_epoch

    def epoch(self, epoch: int, weights: Tensor) -> Iterator[Batch]:
        """Yield the batches of the plain loader."""
        loader, team = self.loader, self.team
        index, draws = loader.draws(epoch, weights)
        mine = team.rows(loader.batch_size)
        requests = [
            (loader.pool[i[mine].numpy()], u[:, mine].numpy())
            for i, u in zip(index, draws, strict=True)
        ]
        for i, (part, failures) in zip(index, _own(loader.answer(requests)), strict=True):
            views = part.unflatten(0, (loader.num_views, -1)).transpose(0, 1).to(self.device)
            unreadable = torch.zeros(len(mine), dtype=torch.uint8)
            unreadable[[position for position, *_ in failures]] = 1
            views = team.gather(views, loader.batch_size).transpose(0, 1)
            bad = team.gather(unreadable.to(self.device), loader.batch_size).nonzero().flatten()
            rows = substitutes(len(i), bad.tolist())
            yield Batch(views[:, rows.to(self.device)], loader.labels[i[rows]], i[rows])
