"""Time the corruptions against the reference package or a plain implementation.

    python benchmarks/speed/corruptions.py --reference-python other-venv/bin/python
    python benchmarks/speed/corruptions.py     # against benchmarks/speed/reference/corruptions.py

The first form needs a Python that has the package imagecorruptions; it breaks on current numpy and
scikit-image (1.1.2 works with numpy 1.23, scipy 1.10, scikit-image 0.20). Both sides take turns
over the 45 variants, three calls on one thread each time, so that a busy machine affects both
equally. The table has median CPU times; the sums are given for the median and for the best time,
which a busy machine affects least.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
os.environ.update(ONE_THREAD)  # numpy reads them when it is imported

import numpy as np

from gcdbench.data.corruptions import CORRUPTIONS, SEVERITIES, corrupt

WORKER = Path(__file__).parent / "reference" / "corruptions.py"
CALLS = 3
Competitor = Callable[[str, int], list[float]]  # runs a variant, returns CPU milliseconds


def photograph(size: int) -> np.ndarray:
    """Make an image with the soft shades, the grain and the blown-out parts of a photograph."""
    random = np.random.RandomState(0)
    y, x = np.mgrid[:size, :size] / size
    waves = [np.sin(3 * x + 5 * k * y) + np.cos(7 * k * x - 2 * y) for k in (1.0, 1.3, 1.7)]
    image = 140 + 65 * np.stack(waves, axis=-1) + random.normal(0, 3, (size, size, 3))
    return np.clip(image, 0, 255).astype(np.uint8)


@contextmanager
def reference(image: np.ndarray, python: str | None) -> Iterator[Competitor]:
    """Start the reference as a process of its own, which times itself."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "image.npy"
        np.save(file, image)
        command = [python or sys.executable, "-W", "ignore", str(WORKER), str(file)]
        process = subprocess.Popen(
            command + ["--package"] * (python is not None),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with process:
            yield lambda *variant: [ask(process, *variant) for _ in range(CALLS)]


def ask(process: subprocess.Popen[str], corruption: str, severity: int) -> float:
    """Have a worker run a variant."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{corruption} {severity}\n")
    process.stdin.flush()
    return int(process.stdout.readline()) / 1e6


def here(image: np.ndarray) -> Competitor:
    """Run a variant with a new key every time."""
    keys = itertools.count()

    def timed(corruption: str, severity: int) -> float:
        start = time.process_time_ns()
        corrupt(image, corruption, severity, key=next(keys))
        return (time.process_time_ns() - start) / 1e6

    return lambda *variant: [timed(*variant) for _ in range(CALLS)]


def measure(ours: Competitor, theirs: Competitor, repeats: int) -> np.ndarray:
    """Give milliseconds (ours and theirs, corruption, severity, call)."""
    times = np.zeros((repeats + 1, 2, len(CORRUPTIONS), len(SEVERITIES), CALLS))
    for turn in times:
        for i, corruption in enumerate(CORRUPTIONS):
            for j, severity in enumerate(SEVERITIES):
                turn[:, i, j] = ours(corruption, severity), theirs(corruption, severity)
    return np.concatenate(times[1:], axis=-1)  # the first turn fills caches


def main() -> None:
    """Print a table and the three figures that count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference-python", help="a Python that has imagecorruptions")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    image = photograph(args.size)
    with reference(image, args.reference_python) as theirs:
        times = measure(here(image), theirs, args.repeats)
    name = "imagecorruptions" if args.reference_python else "plain implementation"
    print(f"CPU ms at {args.size} px: gcdbench / {name} (times faster), severities 1 to 5")
    for corruption, ours, other in zip(CORRUPTIONS, *np.median(times, axis=-1), strict=True):
        pairs = zip(ours, other, strict=True)
        print(f"{corruption:15}", *(f"{a:5.2f} /{b:6.1f} ({b / a:4.1f}x)" for a, b in pairs))
    summarise("median", np.median(times, axis=-1))
    summarise("best", times.min(axis=-1))


def summarise(statistic: str, times: np.ndarray) -> None:
    """Print the three figures that count."""
    ours, other = times
    zoom = CORRUPTIONS.index("zoom_blur")
    print(
        f"{statistic:6} all 45 variants {ours.sum():.0f} / {other.sum():.0f} ms",
        f"({other.sum() / ours.sum():.1f}x);",
        f"zoom blur {other[zoom].sum() / ours[zoom].sum():.1f}x;",
        f"slowest gain {(other / ours).min():.1f}x",
    )


if __name__ == "__main__":
    main()
