"""Time the evaluator against plain reference implementations, faiss and, if there, scikit-learn.

    python benchmarks/speed/evaluator.py            # small sizes, under a minute
    python benchmarks/speed/evaluator.py --full     # sizes of CUB-C and DomainNet, several minutes

Competitors take turns and the best CPU time of each is shown, so that a busy machine affects all
equally. The last column compares the results: inertia, accuracy, or whether they are equal.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from reference import accuracy, kmeans
from torch import Tensor
from torch.nn.functional import normalize

from gcdbench.ops.kmeans.api import assign, semi_supervised_kmeans
from gcdbench.ops.kmeans.assign import squared_gaps
from gcdbench.ops.metrics import accuracies

try:  # an oracle of the tests, not a part of the project's environment
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits
except ImportError:
    KMeans, threadpool_limits = None, nullcontext


@dataclass(frozen=True)
class Timing:
    """Best CPU seconds of a competitor and what its last turn returned."""

    seconds: float
    value: Any


@dataclass(frozen=True)
class Problem:
    """Features on the unit sphere: classes around points of a low-dimensional subspace."""

    unlabelled: Tensor
    labelled: Tensor
    targets: Tensor
    hidden: Tensor
    k: int

    def quality(self, centers: Tensor) -> str:
        """Say what any competitor's centres are worth on the unlabelled rows."""
        labels = assign(self.unlabelled, centers)
        cost = float(squared_gaps(self.unlabelled, centers, labels).sum())
        acc = accuracies(preds=labels, labels=self.hidden, num_old=self.k // 2)
        return f"inertia {cost:.1f}, ACC {acc.all:.3f}"


def problem(n: int, d: int, k: int, *, seed: int = 0, noise: float = 0.9) -> Problem:
    """Make ``n`` rows of ``k`` classes; half the rows of the first half of them are labelled."""
    g = torch.Generator().manual_seed(seed)
    basis = torch.randn(40, d, generator=g) / d**0.5
    means = torch.randn(k, 40, generator=g)
    y = torch.randint(0, k, (n,), generator=g)
    x = torch.empty(n, d)
    for at in range(0, n, 4096):
        own = y[at : at + 4096]
        rows = (means[own] + noise * torch.randn(len(own), 40, generator=g)) @ basis
        x[at : at + 4096] = normalize(rows + 0.05 * torch.randn(len(own), d, generator=g), dim=1)
    known = (y < k // 2) & (torch.rand(n, generator=g) < 0.5)
    return Problem(x[~known], x[known], y[known], y[~known], k)


def take_turns(competitors: dict[str, Callable[[], Any]], rounds: int) -> dict[str, Timing]:
    """Run all competitors in turn, ``rounds`` times."""
    best = {name: Timing(float("inf"), None) for name in competitors}
    for _ in range(rounds):
        for name, run in competitors.items():
            start = time.process_time()
            value = run()
            seconds = time.process_time() - start
            best[name] = Timing(min(seconds, best[name].seconds), value)
    return best


@contextmanager
def memory_growth() -> Iterator[list[float]]:
    """Sample the resident memory while the block runs; the list receives the growth in MB."""
    result: list[float] = []
    done = threading.Event()

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

    def watch() -> None:
        peak = before
        while not done.wait(0.001):
            peak = max(peak, resident())
        result.append(peak - before)

    before = resident()
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield result
    finally:
        done.set()
        thread.join()


def row(task: str, name: str, seconds: float, ratio: float | None, note: str) -> None:
    """Print one line of the table."""
    times = "" if ratio is None else f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x"
    print(f"| {task} | {name} | {1e3 * seconds:.1f} | {times} | {note} |", flush=True)


def compare_with_broadcast(n: int, d: int, k: int) -> None:
    """Compare semi-supervised k-means with the broadcast reference: same seed, same labels."""
    p = problem(n, d, k)
    rows = (p.unlabelled, p.labelled, p.targets, k)
    options = {"seed": 0, "n_init": 1, "max_iter": 10}
    ours = take_turns({"ours": partial(semi_supervised_kmeans, *rows, **options)}, 5)["ours"]
    plain = partial(kmeans.semi_supervised_kmeans, *rows, **options)
    theirs = take_turns({"plain": plain}, 1)["plain"]
    labels, inertia = theirs.value
    same = "labels equal" if torch.equal(labels, ours.value.labels) else "LABELS DIFFER"
    task = f"SS-k-means n={n} d={d} k={k}, 10 steps"
    row(task, "gcdbench", ours.seconds, 1.0, p.quality(ours.value.centers))
    note = f"{same}; inertia {inertia:.1f} and {ours.value.inertia:.1f} with labelled rows"
    row(task, "broadcast reference", theirs.seconds, theirs.seconds / ours.seconds, note)


def compare_with_libraries(n: int, d: int, k: int, *, restarts: int, rounds: int) -> None:
    """Compare ten steps of k-means with faiss and scikit-learn on the same rows."""
    p = problem(n, d, k)
    x = torch.cat([p.labelled, p.unlabelled])
    options = {"n_init": restarts, "max_iter": 10}

    def with_faiss(init_method: int) -> Tensor:
        room = {"min_points_per_centroid": 1, "max_points_per_centroid": n}
        how = {"niter": 10, "nredo": restarts, "seed": 1, "init_method": init_method}
        model = faiss.Kmeans(d, k, **how, **room)
        model.train(x.numpy())
        return torch.from_numpy(model.centroids)

    def with_scikit() -> Tensor:
        model = KMeans(k, n_init=restarts, max_iter=10, tol=0, random_state=0)
        return torch.from_numpy(model.fit(x.numpy()).cluster_centers_)

    def anchored(init: Any) -> Tensor:
        rows = (p.unlabelled, p.labelled, p.targets)
        return semi_supervised_kmeans(*rows, k, init=init, **options).centers

    def plain(init: Any) -> Tensor:
        return semi_supervised_kmeans(x, None, None, k, init=init, **options).centers

    competitors = {
        f"gcdbench {kind}{init}": partial(run, init)
        for kind, run in (("semi-supervised, ", anchored), ("plain, ", plain))
        for init in ("k-means++", "greedy", "means", "random")
    }
    competitors |= {
        "faiss.Kmeans, random": partial(with_faiss, faiss.ClusteringInitMethod_RANDOM),
        "faiss.Kmeans, k-means++": partial(with_faiss, faiss.ClusteringInitMethod_KMEANS_PLUS_PLUS),
    }
    if KMeans is not None:
        competitors["scikit-learn, greedy"] = with_scikit
    timings = take_turns(competitors, rounds)
    base = timings["gcdbench semi-supervised, k-means++"].seconds
    for name, timing in timings.items():
        task = f"k-means n={n} d={d} k={k}, {restarts} x 10 steps"
        row(task, name, timing.seconds, timing.seconds / base, p.quality(timing.value))


def compare_starts(n: int, d: int, k: int) -> None:
    """Show what restarts and kinds of start cost and give when run until the centres rest."""
    p = problem(n, d, k)
    rows = (p.unlabelled, p.labelled, p.targets, k)
    competitors = {
        f"{init}, {n_init} x": partial(semi_supervised_kmeans, *rows, n_init=n_init, init=init)
        for init in ("k-means++", "greedy", "means")
        for n_init in (1, 10)
    }
    timings = take_turns(competitors, 1)
    base = timings["k-means++, 10 x"].seconds
    for name, timing in timings.items():
        note = f"{p.quality(timing.value.centers)}, {timing.value.n_iter} steps"
        task = f"SS-k-means n={n} d={d} k={k}, to rest"
        row(task, f"gcdbench {name}", timing.seconds, timing.seconds / base, note)


def compare_assignment(n: int, d: int, k: int, rounds: int) -> None:
    """Compare the assignment with the bare product in it and the machine's best product."""
    p = problem(n, d, k)
    x, centers = p.unlabelled, p.unlabelled[:k].clone()
    square = torch.randn(2048, 2048)
    timings = take_turns(
        {
            "bare product": lambda: x @ centers.T,
            "gcdbench.assign": lambda: assign(x, centers),
            "2048^3 product": lambda: square @ square,
        },
        rounds,
    )
    bare, peak = timings["bare product"].seconds, timings["2048^3 product"].seconds
    rate = 2 * 2048**3 / peak
    for name in ("bare product", "gcdbench.assign"):
        seconds = timings[name].seconds
        share = 2 * len(x) * d * k / seconds / rate
        note = f"{share:.0%} of the measured {rate / 1e9:.0f} GFLOP/s"
        row(f"assignment n={len(x)} d={d} k={k}", name, seconds, seconds / bare, note)


def guesses(n: int, k: int, *, correct: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Draw labels and predictions that agree, up to names, on a share of the samples."""
    random = np.random.RandomState(0)
    labels, names = random.randint(0, k, n), random.permutation(k)
    hit = random.rand(n) < correct
    return np.where(hit, names[labels], random.randint(0, k, n)), labels


def compare_accuracy(n: int, k: int, rounds: int) -> None:
    """Compare All/Old/New with the loop reference: exactly equal numbers."""
    preds, labels = guesses(n, k)
    timings = take_turns(
        {
            "gcdbench": lambda: accuracies(preds=preds, labels=labels, num_old=k // 2),
            "loop reference": lambda: accuracy.accuracies(preds, labels, k // 2),
        },
        rounds,
    )
    ours, plain = timings["gcdbench"], timings["loop reference"]
    same = "exactly equal" if tuple(ours.value) == plain.value else "DIFFERENT"
    task = f"ACC n={n} k={k}"
    row(task, "gcdbench", ours.seconds, 1.0, f"All {ours.value.all:.4f}")
    row(task, "loop reference", plain.seconds, plain.seconds / ours.seconds, same)


def measure_memory(n: int, d: int, k: int) -> None:
    """Show how far the resident memory grows during a fit."""
    p = problem(n, d, k)
    rows = (p.unlabelled, p.labelled, p.targets, k)
    start = time.process_time()
    with memory_growth() as growth:
        semi_supervised_kmeans(*rows, n_init=2, max_iter=10)
    seconds = time.process_time() - start
    size = (p.unlabelled.nbytes + p.labelled.nbytes) / 1e6
    note = f"memory +{growth[0]:.0f} MB in addition to {size:.0f} MB of features"
    row(f"SS-k-means n={n} d={d} k={k}, 2 x 10 steps", "gcdbench", seconds, None, note)


def measure_sparse(n: int, k: int) -> None:
    """Show time and memory of a matching too large for a table."""
    preds, labels = guesses(n, k)
    start = time.process_time()
    with memory_growth() as growth:
        got = accuracies(preds=preds, labels=labels, num_old=k // 2)
    seconds = time.process_time() - start
    note = f"All {got.all:.4f}, memory +{growth[0]:.0f} MB"
    row(f"ACC n={n} k={k}", "gcdbench, sparse", seconds, None, note)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="sizes of CUB-C and DomainNet")
    parser.add_argument("--threads", type=int, default=1, help="threads for everybody")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    faiss.omp_set_num_threads(args.threads)
    print("| task | implementation | CPU ms | ratio | result |\n|---|---|---:|---:|---|")
    with threadpool_limits(args.threads):
        measure_sparse(100_000, 10_000)
        measure_memory(6_000, 768, 200)
        compare_assignment(6_000, 768, 200, 20)
        compare_accuracy(48_000, 200, 10)
        compare_accuracy(260_000, 200, 3)
        compare_with_libraries(6_000, 768, 200, restarts=1, rounds=2)
        if not args.full:
            compare_with_broadcast(2_000, 256, 60)
            return
        compare_with_broadcast(6_000, 768, 200)
        compare_with_libraries(6_000, 768, 200, restarts=10, rounds=1)
        compare_starts(6_000, 768, 200)
        compare_assignment(48_000, 768, 200, 5)
        compare_with_libraries(48_000, 768, 200, restarts=1, rounds=1)
        measure_memory(48_000, 768, 200)
        measure_memory(200_000, 768, 345)


if __name__ == "__main__":
    main()
