"""The interface of a process group, as the model and the training loop use it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

T = TypeVar("T")


class ProcessGroup(Protocol):
    """Processes that train one model; each computes a part of the rows of a batch."""

    rank: int
    size: int

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and messages of the group."""

    def rows(self, number: int) -> Tensor:
        """Return this process's share of some rows; all shares have the same size."""

    def gather(self, part: Tensor, number: int) -> Tensor:
        """Return the rows of all processes' shares."""

    def gather_objects(self, value: T) -> list[T]:
        """Return the values of all processes, in the order of their ranks."""

    def any(self, flag: bool) -> bool:
        """Return whether a flag is set in any process; no device waits for the answer."""

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Let every process encode by itself in the context: each has other images there."""

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Set the tensors to their values in the main process."""

    def broadcast_object(self, value: T | None = None) -> T:
        """Return the main process's value."""

    def all_reduce_mean(self, parameters: Iterable[nn.Parameter]) -> None:
        """Set the gradients to their mean over the processes."""

    def check_same(self, value: Any, what: str) -> None:
        """Raise if the processes do not pass the same value."""


class SingleProcess:
    """A group of one process."""

    rank, size, is_main = 0, 1, True

    def rows(self, number: int) -> Tensor:
        """Return all rows."""
        return torch.arange(number)

    def gather(self, part: Tensor, number: int) -> Tensor:
        """Return the rows as they are."""
        return part

    def gather_objects(self, value: T) -> list[T]:
        """Return the only value."""
        return [value]

    def any(self, flag: bool) -> bool:
        """Return the flag."""
        return flag

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Change nothing."""
        yield

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Leave the tensors as they are."""

    def broadcast_object(self, value: T | None = None) -> T:
        """Return the value."""
        return value  # type: ignore[return-value]

    def all_reduce_mean(self, parameters: Iterable[nn.Parameter]) -> None:
        """Leave the gradients as they are."""

    def check_same(self, value: Any, what: str) -> None:
        """Accept any value."""
