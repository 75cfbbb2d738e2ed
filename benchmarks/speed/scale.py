"""Time and peak memory of what follows a sweep of a million images and more.

Each measurement is a process of its own, whose peak memory includes the pages of mapped files:

- semi-supervised k-means of 1,000,000 x 768 half-precision features in a memory-mapped file into
  1,000 clusters, half of them labelled classes;
- the nearest neighbours of some of these rows among all of them;
- accuracy of 10 million predictions with 10,000 classes.

``--small`` takes a hundredth of the rows. The features are drawn around as many random directions
as there are clusters; a prediction is right with a given share and elsewhere otherwise.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
LABELLED = 0.1  # share of the rows of an old class


def main() -> None:
    """Print a table, a line per measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a hundredth of the rows")
    parser.add_argument("--only", choices=sorted(MEASURED), help="one measurement, in this process")
    parser.add_argument("--folder", type=Path, help="where the features are written")
    given = parser.parse_args()
    if given.only:
        MEASURED[given.only](given.small, given.folder)
        return
    print("| measured | CPU s | wall s | peak MB | result |")
    print("| --- | ---: | ---: | ---: | --- |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in MEASURED:
            command = [sys.executable, __file__, "--only", name, "--folder", given.folder or folder]
            command += ["--small"] if given.small else []
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            subprocess.run([str(word) for word in command], check=True, env=environment)


def report(title: str, began: tuple[float, float], result: str) -> None:
    """Print the line of a measurement."""
    cpu, wall = time.process_time() - began[0], time.perf_counter() - began[1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    print(f"| {title} | {cpu:.0f} | {wall:.0f} | {peak:,.0f} | {result} |", flush=True)


def now() -> tuple[float, float]:
    """Return CPU time and wall time."""
    return time.process_time(), time.perf_counter()


def write_features(folder: Path, rows: int, width: int, clusters: int) -> Path:
    """Write rows around random directions, row r of cluster r mod clusters."""
    path = folder / f"features-{rows}.f16"
    if path.exists():
        return path
    random = np.random.RandomState(0)
    centers = random.standard_normal((clusters, width)).astype(np.float32)
    with path.with_suffix(".part").open("wb") as file:
        for start in range(0, rows, 10_000):
            members = np.arange(start, min(start + 10_000, rows)) % clusters
            noise = random.standard_normal((len(members), width)).astype(np.float32)
            file.write((centers[members] + 2 * noise).astype(np.float16).tobytes())
    return path.with_suffix(".part").rename(path)


def mapped(path: Path, rows: int, width: int):
    """Return the features without reading them."""
    import torch

    size = rows * width
    return torch.from_file(str(path), size=size, dtype=torch.float16).view(rows, width)


def features(small: bool, folder: Path) -> None:
    """Write the features in a process of their own, so that nobody else's peak includes it."""
    began, (rows, width, k) = now(), sizes(small)
    path = write_features(folder, rows, width, k)
    report("features written", began, f"{rows:,} x {width}, {path.stat().st_size / 1e9:.2f} GB")


def sizes(small: bool) -> tuple[int, int, int]:
    """Return rows, width and clusters."""
    return (10_000, 768, 100) if small else (1_000_000, 768, 1_000)


def kmeans(small: bool, folder: Path) -> None:
    """Cluster the features; half of the clusters are classes with labelled rows."""
    import torch

    from gcdbench.ops.kmeans import rows as reading
    from gcdbench.ops.kmeans.api import semi_supervised_kmeans
    from gcdbench.ops.metrics import accuracies

    if small:
        reading.MOST = 2**20  # so that these are read in parts, too
    rows, width, k = sizes(small)
    stored = mapped(write_features(folder, rows, width, k), rows, width)
    classes = torch.arange(rows) % k
    known = (classes < k // 2) & (torch.arange(rows) // k < LABELLED * rows // k)
    first = int(known.nonzero().max()) + 1  # the labelled rows are among the first ones
    began = now()
    found = semi_supervised_kmeans(
        stored[first:],
        stored[:first][known[:first]],
        classes[:first][known[:first]],
        k,
        n_init=1,
        max_iter=3,
        normalise=True,
    )
    scored = accuracies(preds=found.labels, labels=classes[first:], num_old=k // 2, num_classes=k)
    title = f"semi-supervised k-means, {rows:,} x {width}, K = {k:,}, {found.n_iter} steps"
    report(title, began, f"accuracy {scored.all:.3f}")


def neighbours(small: bool, folder: Path) -> None:
    """Search the neighbours of a thousand rows among all of them."""
    from gcdbench.ops.kmeans import rows as reading
    from gcdbench.ops.neighbours import k_nearest

    if small:
        reading.MOST = 2**20
    rows, width, k = sizes(small)
    stored = mapped(write_features(folder, rows, width, k), rows, width)
    began = now()
    found = k_nearest(stored[:1000], stored, 10)
    own = (found.indices % k == found.indices[:, :1] % k).float().mean()
    report(f"10 neighbours of 1,000 among {rows:,} rows", began, f"of the own cluster {own:.3f}")


def accuracy(small: bool, folder: Path) -> None:
    """Score predictions of which most are right, others confused with a few classes or any."""
    from gcdbench.ops.metrics import accuracies

    number, k = (100_000, 1_000) if small else (10_000_000, 10_000)
    for title, right, confused in (("60 % right", 0.6, 0.3), ("10 % right", 0.1, 0.2)):
        random = np.random.RandomState(0)
        labels = random.randint(0, k, number)
        kind = random.random_sample(number)
        near = (labels + random.randint(1, 20, number)) % k
        preds = np.where(kind < right, labels, random.randint(0, k, number))
        preds = np.where((kind >= right) & (kind < right + confused), near, preds)
        preds = random.permutation(k)[preds]
        began = now()
        found = accuracies(preds=preds, labels=labels, num_old=k // 2, num_classes=k)
        named = f"accuracy of {number:,} predictions, K = {k:,}, {title}"
        report(named, began, f"{found.all:.3f} / {found.old:.3f} / {found.new:.3f}")


MEASURED = {
    "features": features,
    "kmeans": kmeans,
    "neighbours": neighbours,
    "accuracy": accuracy,
}

if __name__ == "__main__":
    main()
