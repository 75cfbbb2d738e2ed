"""Cells that draw the same batches, trained side by side: one pass over the trunk for all of them.

Each cell runs in a thread of its own, in all else as if it were alone: model, folder, checkpoints
and failures are its own. Only one of them runs at a time, and a cell that asks for a batch lets
those go first that are behind it. So all want the same batch one after the other, and it is loaded
and sent through the trunk once. Cells that sample differently in an epoch share nothing in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gcdbench import trainer
from gcdbench.compose import Composed
from gcdbench.method import Batch
from gcdbench.nn.backbone import Backbone, Level, Patches, Tokens
from gcdbench.plan import Cell
from gcdbench.tokens import digest

THREADS = "side by side "  # how the names of threads begin that run cells


def running() -> bool:
    """Tell whether cells are still in the middle of their steps."""
    return any(thread.name.startswith(THREADS) for thread in threading.enumerate())


def groups(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Return the cells that may draw the same batches of fresh views, at least two together."""
    found: dict[Any, list[Cell]] = {}
    for cell in cells:
        train = cell.train
        if not train.view_bank:
            drawn = (train.batch_size, train.draws_per_epoch, train.amp)
            alike = (cell.dataset, cell.problem().fingerprint, cell.seed, cell.backbone, drawn)
            found.setdefault(alike, []).append(cell)
    return [group for group in found.values() if len(group) > 1]


class Circle:
    """The turns of cells that are trained side by side."""

    def __init__(self, members: int) -> None:
        self._places = dict.fromkeys(range(members), -1)  # member -> step that it is at
        self._changed = threading.Condition()
        self._runs: int | None = None
        self._streams: dict[tuple, _Stream] = {}
        self.traced = False  # whether a member wants to know the way through the trunk

    def run(self, jobs: Sequence[Callable[[Seat], Any]]) -> list[Any]:
        """Run a job per member, in turns, and return what they return or the error they raise."""
        results: list[Any] = [None] * len(jobs)

        def work(number: int) -> None:
            try:
                self.wait_for_turn(number, -1)
                results[number] = jobs[number](Seat(self, number))
            except BaseException as error:  # the thread ends here: the caller is to see it
                results[number] = error
            finally:
                self._leave(number)

        threads = [
            threading.Thread(target=work, args=(n,), name=f"{THREADS}{n}", daemon=True)
            for n in range(len(jobs))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def wait_for_turn(self, member: int, step: int) -> None:
        """Let all members go first that are behind a step."""
        with self._changed:
            self._places[member] = step
            if self._runs == member:
                self._runs = None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_next(member))
            self._runs = member

    def _is_next(self, member: int) -> bool:
        first = min(self._places, key=lambda number: (self._places[number], number))
        return self._runs is None and first == member

    def _leave(self, member: int) -> None:
        with self._changed:
            del self._places[member]
            if self._runs == member:
                self._runs = None
            self._changed.notify_all()

    def stream(self, loader: trainer.Batches, epoch: int, weights: Tensor) -> _Stream:
        """Return the batches of an epoch, for all who sample by these weights."""
        key = (epoch, digest(weights.tolist()))
        if key not in self._streams:
            # nobody is behind the one that runs, but those ahead have begun their epochs
            for old in [k for k in self._streams if k[0] < epoch - 1]:
                del self._streams[old]
            self._streams[key] = _Stream(loader.epoch(epoch, weights))
        return self._streams[key]


@dataclass(frozen=True)
class Seat:
    """A member's place in its circle."""

    circle: Circle
    number: int

    def share(
        self, loader: trainer.Batches, model: Composed, device: torch.device, *, amp: bool
    ) -> SharedBatches:
        """Return the loader's batches, computed as deep as the model allows."""
        self.circle.traced |= model.level == "traced"
        return SharedBatches(self, loader, model.backbone, model.level, device, amp)


@dataclass
class SharedBatches:
    """A member's view of the batches that its circle draws."""

    seat: Seat
    loader: trainer.Batches
    backbone: Backbone
    level: Level
    device: torch.device
    amp: bool

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in an epoch."""
        return self.loader.steps_per_epoch

    def epoch(self, epoch: int, weights: Tensor) -> Iterator[Batch]:
        """Yield the batches of an epoch, each when those behind have had theirs."""
        circle = self.seat.circle
        stream = circle.stream(self.loader, epoch, weights)
        for number in range(self.steps_per_epoch):
            circle.wait_for_turn(self.seat.number, epoch * self.steps_per_epoch + number)
            yield self._deepened(stream.at(number, self.device))
        next(stream.batches, None)  # the loader's workers are free for the next epoch

    def _deepened(self, shared: _Shared) -> Batch:
        with torch.no_grad(), torch.autocast(self.device.type, enabled=self.amp):
            if self.level == "images":
                return shared.batch
            if self.level == "patches":
                return replace(shared.batch, views=Patches(shared.patches(self.backbone)))
            tokens = shared.tokens(self.backbone, traced=self.seat.circle.traced)
        taps = {b: cls for b, cls in tokens.taps.items() if b in self.backbone.tapped}
        return replace(shared.batch, views=replace(tokens, taps=taps))


@dataclass
class _Shared:
    """A batch and what has been made of it; every trunk of the circle is the same."""

    batch: Batch
    _patches: Tensor | None = None
    _tokens: Tokens | None = None

    def patches(self, backbone: Backbone) -> Tensor:
        if self._patches is None:
            self._patches = backbone.patches(self.batch.images)  # type: ignore[arg-type]
        return self._patches

    def tokens(self, backbone: Backbone, *, traced: bool) -> Tokens:
        if self._tokens is None:
            patches, taps = self.patches(backbone), range(1, backbone.num_frozen + 1)
            compute = backbone.traced if traced else backbone.trunk
            self._tokens = compute(patches, taps)
        return self._tokens


@dataclass
class _Stream:
    """The batches of an epoch, of which the latest is kept."""

    batches: Iterator[Batch]
    number: int = -1
    latest: _Shared | None = None

    def at(self, number: int, device: torch.device) -> _Shared:
        """Return a batch; all members ask for them in order."""
        while self.number < number:
            self.latest = _Shared(next(self.batches).to(device))
            self.number += 1
        assert self.latest is not None
        return self.latest
