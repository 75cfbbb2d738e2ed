"""Score the frozen backbone on the embedded suites: baselines of training, and an upper bound.

    python benchmarks/embedded/baselines.py --seeds 0 1 2 3 4 --out baselines.csv

Five rows per dataset, each evaluation set with its own assignment, as for any method:
- random clusters: the accuracy of random predictions, which is higher on smaller sets.
- raw pixels: semi-supervised k-means on the drawings' darkness at 24 x 24 pixels.
- k-means: all images that a method trains on, no label used.
- semi-supervised k-means: the same with the labels that a method may use.
- linear probe, all labels: ridge regression fitted to the true labels of half of every class and
  domain and tested on the other half: an upper bound, not a method. All variants of a corrupted
  drawing are in the same half.

With ``--trained RESULTS --methods ...`` the rows are semi-supervised k-means on the features that
each method trained (cells run with ``--keep-weights``): they show what training did to the
features, without the method's own classifier.

Domains that are not trained on are left out.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from probe import fit_and_name, raw_pixels
from torch.nn import functional as F

from gcdbench.cell_plots.trained import Trained
from gcdbench.data.problem import Problem
from gcdbench.experiment.plan import Cell, Request, make_cells
from gcdbench.nn.load import load_backbone
from gcdbench.ops.kmeans.api import semi_supervised_kmeans
from gcdbench.training.features.pool import PoolEncoder
from gcdbench.training.features.store import FeatureStore
from gcdbench.training.loader import Loader
from gcdbench.training.scoring.scores import score

COLUMNS = ("suite", "dataset", "baseline", "seed", "set", "role", "all", "old", "new")


def frozen_features(cell: Cell) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
    """Return the training rows of a cell, their pixels and their features, normalised."""
    backbone = load_backbone(cell.backbone)
    problem = cell.problem()
    loader = Loader(problem, size=backbone.image_size, batch_size=cell.train.batch_size, seed=0)
    cpu = torch.device("cpu")
    encoder = PoolEncoder(problem, loader, backbone, cpu, FeatureStore(), lambda _: "baselines")
    trained = np.isin(encoder.rows, problem.pool)
    rows, features = encoder.rows[trained], encoder.compute_features().features[trained]
    pixels = torch.cat([raw_pixels(images.float() / 255) for images in loader.sweep(rows)])
    return rows, F.normalize(pixels, dim=1), F.normalize(features, dim=1)


def clustered(
    problem: Problem, rows: np.ndarray, features: torch.Tensor, *, with_labels: bool, seed: int
) -> np.ndarray:
    """Return the cluster of each row by (semi-supervised) k-means."""
    known = np.isin(rows, problem.labelled)
    labels = torch.from_numpy(problem.labels[rows[known]])
    if not with_labels:
        found = semi_supervised_kmeans(
            features, features[:0], labels[:0], problem.num_classes, seed=seed
        )
        return found.labels.numpy()
    found = semi_supervised_kmeans(
        features[~known], features[known], labels, problem.num_classes, seed=seed
    )
    clusters = np.empty(len(rows), dtype=np.int64)
    clusters[~known], clusters[known] = found.labels.numpy(), found.labelled_labels.numpy()
    return clusters


def probed(
    problem: Problem, rows: np.ndarray, features: torch.Tensor, *, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the class a linear map gives each row, and which rows it was not fitted to."""
    rng = np.random.RandomState(seed)
    labels = problem.labels[rows]
    fitted = np.zeros(len(rows), dtype=bool)
    halves: dict[bytes, np.ndarray] = {}  # positions in a set; variants of a set share one draw
    for evaluated in problem.sets.values():
        inside = np.flatnonzero(np.isin(rows, evaluated.rows))
        found = labels[inside]
        if not len(found):  # a domain that is not trained on
            continue
        if found.tobytes() not in halves:
            members = [np.flatnonzero(found == label) for label in np.unique(found)]
            chosen = [rng.permutation(one)[: len(one) // 2] for one in members]
            halves[found.tobytes()] = np.concatenate(chosen)
        fitted[inside[halves[found.tobytes()]]] = True
    known = torch.from_numpy(fitted)
    named = fit_and_name(features[known], torch.from_numpy(labels[fitted]), features)
    return named.numpy(), ~fitted


def baselines(
    cell: Cell, rows: np.ndarray, pixels: torch.Tensor, features: torch.Tensor
) -> Iterator[dict[str, object]]:
    """Yield one row per baseline and evaluation set."""
    problem = cell.problem()
    everything = np.ones(len(rows), dtype=bool)
    ways = {
        "raw pixels": (pixels, True),
        "k-means": (features, False),
        "semi-supervised k-means": (features, True),
    }
    found = {
        baseline: (clustered(problem, rows, x, with_labels=known, seed=cell.seed), everything)
        for baseline, (x, known) in ways.items()
    }
    guesses = np.random.RandomState(cell.seed).randint(problem.num_classes, size=len(rows))
    found["random clusters"] = guesses, everything
    found["linear probe, all labels"] = probed(problem, rows, features, seed=cell.seed)
    for baseline, (predicted, asked) in found.items():
        yield from scored(cell, baseline, rows[asked], predicted[asked])


def after_training(cell: Cell, results: Path) -> Iterator[dict[str, object]]:
    """Yield one row per evaluation set: k-means with labels on the features a cell trained."""
    rows = np.unique(cell.problem().pool)
    trained = Trained.load(cell, results).features(rows)
    *_, last = (torch.from_numpy(features) for features in trained.values())
    clusters = clustered(
        cell.problem(), rows, F.normalize(last, dim=1), with_labels=True, seed=cell.seed
    )
    yield from scored(cell, f"semi-supervised k-means after {cell.spec.text}", rows, clusters)


def scored(
    cell: Cell, baseline: str, rows: np.ndarray, predicted: np.ndarray
) -> Iterator[dict[str, object]]:
    """Yield the accuracies of predictions on each evaluation set that is trained on."""
    problem = cell.problem()
    for name, evaluated in problem.sets.items():
        if evaluated.role == "unseen":
            continue
        inside = np.isin(rows, evaluated.rows)
        found = score(
            preds=predicted[inside],
            labels=problem.labels[rows[inside]],
            num_old=problem.num_old,
            num_classes=problem.num_classes,
        )
        figures = {split: f"{100 * getattr(found, split):.2f}" for split in COLUMNS[-3:]}
        place = {"dataset": cell.dataset, "baseline": baseline, "seed": cell.seed, "set": name}
        yield {**place, "role": evaluated.role, **figures}


def rows_of(cells: Sequence[Cell], results: Path | None) -> Iterator[dict[str, object]]:
    """Yield the rows of the cells of one dataset; frozen features are the same for all seeds."""
    if results is not None:
        for cell in cells:
            yield from after_training(cell, results)
        return
    frozen = frozen_features(cells[0])
    for cell in cells:
        yield from baselines(cell, *frozen)


def main(argv: list[str]) -> None:
    """Score the baselines of all datasets and write them as CSV."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--suites", nargs="+", default=["drawshift", "drawshift-all", "drawshift-c"]
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--datasets", nargs="+", help="some of the suites' datasets")
    parser.add_argument("--trained", type=Path, help="results folder of cells with kept weights")
    parser.add_argument("--methods", nargs="+", default=["simgcd"], help="those of --trained")
    parser.add_argument("--out", type=Path, required=True, help="CSV file to write")
    args = parser.parse_args(argv)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for suite in args.suites:
            request = Request(
                suite=suite,
                methods=tuple(args.methods) if args.trained else ("simgcd",),  # any will do
                datasets=tuple(args.datasets or ()),
                seeds=tuple(args.seeds),
            )
            by_dataset: dict[str, list[Cell]] = {}
            for cell in make_cells(request):
                by_dataset.setdefault(cell.dataset, []).append(cell)
            for cells in by_dataset.values():
                for row in rows_of(cells, args.trained):
                    writer.writerow({"suite": suite, **row})
                file.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
