"""Batches for several processes that train one model."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gcdbench.nn.parallel import ProcessGroup
from gcdbench.nn.tokens import Share
from gcdbench.training.loader import Failure, Loader, Request, Stacked, substitutes, take
from gcdbench.training.method import Batch


class ShardedLoader:
    """A loader for a process group: each process loads the images that it encodes.

    Only if views are mixed (``whole``), have several sizes or cannot be read, all images go to all
    processes.
    """

    def __init__(
        self, loader: Loader, group: ProcessGroup, device: torch.device, *, whole: bool
    ) -> None:
        self.loader, self.group, self.device, self.whole = loader, group, device, whole
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
        for i, (part, failures) in zip(index, loader.views(requests), strict=True):
            if group.any(bool(failures)):
                rows = substitutes(len(i), self._unreadable(failures))
                views = take(self._gather(part), rows.to(self.device))
                yield Batch(views, loader.labels[i[rows]], i[rows])
            elif self.whole or not isinstance(part, Tensor):
                yield Batch(self._gather(part), loader.labels[i], i)
            else:
                yield Batch(self._shared(part), loader.labels[i], i)

    def _shared(self, part: Tensor) -> Share:
        """Return views (V, b, 3, H, W) of this process's images as its rows of the whole batch."""
        views, number = part.shape[:2]
        image = torch.arange(self.loader.batch_size)
        first = image // number * views * number + image % number
        places = first + torch.arange(views)[:, None] * number
        return Share(part.flatten(0, 1), places.flatten(), lambda: self._stacked(part))

    def _stacked(self, part: Tensor) -> Tensor:
        found = self._gather(part)
        assert isinstance(found, Tensor)
        return found.flatten(0, 1)

    def _unreadable(self, failures: list[Failure]) -> list[int]:
        """Return the rows of the batch that no process could read."""
        mine = self.group.rows(self.loader.batch_size)
        found = self.group.gather_objects([int(mine[position]) for position, *_ in failures])
        return sorted({row for rows in found for row in rows})

    def _gather(self, views: Stacked) -> Stacked:
        """Return the views of all processes."""
        size = self.loader.batch_size
        if isinstance(views, Tensor):
            mine = views.transpose(0, 1).to(self.device)
            return self.group.gather(mine, size).transpose(0, 1)
        return tuple(self.group.gather(view.to(self.device), size) for view in views)
