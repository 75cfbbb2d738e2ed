"""Memories of features from earlier batches, and copies on their way to the CPU."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def last_of_same(ids: Tensor) -> Tensor:
    """Return for every row (n,) the last one of the same id.

    ``memory[ids] = values`` is undefined on CUDA where an id comes twice; with
    ``values[last_of_same(ids)]`` the last value stays, as on a CPU.

    >>> last_of_same(torch.tensor([7, 8, 7])).tolist()
    [2, 1, 2]
    """
    rows = torch.arange(len(ids), device=ids.device)
    return torch.where(ids[:, None] == ids, rows, -1).amax(1) if len(ids) else rows


class Ring(nn.Module):
    """Ring buffer of the last rows pushed, each with the id of its image.

    Both are buffers, so that a resumed run has them. A new ring holds zeros of no image (id -1):
    fill it before reading it.

    Args:
        size: number of rows that it holds, at least 1.
        dim: width of a row.
    """

    rows: Tensor
    ids: Tensor
    cursor: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"a ring holds at least one row, got size {size}")
        self.register_buffer("rows", torch.zeros(size, dim))
        self.register_buffer("ids", torch.full((size,), -1))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.long))

    def __len__(self) -> int:
        return len(self.ids)

    @torch.no_grad()
    def push(self, rows: Tensor, ids: Tensor) -> None:
        """Replace the oldest rows; of more rows than the size, the last ones are kept."""
        rows, ids = rows[-len(self) :], ids[-len(self) :]
        at = (self.cursor + torch.arange(len(ids), device=self.ids.device)) % len(self)
        self.rows[at], self.ids[at] = rows.to(self.rows), ids.to(self.ids)
        self.cursor.copy_((self.cursor + len(ids)) % len(self))


class ReadBack:
    """A tensor on its way to the CPU: the copy begins at once and is waited for when it is read.

    In between, a GPU continues with its queue. A tensor on the CPU is there already.
    """

    def __init__(self, x: Tensor) -> None:
        self._there, self._event = x.detach(), None
        if x.is_cuda:
            self._there = torch.empty(x.shape, dtype=x.dtype, pin_memory=True)
            self._there.copy_(x.detach(), non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    def read(self) -> Tensor:
        """Return the tensor on the CPU."""
        if self._event is not None:
            self._event.synchronize()
        return self._there
