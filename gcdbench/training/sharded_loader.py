"""A loader for several processes that train one model."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gcdbench.data.images import Unreadable
from gcdbench.nn.parallel import ProcessGroup
from gcdbench.training.loader import (
    Failure,
    Loader,
    Request,
    Stacked,
    substitutes,
    take,
)
from gcdbench.training.method import Batch


class LocalError(RuntimeError):
    """An error in one process only; it must stop the group, because the others wait for it."""


def _own(
    answers: Iterator[tuple[Stacked, list[Failure]]],
) -> Iterator[tuple[Stacked, list[Failure]]]:
    try:
        yield from answers
    except Unreadable as error:  # the images are in this process's part of the batch
        raise LocalError(str(error)) from error


class ShardedLoader:
    """A loader for a process group: each process loads a part of each batch and gets all of it."""

    def __init__(self, loader: Loader, group: ProcessGroup, device: torch.device) -> None:
        self.loader, self.group, self.device = loader, group, device
        self.steps_per_epoch = loader.steps_per_epoch

    def epoch(self, epoch: int, weights: Tensor) -> Iterator[Batch]:
        """Yield the batches of the plain loader."""
        loader, group = self.loader, self.group
        index, draws = loader.draws(epoch, weights)
        mine = group.rows(loader.batch_size)
        requests = [
            Request(loader.pool[i[mine].numpy()], u[:, mine].numpy(), loader.kinds)
            for i, u in zip(index, draws, strict=True)
        ]
        for i, (part, failures) in zip(index, _own(loader.views(requests)), strict=True):
            unreadable = torch.zeros(len(mine), dtype=torch.uint8)
            unreadable[[position for position, *_ in failures]] = 1
            views = self._gather(part)
            bad = group.gather(unreadable.to(self.device), loader.batch_size).nonzero().flatten()
            rows = substitutes(len(i), bad.tolist())
            views = take(views, rows.to(self.device))
            yield Batch(views, loader.labels[i[rows]], i[rows])

    def _gather(self, views: Stacked) -> Stacked:
        """Return the views of all processes."""
        size = self.loader.batch_size
        if isinstance(views, Tensor):
            mine = views.transpose(0, 1).to(self.device)
            return self.group.gather(mine, size).transpose(0, 1)
        return tuple(self.group.gather(view.to(self.device), size) for view in views)
