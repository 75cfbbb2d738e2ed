"""A batch: the views of one step's images, with their visible labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.nn.tokens import State, pixels_on, size_of, stack
from gcdbench.ops.labels import UNLABELLED


@dataclass(frozen=True)
class HostCopy:
    """Labels and places of a batch on the CPU, and the tensors elsewhere that equal them."""

    labels: Tensor
    index: Tensor
    copies: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Batch:
    """Images of one step: V views of B images, view-major wherever they are stacked.

    Which rows are labelled and how many decides shapes, and shapes must be known to the CPU. Asking
    a GPU for them makes the CPU wait for all work so far, so a batch keeps a copy of its labels and
    places where it came from: ``order``, ``labelled_rows`` and ``unlabelled_rows`` are free.
    """

    # (V, B, 3, H, W) in [0, 1]; V*B precomputed views; or V entries of B images, if sizes differ
    views: State | tuple[State, ...]
    labels: Tensor  # (B,), UNLABELLED where hidden
    index: Tensor  # (B,), position in the training pool
    targets: Tensor | None = None  # (B, K) soft labels of labelled rows that were mixed
    host: HostCopy | None = None  # kept by ``to``

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def labelled(self) -> Tensor:
        """Mask (B,) of the rows whose label is visible."""
        return self.labels != UNLABELLED

    @classmethod
    def unlabelled(cls, images: State) -> Batch:
        """Return a batch of one view of images of which nothing is known but their pixels."""
        views = images[None] if isinstance(images, Tensor) else images
        device = (images if isinstance(images, Tensor) else images.x).device
        nothing = torch.full((len(images),), UNLABELLED, device=device)
        return cls(views, nothing, nothing)

    @property
    def images(self) -> State | tuple[State, ...]:
        """All views stacked, V*B rows: first all first views, then all second ones.

        Views of several sizes are a tuple, which the backbone takes as well.
        """
        return self.views.flatten(0, 1) if isinstance(self.views, Tensor) else self.views

    @property
    def num_views(self) -> int:
        """Number of views of every image."""
        if isinstance(self.views, tuple):
            return len(self.views)
        return len(self.images) // max(len(self), 1)

    @property
    def pixels(self) -> tuple[Tensor, ...]:
        """The images (B, 3, h, w) of each view, which must not be precomputed."""
        assert isinstance(self.views, (Tensor, tuple))
        return tuple(view for view in self.views if isinstance(view, Tensor))

    def only(self, *numbers: int) -> Batch:
        """Return the batch with some of its views, by their places in the method's ``views``."""
        if isinstance(self.views, Tensor):
            return replace(self, views=self.views[list(numbers)])
        if isinstance(self.views, tuple):
            chosen = tuple(self.views[number] for number in numbers)
            return replace(self, views=as_views(chosen))
        rows = torch.arange(len(self.views)).view(self.num_views, -1)[list(numbers)].flatten()
        return replace(self, views=self.views[self.here(rows)])

    @cached_property
    def on_cpu(self) -> tuple[Tensor, Tensor]:
        """Labels and places (B,) on the CPU."""
        host = self.host
        if host is not None and host.copies[0] is self.labels and host.copies[1] is self.index:
            return host.labels, host.index
        return self.labels.cpu(), self.index.cpu()

    @cached_property
    def cpu_order(self) -> Tensor:
        """Rows (B,) by their place in the pool, on the CPU."""
        return self.on_cpu[1].argsort(stable=True)

    @property
    def cpu_labelled(self) -> Tensor:
        """Mask (B,) of the rows whose label is visible, on the CPU."""
        return self.on_cpu[0] != UNLABELLED

    def here(self, rows: Tensor) -> Tensor:
        """Move what was computed on the CPU to where the batch is, without waiting for it."""
        return rows.to(self.labels.device, non_blocking=True)

    @cached_property
    def order(self) -> Tensor:
        """Rows (B,) by their place in the pool: draws along it ignore the order of the batch."""
        return self.here(self.cpu_order)

    @cached_property
    def labelled_rows(self) -> Tensor:
        """Rows whose label is visible; ``x[labelled_rows]`` equals ``x[labelled]``."""
        return self.here(self.cpu_labelled.nonzero().squeeze(1))

    @cached_property
    def unlabelled_rows(self) -> Tensor:
        """Rows whose label is hidden."""
        return self.here((~self.cpu_labelled).nonzero().squeeze(1))

    def in_views(self, rows: Tensor, views: int | None = None) -> Tensor:
        """Return the rows of the stack of all views that belong to some rows of the batch."""
        number = self.num_views if views is None else views
        later = (rows + view * len(self) for view in range(1, number))
        return torch.cat([rows, *later])

    def per_view(self, rows: Tensor) -> Tensor:
        """Repeat a per-image tensor (B, ...) for every view: (V*B, ...)."""
        return rows.repeat(self.num_views, *[1] * (rows.ndim - 1))

    def blended(
        self, views: Sequence[Tensor], partners: Tensor, share: Tensor, num_classes: int
    ) -> Batch:
        """Return the batch of mixed images: ``share`` (B,) of each row, the rest of its partner.

        Labelled rows get soft targets; label and index are those of the image with the larger
        share. Partners and shares on the CPU need not be waited for.
        """
        own, others = share.cpu() >= 0.5, partners.cpu()
        labels, index = (torch.where(own, ids, ids[others]) for ids in self.on_cpu)
        share, partners = self.here(share), self.here(partners)
        one_hot = F.one_hot(self.labels.clamp(min=0), num_classes).to(share.dtype)
        targets = one_hot if self.targets is None else self.targets
        mixed = replace(
            self,
            views=as_views(views),
            labels=self.here(labels),
            index=self.here(index),
            targets=share[:, None] * targets + (1 - share)[:, None] * targets[partners],
        )
        return replace(mixed, host=HostCopy(labels, index, (mixed.labels, mixed.index)))

    def to(self, device: torch.device) -> Batch:
        """Move to a device, turning stored bytes into numbers between 0 and 1."""
        if isinstance(self.views, tuple):
            views: State | tuple[State, ...] = tuple(_moved(view, device) for view in self.views)
        else:
            views = _moved(self.views, device)
        labels, index = (ids.to(device, non_blocking=True) for ids in (self.labels, self.index))
        host = HostCopy(*self.on_cpu, (labels, index))
        return replace(self, views=views, labels=labels, index=index, host=host)


def as_views(views: Sequence[State]) -> State | tuple[State, ...]:
    """Return views of B images each as a batch holds them: stacked if they have one size."""
    if len({size_of(view) for view in views}) > 1:
        return tuple(views)
    stacked = stack(views)
    return stacked.unflatten(0, (len(views), -1)) if isinstance(stacked, Tensor) else stacked


def _moved(view: State, device: torch.device) -> State:
    return pixels_on(device, view) if isinstance(view, Tensor) else view.to(device)
