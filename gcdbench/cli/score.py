"""The verbs evaluate and estimate-k: score a user's own features or predictions."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gcdbench.cli.arguments import positive, say, seed
from gcdbench.core.json_text import json_text
from gcdbench.experiment.verdict import CLOSE

log = logging.getLogger("gcdbench")


def add_evaluate(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``evaluate``."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--features", type=Path, metavar="FILE.npz")
    trained = "a trained cell: an exported folder, a cell's folder or hf-hub:OWNER/NAME"
    what.add_argument("--weights", metavar="PLACE", help=trained)
    parser.add_argument(
        "--classes", type=positive, metavar="K", help="clusters (default: all classes)"
    )
    parser.add_argument("--seed", type=seed, default=0, help="of k-means")
    parser.add_argument("--data-root", type=Path, metavar="DIR", help="of --weights")
    parser.add_argument("--device", default="cpu", help="of --weights: cpu, cuda, cuda:1, ...")
    parser.add_argument("--json", action="store_true", help="for programs")


def evaluate(arguments: argparse.Namespace) -> int:
    """Score features, predictions or a trained cell, per domain."""
    if arguments.weights is not None:
        return _evaluate_weights(arguments)
    from gcdbench.training.score_arrays import evaluate_file

    scores = evaluate_file(arguments.features, num_classes=arguments.classes, seed=arguments.seed)
    _print_scores({name: one.as_dict() for name, one in scores.items()}, as_json=arguments.json)
    return 0


def _evaluate_weights(arguments: argparse.Namespace) -> int:
    """Predict and score with the weights of a trained cell, and compare with its record."""
    from gcdbench.sharing.exported_weights import evaluate_again

    place, root, device = arguments.weights, arguments.data_root, arguments.device
    record, found = evaluate_again(place, data_root=root, device=device)
    _print_scores(found.scores.sets, as_json=arguments.json)
    changed = [
        f"{name} {100 * found.scores.sets[name]['all']:.2f} (recorded {100 * one.all:.2f})"
        for name, one in record.sets.items()
        if abs(found.scores.sets[name]["all"] - one.all) > CLOSE
    ]
    log.info("%s: %s", record.label, ", ".join(changed) or "the accuracies of its record")
    return 0


def _print_scores(scores: Mapping[str, Mapping[str, Any]], *, as_json: bool) -> None:
    """Print the scores of each domain."""
    if as_json:
        say(json_text(scores))
        return
    print(f"{'domain':<16} {'All':>6} {'Old':>6} {'New':>6} {'NMI':>6} {'ARI':>6} {'images':>8}")
    for name, one in scores.items():
        rates = (f"{100 * one[rate]:6.1f}" for rate in ("all", "old", "new", "nmi", "ari"))
        print(f"{name:<16} {' '.join(rates)} {one['n']:>8}")


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
