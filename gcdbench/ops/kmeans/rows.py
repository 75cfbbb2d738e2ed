"""Rows of features that need not fit into memory: half precision, perhaps mapped from a file.

A block of them becomes float32 when it is used. Features that take less than ``MOST`` bytes as
float32 are converted at once, which is faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

MOST = 2**30  # bytes of features that are converted as a whole
STEP = 2**14  # rows converted at a time where all of them are looked at
HALF = (torch.float16, torch.bfloat16)


class Rows:
    """Rows ``(n, d)`` that are read in parts, each as float32 on a device.

    They may be a choice, by ``index``, of those that are stored.
    """

    ndim = 2

    def __init__(
        self,
        stored: Tensor,
        *,
        device: torch.device | str | None = None,
        normalise: bool = False,
        index: Tensor | None = None,
    ) -> None:
        self.stored = stored
        self.device = stored.device if device is None else torch.device(device)
        self.normalise = normalise
        self.index = index

    def __len__(self) -> int:
        return len(self.stored if self.index is None else self.index)

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, Tensor):
            index = index.to(self.stored.device)
        part = self.stored[index if self.index is None else self.index[index]]
        part = part.to(self.device).float()
        return normalize(part, dim=-1) if self.normalise else part

    def choose(self, rows: Tensor) -> Rows:
        """Return some of the rows, without reading them."""
        rows = rows.to(self.stored.device)
        index = rows if self.index is None else self.index[rows]
        return Rows(self.stored, device=self.device, normalise=self.normalise, index=index)

    def split(self, number: int) -> Iterator[Tensor]:
        """Yield all rows, so many at a time."""
        return (self[start : start + number] for start in range(0, len(self), number))

    def float(self) -> Tensor:
        """Return all rows at once."""
        return self[:]

    @property
    def shape(self) -> torch.Size:
        """Rows and features."""
        return torch.Size((len(self), self.stored.shape[1]))

    def numel(self) -> int:
        """Return how many numbers there are."""
        return self.shape.numel()

    def new_empty(self, *shape: int) -> Tensor:
        """Return an uninitialised float32 tensor on the device."""
        return torch.empty(shape, device=self.device)


def as_rows(
    x: Tensor | Rows, *, device: torch.device | str | None = None, normalise: bool = False
) -> Tensor | Rows:
    """Return the rows as float32 on the device, or in parts if they are many in half precision."""
    if isinstance(x, Rows):
        found = Rows(
            x.stored,
            device=x.device if device is None else device,
            normalise=normalise or x.normalise,
            index=x.index,
        )
        return found if 4 * x.numel() > MOST else found[:]
    if x.dtype in HALF and 4 * x.numel() > MOST:
        return Rows(x, device=device, normalise=normalise)
    rows = x.to(device=device).float()
    return normalize(rows, dim=1) if normalise else rows


def parts(x: Tensor | Rows) -> Iterator[Tensor]:
    """Yield all rows as float32, a few at a time if they are read in parts."""
    if isinstance(x, Tensor):
        yield x
        return
    for start in range(0, len(x), STEP):
        yield x[start : start + STEP]
