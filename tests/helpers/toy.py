"""A suite of cells that take a second: drawn squares, a tiny random transformer, a few steps.

What is made here lies on disk, so that other processes can run the same cells.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file

from gcdbench.experiment.outcome import Outcome
from gcdbench.experiment.plan import Cell, Request, make_cells
from gcdbench.runner.launchers.local import LocalLauncher
from gcdbench.runner.options import RunOptions
from gcdbench.runner.stop import Stop

EPOCHS, STEPS, BATCH = 3, 3, 8
CLASSES = ("circle", "cross", "ring", "square")
SMALL_HEADS = {
    "gcd": {"hidden_dim": 32, "out_dim": 64},
    "simgcd": {"hidden_dim": 32, "projection_dim": 16},
    "hilo": {"hidden_dim": 32, "projection_dim": 16, "critic_dim": 16},
}


@dataclass(frozen=True)
class Toy:
    """A suite file, and where its cells are recorded."""

    suite: Path
    results: Path

    def request(self, *methods: str, **more: Any) -> Request:
        """Ask for cells; ``train`` are settings of the training loop."""
        train = more.pop("train", {})
        given = {"train": train} if train else {}
        return Request(str(self.suite), methods or ("simgcd",), assignments=given, **more)

    def cells(self, *methods: str, **more: Any) -> list[Cell]:
        return make_cells(self.request(*methods, **more))

    def cell(self, method: str = "simgcd", **more: Any) -> Cell:
        return self.cells(method, datasets=("toy",), seeds=(0,), **more)[0]

    def run(self, cells: list[Cell], **more: Any) -> Outcome:
        """Run cells in this process."""
        return run_cells(cells, self.results, **more)

    def elsewhere(self, name: str) -> Toy:
        """Return the same suite with another results folder."""
        return dataclasses.replace(self, results=self.results.parent / name)

    def command(self, verb: str, *arguments: str) -> list[str]:
        """Return a command line that speaks of this suite and results folder."""
        module = [sys.executable, "-m", "gcdbench", verb]
        return [*module, "--suite", str(self.suite), "--results", str(self.results), *arguments]

    def start(self, verb: str, *arguments: str, **more: Any) -> subprocess.Popen[str]:
        """Start a command in a process of its own."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **more.pop("env", {})}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = more.pop("args", None) or self.command(verb, *arguments)
        return subprocess.Popen(command, env=environment, **{**pipes, **more})


def run_cells(
    cells: list[Cell], results: Path, *, stop: Stop | None = None, **options: Any
) -> Outcome:
    """Run cells in this process, on the CPU."""
    return LocalLauncher(stop).run(cells, RunOptions(results, device="cpu", **options))


def make_toy(folder: Path, datasets: tuple[str, ...] = ("toy",)) -> Toy:
    """Write pictures, weights and a suite below a folder."""
    torch.set_num_threads(1)  # more threads cost more than they bring to work as small as this
    _draw(folder / "pictures")
    weights = folder / "tiny.safetensors"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        save_file(timm.create_model("test_vit", num_classes=0).state_dict(), weights)
    source = {
        "source": "folder",
        "config": {"path": str(folder / "pictures"), "source": "ink", "shifted": ["chalk"]},
    }
    suite = {
        "seeds": [0],
        "backbone": {"name": "test_vit", "weights": str(weights)},
        "train": {
            "epochs": EPOCHS,
            "batch_size": BATCH,
            "draws_per_epoch": STEPS * BATCH,
            "view_bank": 2,
            "lr": 0.01,
        },
        "methods": {name: {"config": config} for name, config in SMALL_HEADS.items()},
        "datasets": dict.fromkeys(datasets, source),
    }
    path = folder / "toy.yaml"
    path.write_text(yaml.safe_dump(suite, sort_keys=False), encoding="utf-8")
    return Toy(path, folder / "results")


def _draw(folder: Path, each: int = 3) -> None:
    """Draw four shapes in two domains: dark on light and light on dark, at random places."""
    rng = np.random.RandomState(0)
    y, x = np.mgrid[:32, :32]
    for domain in ("ink", "chalk"):
        for name in CLASSES:
            for number in range(each):
                cy, cx = rng.randint(12, 20, 2)
                shape = _shape(name, y - cy, x - cx)
                grey = np.where(shape, 30, 220) if domain == "ink" else np.where(shape, 250, 60)
                pixels = np.clip(grey[..., None] + rng.randint(-25, 26, (32, 32, 3)), 0, 255)
                path = folder / domain / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(path)


def _shape(name: str, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    radius = np.hypot(y, x)
    if name == "circle":
        return radius < 7
    if name == "ring":
        return (radius < 9) & (radius > 6)
    if name == "cross":
        return (abs(y) < 2) | (abs(x) < 2)
    return np.maximum(abs(y), abs(x)) < 6
