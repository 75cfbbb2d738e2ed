"""Time the critics of the mutual-information term against evaluating every pair of rows.

    python benchmarks/speed/mutual_information.py [--rows 300] [--rounds 3] [--threads 1]

Both sides of a comparison run forward and backward in turns, so that a busy machine slows both;
the table gives the median of the rounds' ratios. Peak memory is measured in a fresh process per
side, above what the process held before. Exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gcdbench.nn.critics import CosineCritic, MLPCritic, js_mutual_information
from gcdbench.nn.heads import CosineClassifier, ProjectionHead

DIM = 256  # of the two projections
Score = Callable[[Tensor, Tensor], Tensor]


class Case(NamedTuple):
    """One comparison: the plain evaluation, ours, and what ours has to save."""

    plain: Score
    ours: Score
    modules: list[nn.Module]
    speed_target: float
    memory_target: float


def concatenated(x: Tensor, y: Tensor) -> Tensor:
    """Return all pairs of rows side by side, (n * m, d_x + d_y)."""
    n, m = len(x), len(y)
    return torch.cat([x.repeat_interleave(m, 0), y.repeat(n, 1)], dim=1)


def cosine() -> Case:
    """Build the critic of HiLo's released code, whose perceptron is evaluated but not used."""
    generator = torch.Generator().manual_seed(0)
    critic = CosineCritic(DIM, DIM, generator=generator)
    unused = ProjectionHead(2 * DIM, generator=generator)
    classifier = CosineClassifier(2 * DIM, 1)
    classifier.weight = critic.weight

    def plain(x: Tensor, y: Tensor) -> Tensor:
        pairs = concatenated(x, y)
        unused(pairs)
        return classifier(pairs).view(len(x), len(y))

    return Case(plain, critic, [critic, unused], 500.0, 3.0)


def mlp() -> Case:
    """Build the critic of the paper's text: a perceptron on the pair."""
    critic = MLPCritic(DIM, DIM, generator=torch.Generator().manual_seed(0))

    def plain(x: Tensor, y: Tensor) -> Tensor:
        return critic.head(concatenated(x, y)).view(len(x), len(y))

    return Case(plain, critic, [critic], 2.0, 3.0)


CASES = {"cosine critic (released)": cosine, "MLP critic": mlp}


def features(rows: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Draw the two projections, as leaves that collect gradients."""
    x, y = torch.randn(2, rows, DIM, generator=torch.Generator().manual_seed(1), dtype=dtype)
    return x.requires_grad_(), y.requires_grad_()


def seconds(score: Score, x: Tensor, y: Tensor) -> float:
    """Time one forward and backward pass."""
    start = time.perf_counter()
    js_mutual_information(score(x, y)).backward()
    return time.perf_counter() - start


def speed_ratio(case: Case, rows: int, rounds: int) -> tuple[float, float]:
    """Return the median of plain over ours, and the median seconds of ours."""
    x, y = features(rows)
    seconds(case.ours, x, y)  # the first call pays for imports and memory
    times = [(seconds(case.plain, x, y), seconds(case.ours, x, y)) for _ in range(rounds)]
    return statistics.median(a / b for a, b in times), statistics.median(b for _, b in times)


def largest_difference(case: Case, rows: int) -> float:
    """Compare value and gradients of both sides in float64, relative to the largest gradient."""
    for module in case.modules:
        module.double()
    results = []
    for score in (case.plain, case.ours):
        x, y = features(rows, torch.float64)
        value = js_mutual_information(score(x, y))
        results.append([value, *torch.autograd.grad(value, [x, y])])
    return max(((a - b).abs().max() / a.abs().max()).item() for a, b in zip(*results, strict=True))


def _peak(name: str, side: str, rows: int, threads: int) -> float:
    torch.set_num_threads(threads)
    score, (x, y) = getattr(CASES[name](), side), features(rows)
    seconds(score, x[:2], y[:2])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds(score, x, y)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def peak_megabytes(name: str, side: str, rows: int, threads: int) -> float:
    """Return how much one side adds to the memory of a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak, (name, side, rows, threads))


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=300, help="150 images in two views")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    # Memory first: a new process inherits the peak of the one that starts it.
    peaks = {
        name: [peak_megabytes(name, side, args.rows, args.threads) for side in ("plain", "ours")]
        for name in CASES
    }
    missed = False
    print("critic | times faster | ms | plain MB | ours MB | largest difference (float64)")
    for name, build in CASES.items():
        case, (plain_mb, ours_mb) = build(), peaks[name]
        ratio, ours = speed_ratio(case, args.rows, args.rounds)
        difference = largest_difference(case, rows=40)
        print(
            f"{name} | {ratio:.1f} | {1000 * ours:.1f} | {plain_mb:.0f} | {ours_mb:.0f} "
            f"| {difference:.1e}"
        )
        missed |= ratio < case.speed_target or difference > 1e-6
        missed |= plain_mb < case.memory_target * ours_mb
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
