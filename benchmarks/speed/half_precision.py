"""What half precision in evaluation sweeps does to accuracies, emulated on the CPU.

A sweep on CUDA makes its matrix products in float16 or bfloat16 by default, and may keep its
features as float16. Here operands and results of the same products are rounded to these types and
the products are made in float32, as tensor cores add them up, because a CPU has no fast kernels for
half precision. Train the cells first, and keep the weights:

    python -m gcdbench run --suite drawshift --datasets line+solid --methods gcd simgcd \
        --seeds 0 1 2 --keep-weights --results results/half
    PYTHONPATH=. python benchmarks/speed/half_precision.py --results results/half

The frozen features are those of GCD's model before training: semi-supervised k-means of what was
pretrained.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from gcdbench.cell_plots.trained import Trained
from gcdbench.experiment.plan import Cell, Request, make_cells
from gcdbench.training.evaluator import Evaluation, evaluate
from gcdbench.training.features import pool
from gcdbench.training.features.pool import PoolEncoder, make_fit_context
from gcdbench.training.features.store import FeatureStore
from gcdbench.training.features.trunk import Trunk

CPU = torch.device("cpu")
WAYS: dict[str, tuple[torch.dtype | None, str]] = {  # products, features
    "float32": (None, "float32"),
    "float16": (torch.float16, "float32"),
    "bfloat16": (torch.bfloat16, "float32"),
    "kept as float16": (None, "float16"),
}
PRODUCTS = {  # that autocast makes in half precision, of those in a vision transformer
    F.linear,
    F.conv2d,
    F.scaled_dot_product_attention,
    *(torch.matmul, torch.bmm, torch.baddbmm, torch.addmm, torch.conv2d),
    *(Tensor.matmul, Tensor.__matmul__, Tensor.bmm),
}


class Rounded(TorchFunctionMode):
    """Rounds operands and results of matrix products to a type, as autocast does on CUDA."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in PRODUCTS:
            return func(*args, **(kwargs or {}))
        args, kwargs = tree_map_only(Tensor, self._round, (args, kwargs or {}))
        return self._round(func(*args, **kwargs))

    def _round(self, x: Tensor) -> Tensor:
        return x.to(self.dtype).float() if x.is_floating_point() else x


def autocast(device: torch.device, mixed: torch.dtype | None) -> AbstractContextManager[Any]:
    """Take the place of torch's autocast in sweeps."""
    return nullcontext() if mixed is None else Rounded(mixed)


@dataclass
class Sweeps:
    """Evaluations in all precisions, with the frozen features of each computed once."""

    stores: dict[torch.dtype | None, FeatureStore]

    def evaluate(self, one: Trained, way: str) -> Evaluation:
        """Return the evaluation of a model in one of the ways."""
        mixed, features = WAYS[way]
        backbone = one.model.backbone
        trunk = Trunk(backbone, CPU, owner=one.cell.key, mixed=mixed)
        encoder = PoolEncoder(
            *(one.problem, one.loader, backbone, CPU, self.stores[mixed], trunk.key),
            mixed=mixed,
            features=features,
            encode=one.model.encode,
        )
        context = make_fit_context(encoder, one.cell.seed)
        with patch.object(pool, "autocast", autocast):
            return evaluate(one.model, one.problem, encoder, context)


def models(cells: list[Cell], results: Path) -> Iterator[tuple[str, Trained]]:
    """Yield the trained models of the cells, and GCD's before training."""
    for cell in cells:
        yield cell.spec.text, Trained.load(cell, results)
        if cell.spec.text == "gcd":
            yield "frozen", Trained.fresh(cell, cell.problem().num_classes)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, required=True, help="with --keep-weights")
    parser.add_argument("--dataset", default="line+solid")
    parser.add_argument("--methods", nargs="+", default=["gcd", "simgcd"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    given = parser.parse_args()
    torch.set_num_threads(1)
    request = Request(
        "drawshift", tuple(given.methods), datasets=(given.dataset,), seeds=tuple(given.seeds)
    )
    stores = {mixed: FeatureStore() for mixed, _ in WAYS.values()}
    sweeps = Sweeps(stores)
    others = [way for way in WAYS if way != "float32"]
    print("| features, seed, set | float32 | " + " | ".join(f"{w} | moved" for w in others) + " |")
    print("| --- | ---: |" + " ---: | ---: |" * len(others), flush=True)
    for title, one in models(make_cells(request), given.results):
        found = {way: sweeps.evaluate(one, way) for way in WAYS}
        plain = found["float32"]
        for name in plain.predictions:
            row = [
                f"{title}, {one.cell.seed}, {name}",
                f"{100 * plain.scores.sets[name]['all']:.1f}",
            ]
            for way in others:
                gain = found[way].scores.sets[name]["all"] - plain.scores.sets[name]["all"]
                moved = np.mean(found[way].predictions[name] != plain.predictions[name])
                row += [f"{100 * gain:+.2f}", f"{100 * moved:.2f} %"]
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
