"""Views made on the device: the CPU's bytes, and nothing to wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from device.pretend.counts import counting
from device.pretend.machine import one_gpu
from gcdbench.data.images import ArrayImages
from gcdbench.data.problem import Augment, EvalSet, Problem
from gcdbench.training.loader import Loader

KINDS = {
    "plain views": ("plain", "plain"),
    "weak and strong views": ("weak", "strong"),
    "views of two sizes": ("plain", "plain", "small", "small"),
}


def _problem(augment: Augment) -> Problem:
    pixels = np.random.RandomState(0).randint(0, 256, (12, 40, 50, 3), dtype=np.uint8)
    rows = np.arange(12)
    return Problem(
        name="views",
        classes=("a", "b"),
        num_old=1,
        images=ArrayImages(pixels, [str(row) for row in rows]),
        labels=rows % 2,
        labelled=rows[:4:2],
        unlabelled=rows[4:],
        sets={"all": EvalSet(rows, "source")},
        augment=augment,
    )


def _views(kinds: tuple[str, ...], augment: Augment, device: torch.device | None) -> list[Any]:
    problem = _problem(augment)
    loader = Loader(problem, size=32, batch_size=8, kinds=kinds, device=device)
    assert loader.on_device == (device is not None)
    (batch,) = loader.epoch(0, torch.ones(len(problem.pool)).double())
    return list(batch.views)


def _case(kinds: tuple[str, ...], augment: Augment) -> Callable[[Any], None]:
    def case(_: Any) -> None:
        expected = _views(kinds, augment, None)
        with one_gpu():
            _views(kinds, augment, torch.device("cuda", 0))  # fills tables that are kept
            with counting() as counts:
                made = _views(kinds, augment, torch.device("cuda", 0))
            assert not counts.syncs, counts.syncs
            assert all(view.device.type == "cuda" for view in made)
            here = [view.cpu() for view in made]
        for kind, one, other in zip(kinds, expected, here, strict=True):
            apart = (one.int() - other.int()).abs().max()
            assert apart <= (0 if kind in ("plain", "weak") else 1), (kind, apart)

    return case


def view_cases() -> dict[str, Callable[[Any], None]]:
    """All kinds of views, with and without DomainNet's colours."""
    return {
        f"{name}, {augment}": _case(kinds, augment)  # type: ignore[arg-type]
        for name, kinds in KINDS.items()
        for augment in ("plain", "jitter")
    }
