"""The verbs evaluate and estimate-k: score a user's own features or predictions."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from gcdbench.cli.arguments import positive, seed


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``evaluate``."""
    parser.add_argument("--features", type=Path, required=True, metavar="FILE.npz")
    parser.add_argument(
        "--classes", type=positive, metavar="K", help="clusters (default: all classes)"
    )
    parser.add_argument("--seed", type=seed, default=0, help="of k-means")
    parser.add_argument("--json", action="store_true", help="for programs")


def evaluate(arguments: argparse.Namespace) -> int:
    """Score the features or predictions of a file, per domain."""
    from gcdbench.training.score_arrays import evaluate_file

    scores = evaluate_file(arguments.features, num_classes=arguments.classes, seed=arguments.seed)
    if arguments.json:
        print(json.dumps({name: one.as_dict() for name, one in scores.items()}, indent=1))
        return 0
    print(f"{'domain':<16} {'All':>6} {'Old':>6} {'New':>6} {'NMI':>6} {'ARI':>6} {'images':>8}")
    for name, one in scores.items():
        rates = (one.all, one.old, one.new, one.nmi, one.ari)
        print(f"{name:<16} " + " ".join(f"{100 * r:6.1f}" for r in rates) + f" {one.n:>8}")
    return 0


def add_estimate(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``estimate-k``."""
    parser.add_argument("--features", type=Path, required=True, metavar="FILE.npz")
    parser.add_argument("--out", type=Path, default=Path("results/k"), help="folder of the curve")
    parser.add_argument("--search", choices=("brent", "binary"), default="brent")
    parser.add_argument("--max-k", type=positive, default=1000, help="largest number of classes")


def estimate(arguments: argparse.Namespace) -> int:
    """Estimate the number of classes from features."""
    from gcdbench.training.estimate_file import run_estimate

    found = run_estimate(
        arguments.features, arguments.out, search=arguments.search, high=arguments.max_k
    )
    print(f"K = {found.k} (labelled accuracy {100 * found.accuracy:.1f} %)")
    return 0
