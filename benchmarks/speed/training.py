"""Time training steps and evaluation on a ViT-B/16 against plain full forward passes.

    python benchmarks/speed/training.py            # about two minutes on a quiet core
    python benchmarks/speed/training.py --full     # more rounds, and how cost grows

The backbone is timm's vit_base_patch16_224 with random weights. Competitors take turns and each
shows its best CPU time. The reference in reference/vit.py sends every image through all blocks.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import timm
import torch
from evaluator import memory_growth, take_turns
from reference import vit as plain
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from gcdbench.core import registry
from gcdbench.core.method_spec import MethodSpec
from gcdbench.core.settings import BackboneConfig, TrainConfig
from gcdbench.data.images import ArrayImages
from gcdbench.data.problem import EvalSet, Problem
from gcdbench.experiment.plan import Request, make_cells
from gcdbench.nn.adapters import AddedRows
from gcdbench.nn.backbone import Backbone, Encoded, Patches, Tokens
from gcdbench.nn.load import load_backbone
from gcdbench.training.compose import Composed, compose
from gcdbench.training.features.trunk import pack, unpack
from gcdbench.training.loader import Loader
from gcdbench.training.method import Batch, Clock, Task, balanced_weights
from gcdbench.training.optimizer import make_optimizer

CLASSES, EPOCHS = 200, 200
BATCH = 128  # images of a step
SWEPT = 64  # images at a time in an evaluation with kept tokens, as on any CPU


def vit_b(seed: int = 0) -> Backbone:
    """Return a ViT-B/16 with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        vit = timm.create_model("vit_base_patch16_224", num_classes=0).eval()
    assert isinstance(vit, VisionTransformer)
    half = (0.5, 0.5, 0.5)
    return Backbone(vit, mean=half, std=half, image_size=224)


def task_of(images: int, classes: int = CLASSES) -> Task:
    """Return a task: a third of the images is labelled, with the first half of the classes."""
    labels = torch.arange(images) % (classes // 2)
    labels = torch.where(torch.arange(images) % 3 == 0, labels, -1)
    return Task(classes, classes // 2, labels, EPOCHS, 1, seed=0)


def model_of(method: str, task: Task, backbone: Backbone) -> Composed:
    """Build a method with its published heads."""
    model = compose(MethodSpec.parse(method), {}, task, backbone)
    model.train()
    backbone.eval()
    return model


def batch_of(task: Task, size: int, views: Any) -> Batch:
    """Return a batch of which half is labelled."""
    labelled, hidden = (task.labels != -1).nonzero()[:, 0], (task.labels == -1).nonzero()[:, 0]
    index = torch.cat([labelled[: size // 2], hidden[: size - size // 2]])
    return Batch(views, task.labels[index], index)


def say(*cells: object) -> None:
    """Print a row of a table."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def heading(*cells: str) -> None:
    """Print the head of a table."""
    print()
    say(*cells)
    say(*("---" if number == 0 else "---:" for number in range(len(cells))))


def milliseconds(seconds: float) -> str:
    """Write a time with three digits or all digits before the point."""
    return f"{1e3 * seconds:.3g}" if seconds < 1 else f"{1e3 * seconds:.0f}"


def compare_evaluation(backbone: Backbone, images: Tensor, rounds: int) -> dict[str, float]:
    """Compare features by a full forward pass, by ours, and from kept tokens."""
    normalised = backbone.normalise(images)
    kept = pack(backbone, images, "tokens").repeat(SWEPT // len(images), 1, 1)

    @torch.no_grad()
    def ours(views: Any) -> Tensor:
        return backbone(views).cls

    turns: dict[str, Callable[[], Tensor]] = {
        f"plain, {len(images)} at a time": lambda: plain.features(backbone.vit, normalised),
        f"ours, {len(images)} at a time": lambda: ours(images),
        f"ours, tokens kept, {SWEPT} at a time": lambda: ours(unpack(backbone, kept, "tokens")),
    }
    timings = take_turns(turns, rounds)
    heading("evaluation", "CPU ms per image", "ratio", "features differ by")
    base, each = next(iter(timings.values())), []
    for name, timing in timings.items():
        gap = float((timing.value[: len(images)] - base.value).abs().max())
        each.append(timing.seconds / len(timing.value))
        say(name, milliseconds(each[-1]), f"{each[0] / each[-1]:.2f}x", f"{gap:.1e}")
    return {"trunk": each[1] - each[2], "tail": each[2]}


def compare_step(backbone: Backbone, images: Tensor, rounds: int) -> dict[str, float]:
    """Compare the gradients of a SimGCD step, and the time to get them.

    Gradients are compared on a few images. What kept views cost is timed on a batch of 128, because
    the heads have as many weights whatever the batch.
    """
    size = len(images) // 2
    task = task_of(6 * BATCH)
    model = model_of("simgcd", task, backbone)
    method: Any = model.method
    trained = [p for p in model.parameters() if p.requires_grad]
    clock, views = Clock(EPOCHS - 1, 0, EPOCHS, 1, 0), images.unflatten(0, (2, -1))
    fresh, normalised = batch_of(task, size, views), backbone.normalise(images)
    packed = pack(backbone, images, "tokens")
    few = replace(fresh, views=unpack(backbone, packed, "tokens"))
    packed = packed.repeat(2 * BATCH // len(images), 1, 1)
    many = batch_of(task, BATCH, unpack(backbone, packed, "tokens"))

    def reference() -> tuple[Tensor, ...]:
        parts = backbone.vit, method.projector, method.classifier.weight
        loss = plain.simgcd_loss(*parts, normalised, fresh.labels, teacher_temp=0.04)
        return torch.autograd.grad(loss, trained)

    def ours(batch: Batch) -> tuple[Tensor, ...]:
        return torch.autograd.grad(model.step(batch, clock).loss, trained)

    turns: dict[str, tuple[int, Callable[[], Any]]] = {
        f"plain, {size} images": (size, reference),
        f"ours, fresh views, {size} images": (size, lambda: ours(fresh)),
        f"ours, kept views, {size} images": (size, lambda: ours(few)),
        f"ours, kept views, {BATCH} images": (BATCH, lambda: ours(many)),
    }
    timings = take_turns({name: run for name, (_, run) in turns.items()}, rounds)
    heading("SimGCD step", "CPU ms per view", "ratio", "gradients differ by, of their largest")
    base, first = next(iter(timings.values())), 0.0
    for (name, (number, _)), timing in zip(turns.items(), timings.values(), strict=True):
        each = timing.seconds / (2 * number)
        first = first or each
        pairs = zip(timing.value, base.value, strict=True)
        gap = max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-12)) for a, b in pairs)
        shown = f"{gap:.1e}" if number == size else ""
        say(name, milliseconds(each), f"{first / each:.2f}x", shown)
    tokens: Any = many.views

    def last_block() -> Any:
        inside = [p for p in backbone.parameters() if p.requires_grad]
        return torch.autograd.grad(backbone(tokens).cls.square().sum(), inside)

    seconds = take_turns({"tail": last_block}, rounds)["tail"].seconds
    return {"last block": seconds / (2 * BATCH)}


class Heads(Backbone):
    """A backbone whose features are given, so that only heads and losses take time."""

    def encode(self, number: int) -> Encoded:
        """Return features that ask for gradients as the last block's do."""
        generator = torch.Generator().manual_seed(number)
        cls = torch.randn(number, self.dim, generator=generator, requires_grad=True)
        return Encoded(cls, {block: cls.detach() for block in self.tapped})

    def trunk(self, patches: Tensor, taps: Any = None, *, images: int | None = None) -> Tokens:
        """Pass over the frozen blocks: tapped features are random, attention is uniform."""
        shown, number = patches[:images], patches.shape[1]
        if self._recording is not None:
            maps = torch.full((len(shown), 1, self.num_heads, number), 1 / number)
            self._recording.begin(shown, maps)
        found = self.encode(len(patches)).taps
        for block, cls in found.items():
            self._tapped(block, cls[:images])
        return Tokens(patches, found)

    def tail(self, tokens: Tokens) -> Encoded:
        """Pass over the trained blocks."""
        rows, x = AddedRows(self._active(), 1), torch.zeros(1, 1, self.dim)
        for block in range(1, self.num_blocks + 1):
            x = rows.enter(x, block)
        many = len(tokens) * rows.number
        added = self.encode(many).cls.unflatten(0, (len(tokens), -1)) if many else None
        return replace(self.encode(len(tokens)), taps=tokens.taps, added=added)


def heads_only() -> Heads:
    """Return a ViT-B/16 that computes nothing."""
    half = (0.5, 0.5, 0.5)
    return Heads(vit_b().vit, mean=half, std=half, image_size=224)


@contextmanager
def counted_rows(backbone: Any) -> Iterator[list[int]]:
    """Count the rows that a step sends through the last block."""
    rows: list[int] = []
    tail = backbone.tail

    def counted(tokens: Tokens) -> Encoded:
        rows.append(len(tokens))
        return tail(tokens)

    backbone.tail = counted
    try:
        yield rows
    finally:
        del backbone.tail


def heads_and_losses(method: str, backbone: Heads, classes: int, rounds: int) -> tuple[float, int]:
    """Return the seconds of a step outside a new backbone, and the views that it encodes."""
    task = task_of(6 * BATCH, classes)
    model = model_of(method, task, backbone)
    optimizer = make_optimizer(model, TrainConfig())
    patches = torch.zeros(1, 196, backbone.dim).expand(2 * BATCH, -1, -1)  # takes no memory
    batch = batch_of(task, BATCH, Patches(patches))

    def run() -> None:
        clock = Clock(EPOCHS // 2, 0, EPOCHS, 1, 0)
        step = model.step(batch, clock)
        optimizer.zero_grad()
        step.loss.backward()
        optimizer.step()
        with torch.no_grad():
            model.after_step(batch, step, clock)

    with counted_rows(backbone) as rows:
        run()
        views = sum(rows)
    return take_turns({"step": run}, rounds)["step"].seconds, views


def data_time(number: int = 64) -> float:
    """Return the seconds to cut one view out of an image that is in memory."""
    pixels = np.random.RandomState(0).randint(0, 255, (number, 256, 256, 3), dtype=np.uint8)
    labels = np.arange(number) % 4
    problem = Problem(
        name="noise",
        classes=tuple("abcd"),
        num_old=2,
        images=ArrayImages(pixels, [str(row) for row in range(number)]),
        labels=labels,
        labelled=np.flatnonzero(labels < 2),
        unlabelled=np.flatnonzero(labels >= 2),
        sets={"all": EvalSet(np.arange(number), "source")},
    )
    loader = Loader(problem, size=224, batch_size=number)

    def run() -> None:
        for batch in loader.epoch(0, balanced_weights(loader.labels)):
            batch.to(torch.device("cpu"))

    return take_turns({"data": run}, 3)["data"].seconds / (2 * number)


def table_by_method(methods: list[str], rates: dict[str, float], rounds: int) -> None:
    """Show what a step of 128 images is made of, per method."""
    heading(f"step of {BATCH} images, CPU ms", "data", "trunk", "last block", "heads + losses", "%")
    for method in methods:
        heads, views = heads_and_losses(method, heads_only(), CLASSES, rounds)
        data, trunk = 2 * BATCH * rates["data"], views * rates["trunk"]
        last = views * rates["last block"]
        share = f"{heads / (data + trunk + last + heads):.1%}"
        say(method, *map(milliseconds, (data, trunk, last, heads)), share)


class Cost(NamedTuple):
    """What a piece of work takes."""

    seconds: float  # of CPU time
    megabytes: float  # by which the process grows


def alone(work: Callable[..., Cost], *args: Any) -> Cost:
    """Do some work in a process of its own: memory that was used before would hide its growth."""
    with multiprocessing.get_context("spawn").Pool(1, torch.set_num_threads, (1,)) as pool:
        return pool.apply(work, args)


def step_cost(method: str, classes: int, rounds: int) -> Cost:
    """Return what the heads and losses of a step take."""
    backbone = heads_only()
    with memory_growth() as growth:
        seconds, _ = heads_and_losses(method, backbone, classes, rounds)
    return Cost(seconds, growth[0])


def sweep_cost(images: int) -> Cost:
    """Return what features of kept tokens of the embedded backbone take, tokens included."""
    backbone = load_backbone(BackboneConfig(name="embedded"))
    one = pack(backbone, torch.rand(256, 3, 64, 64), "tokens")
    with torch.no_grad(), memory_growth() as growth:
        kept = one.repeat(-(-images // 256), 1, 1)[:images]
        start = time.process_time()
        torch.cat([backbone(unpack(backbone, part, "tokens")).cls for part in kept.split(256)])
        seconds = time.process_time() - start
    return Cost(seconds, growth[0])


def plan_cost(number: int) -> Cost:
    """Return what planning cells and making their keys takes."""
    with memory_growth() as growth:
        start = time.process_time()
        cells = make_cells(Request("drawshift", ("simgcd",), ("line+solid",), tuple(range(number))))
        assert len({cell.key for cell in cells}) == number
        seconds = time.process_time() - start
    return Cost(seconds, growth[0])


def show_growth(rounds: int) -> None:
    """Show time and memory against the number of classes, images and cells."""
    heading("classes", "SimGCD heads + losses, CPU ms", "MB", "HiLo, CPU ms", "MB")
    for classes in (50, 200, 1000):
        costs = [alone(step_cost, method, classes, rounds) for method in ("simgcd", "hilo")]
        say(classes, *(x for c in costs for x in (milliseconds(c.seconds), f"{c.megabytes:.0f}")))
    for name, title, work, numbers in (
        ("images", "embedded sweep", sweep_cost, (1_000, 5_000, 20_000, 50_000)),
        ("cells", "plan", plan_cost, (10, 100, 1_000)),
    ):
        heading(name, f"{title}, CPU s", "CPU ms each", "MB")
        for number in numbers:
            cost = alone(work, number)
            each = milliseconds(cost.seconds / number)
            say(f"{number:,}", f"{cost.seconds:.2f}", each, f"{cost.megabytes:.0f}")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="more rounds, and how cost grows")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--methods", nargs="+", default=sorted(registry.available("method")))
    parser.add_argument("--images", type=int, default=16, help="views in the comparisons")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rounds, backbone = (3 if args.full else 1), vit_b()
    images = torch.rand(args.images, 3, 224, 224, generator=torch.Generator().manual_seed(0))

    rates = compare_evaluation(backbone, images, rounds + 1)
    rates |= {**compare_step(backbone, images, rounds), "data": data_time()}
    table_by_method(args.methods, rates, rounds)
    if args.full:
        show_growth(rounds)


if __name__ == "__main__":
    main()
