"""A measurement of this machine: images/s of loading, of the frozen trunk and of training steps.

Weights and data do not matter for the speed: where the weights are missing, random ones are used,
and where the data is missing the embedded drawings are, enlarged (loading is not measured then).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gcdbench.core.config import plain
from gcdbench.data.problem import Problem
from gcdbench.errors import UserError
from gcdbench.experiment.plan import Cell, Request, make_cells
from gcdbench.nn.backbone import Backbone
from gcdbench.nn.hub import find_weights, untrained_backbone
from gcdbench.nn.load import load_backbone
from gcdbench.nn.tokens import Patches, Tokens
from gcdbench.runner.cost import VIEWS, backbone_size, cell_sizes, work
from gcdbench.training.compose import Composed, compose
from gcdbench.training.features.trunk import autocast
from gcdbench.training.loader import Loader
from gcdbench.training.method import Batch, Clock, Task, sampling_weights
from gcdbench.training.optimizer import make_optimizer, mixed_precision

LOADING, TRUNK = 0.15, 0.2  # shares of the time; the methods get the rest
STEP_SECONDS = 2.0  # that a measured step may take: the batch is made so small


@dataclass(frozen=True)
class Speed:
    """What was measured, in views per second."""

    loading: float | None  # by one process; None if the data is not there
    trunk: float
    step: dict[str, float]  # by method, with what its steps are given
    batch: int  # images in a measured step
    random_weights: bool


@dataclass(frozen=True)
class CellTime:
    """The seconds of a cell, by what they are spent on."""

    dataset: str
    method: str
    parts: dict[str, float]

    @property
    def seconds(self) -> float:
        """All of them."""
        return sum(self.parts.values())

    @property
    def limit(self) -> str:
        """The part that takes most of the time."""
        return max(self.parts, key=lambda name: self.parts[name])


def measure(cells: Sequence[Cell], device: torch.device, seconds: float) -> Speed:
    """Measure what cells of several methods, all with the first one's backbone, do most."""
    first = cells[0]
    here = not first.backbone.from_hub or find_weights(first.backbone).there
    backbone = (load_backbone if here else untrained_backbone)(first.backbone).to(device).eval()
    problem, known = _problem(first)
    loader = _loader(first, problem, backbone)
    weights = sampling_weights(loader.labels, first.train.sampling)
    loading = _loading(loader, weights, LOADING * seconds) if known else None
    mixed = mixed_precision(first.train, device)
    side = backbone.image_size
    images = torch.rand(2 * loader.batch_size, 3, side, side, device=device)
    with torch.no_grad(), autocast(device, mixed):

        def frozen(number: int) -> object:
            return backbone.trunk(backbone.patches(images[:number]))

        trunk, rows = _growing(frozen, images, TRUNK * seconds)
    size = max(min(loader.batch_size, int(trunk * STEP_SECONDS / 2), rows), 2)
    batch = next(iter(_loader(first, problem, backbone, size).epoch(0, weights))).to(device)
    left = (1 - LOADING - TRUNK) * seconds / len(cells)
    steps = {cell.spec.text: _step(cell, problem, backbone, batch, left) for cell in cells}
    return Speed(loading, trunk, steps, size, not here)


def _problem(cell: Cell) -> tuple[Problem, bool]:
    """Return a cell's problem, or the embedded drawings if its data is not there."""
    try:
        return cell.problem(), True
    except UserError:
        return make_cells(Request("drawshift", ("simgcd",)))[0].problem(), False


def _loader(cell: Cell, problem: Problem, backbone: Backbone, batch: int | None = None) -> Loader:
    number = batch or cell.train.batch_size
    return Loader(problem, size=backbone.image_size, batch_size=number, seed=0)


def _loading(loader: Loader, weights: Tensor, seconds: float) -> float:
    """Return the views per second that one process loads."""
    batches = itertools.chain.from_iterable(loader.epoch(e, weights) for e in itertools.count())
    return rate(lambda: len(next(batches)) * VIEWS, seconds)


def rate(call: Callable[[], int], seconds: float, device: torch.device | None = None) -> float:
    """Return how many rows per second a call computes, after one call that is not counted."""
    call()
    _wait(device)
    begin, rows = time.perf_counter(), 0
    while True:
        rows += call()
        _wait(device)
        if (spent := time.perf_counter() - begin) >= seconds:
            return rows / spent


def _wait(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def _growing(call: Callable[[int], object], images: Tensor, seconds: float) -> tuple[float, int]:
    """Return the rate of a call for as many images as it manages in a second, and their number."""
    number = 2

    def one() -> int:
        call(number)
        return number

    while True:
        found = rate(one, 0.0, images.device)
        if number >= len(images) or number / found > 1.0:
            return rate(one, seconds / 2, images.device), number
        number = min(2 * number, len(images))


def _step(cell: Cell, problem: Problem, backbone: Backbone, batch: Batch, seconds: float) -> float:
    """Return the views per second of a method's training steps."""
    device = batch.labels.device
    labels = torch.from_numpy(problem.visible_labels)
    number = problem.num_classes
    task = Task(number, problem.num_old, labels, cell.train.epochs, 1, 0, cell.train.sampling)
    model = compose(cell.spec, cell.settings()["config"], task, backbone).to(device).train()
    model.backbone.eval()
    optimizer, mixed = make_optimizer(model, cell.train), mixed_precision(cell.train, device)
    given = _as_banked(model, batch) if cell.train.view_bank else batch
    clock = Clock(0, 0, cell.train.epochs, 1, 0)

    def one() -> int:
        with autocast(device, mixed):
            step = model.step(given, clock)
        optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(step.loss)
        optimizer.step()
        with torch.no_grad():
            model.after_step(given, step, clock)
        return VIEWS * len(batch)

    return rate(one, seconds / 2, device)


def _as_banked(model: Composed, batch: Batch) -> Batch:
    """Return a batch as a view bank would serve it."""
    backbone, depth = model.backbone, model.cache_depth
    if depth == "images" or not isinstance(batch.images, Tensor):
        return batch
    patches = backbone.patches(batch.images)
    if depth == "patches":
        views: Patches | Tokens = Patches(patches)
    else:
        views = backbone.traced(patches) if depth == "traced" else backbone.trunk(patches)
    return replace(batch, views=views)


def cell_time(cell: Cell, speed: Speed) -> CellTime:
    """Return what a cell takes on this machine, in one process that also loads the images."""
    size, sizes = backbone_size(cell.backbone.name), cell_sizes(cell)
    total = work(plain(cell.train), cell.spec, sizes, size, cell.backbone.train_blocks)
    banked = cell.train.view_bank > 0
    loaded = total.through_trunk if banked else total.views + total.swept
    steps = total.views / speed.step[cell.spec.text]
    before = total.through_trunk - (0 if banked else total.views)
    trunk = total.through_trunk / speed.trunk
    parts = {
        "loading": loaded / speed.loading if speed.loading else 0.0,
        "frozen blocks": trunk,
        "heads and losses": max(steps + before / speed.trunk - trunk, 0.0),
    }
    return CellTime(cell.dataset, cell.spec.text, parts)
