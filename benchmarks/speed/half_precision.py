"""What half precision in evaluation sweeps does to accuracies, emulated on the CPU.

A sweep on CUDA makes its matrix products in float16 or bfloat16 by default, and may keep its
features as float16. Torch's autocast rounds the same operands on a CPU, so the same trained cells
are evaluated in float32 and both ways. Train them first, and keep the weights:

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
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from gcdbench.cell_plots.trained import Trained
from gcdbench.experiment.plan import Cell, Request, make_cells
from gcdbench.training.evaluator import Evaluation, evaluate
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
            row = [f"{title}, {one.cell.seed}, {name}", f"{100 * plain.scores.sets[name]['all']:.1f}"]
            for way in others:
                gain = found[way].scores.sets[name]["all"] - plain.scores.sets[name]["all"]
                moved = np.mean(found[way].predictions[name] != plain.predictions[name])
                row += [f"{100 * gain:+.2f}", f"{100 * moved:.2f} %"]
            print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
