"""Reference outputs of original implementations, and how a method is compared with them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gcdbench.core import registry
from gcdbench.core.config import build
from gcdbench.core.settings import TrainConfig
from gcdbench.nn.backbone import Encoded
from gcdbench.training.compose import Composed
from gcdbench.training.method import Batch, Clock, Method, Task
from gcdbench.training.optimizer import make_optimizer
from helpers.paths import GOLDEN

Arrays = dict[str, Tensor]


class GivenFeatures(nn.Module):
    """A backbone whose images are their features."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, images: Tensor) -> Encoded:
        return Encoded(images)


def load_golden(name: str) -> tuple[Arrays, dict[str, Any]]:
    """Return the arrays and the scalars of a reference file."""
    with np.load(GOLDEN / f"{name}.npz") as arrays:
        tensors = {key: torch.from_numpy(np.asarray(arrays[key])) for key in arrays.files}
    return tensors, json.loads((GOLDEN / f"{name}.json").read_text())


def part(arrays: Arrays, prefix: str) -> Arrays:
    """Return the arrays whose name starts with a prefix, without it."""
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def make_method(
    name: str,
    *,
    dim: int,
    classes: int,
    old: int,
    labels: Tensor | None = None,
    epochs: int = 3,
    **config: Any,
) -> Any:
    """Return a method on a backbone whose images are their features."""
    cls: Any = registry.load("method", name)
    labels = torch.full((8,), -1) if labels is None else labels
    task = Task(classes, old, labels, epochs=epochs, steps_per_epoch=1, seed=0)
    return cls(build(cls.Config, config, name), task, GivenFeatures(dim))


def module_of(name: str) -> ModuleType:
    """Return the module of a method's file, for its functions."""
    return sys.modules[registry.load("method", name).__module__]


def visible(labels: Tensor, mask: Tensor) -> Tensor:
    """Hide the labels outside of the mask."""
    return labels.long().masked_fill(~mask.bool(), -1)


def make_batch(rows: Tensor, labels: Tensor, index: Tensor | None = None) -> Batch:
    """Return the batch of two stacked views of features."""
    index = torch.arange(len(labels)) if index is None else index
    return Batch(rows.unflatten(0, (2, -1)), labels, index)


def clock(epoch: int = 0, epochs: int = 3) -> Clock:
    return Clock(epoch, epoch, epochs, 1, 0)


def make_sgd(method: Method, **settings: Any) -> torch.optim.Optimizer:
    """Return the trainer's optimiser for a method."""
    return make_optimizer(Composed(method), TrainConfig(**settings))


def load_heads(module: nn.Module, arrays: Mapping[str, Tensor], names: Mapping[str, str]) -> None:
    """Fill a module from arrays of the original; ``names`` maps our prefixes to theirs."""
    state = {}
    for ours, theirs in names.items():
        state |= {ours + k: v for k, v in part(dict(arrays), theirs).items()}
    module.load_state_dict(module.state_dict() | state)


def assert_near(found: Any, expected: Any, *, rtol: float = 1e-4, atol: float = 2e-6) -> None:
    """Compare tensors, or a tensor with a number."""
    found = torch.as_tensor(found).detach()
    expected = torch.as_tensor(expected, dtype=found.dtype)
    torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)
