"""Launches and synchronisations of one training step, counted on the pretend CUDA device.

No GPU is needed: the tests' device (tests/device/pretend) runs the step of every method and of
every technique on SimGCD, on a ViT of 12 blocks, and counts. ``--lines`` says which source lines
make the host wait. Fused attention is counted by its plain steps, so a GPU launches a little less.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from device.pretend.environment import LIBRARIES, build, device_environment

STEPS = 2


def main() -> None:
    """Print the table, in a process that finds the device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("specs", nargs="*", help="default: all methods, all techniques on SimGCD")
    parser.add_argument("--lines", action="store_true", help="source lines that wait")
    arguments = parser.parse_args()
    if LIBRARIES["runtime.c"] not in os.environ.get("LD_PRELOAD", ""):
        folder = Path(tempfile.mkdtemp())
        build(folder)
        environment = device_environment(folder)
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    print_table(arguments.specs or default_specs(), lines=arguments.lines)


def default_specs() -> list[str]:
    """Return all methods, and SimGCD with every technique."""
    from gcdbench.core import registry

    techniques = [f"simgcd+{name}" for name in registry.available("technique")]
    return [*registry.available("method"), *techniques]


def print_table(specs: list[str], *, lines: bool) -> None:
    """Print what a step of each spec is made of."""
    import torch
    from device.steps import count_steps

    from gcdbench.core.method_spec import MethodSpec

    torch.set_num_threads(1)
    print("| step of 64 images | launches | synchronisations | KB to the device | KB back |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for spec in specs:
        counts = count_steps(MethodSpec.parse(spec), steps=STEPS)
        launches, waits = counts.launches / STEPS, sum(counts.syncs.values()) / STEPS
        copied = [counts.copied[way] / STEPS / 1000 for way in ("cpu to cuda", "cuda to cpu")]
        print(f"| {spec} | {launches:.0f} | {waits:g} | {copied[0]:.0f} | {copied[1]:.1f} |")
        for (kind, line), number in counts.syncs.most_common() if lines else ():
            print(f"|   {number / STEPS:g} x {kind}, {line} | | | | |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
