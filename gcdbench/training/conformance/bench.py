"""A method on a toy problem, with all inputs of a step: what the checks run on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from gcdbench.core import registry
from gcdbench.core.config import build
from gcdbench.core.method_spec import MethodSpec
from gcdbench.core.settings import TrainConfig
from gcdbench.data.views import Views
from gcdbench.nn.backbone import Backbone, Patches, State
from gcdbench.nn.parallel import SingleProcess
from gcdbench.ops.labels import UNLABELLED
from gcdbench.training.batch import Batch, as_views
from gcdbench.training.compose import Composed, compose
from gcdbench.training.features.trunk import Trunk
from gcdbench.training.method import Clock, FitContext, PoolFeatures, Step, Task, seeded
from gcdbench.training.trainer import Snapshot, StepEvent, _Loop, train
from gcdbench.training.weights import trained_state

SIZE, CLASSES, OLD, POOL, EPOCHS, STEPS = 32, 6, 4, 48, 4, 3
PATCH, DEPTH = 8, 3  # of the tiny backbone


class ContractError(AssertionError):
    """Raised if a method breaks the contract; the message says how, and the remedy."""


def tiny_backbone(seed: int = 0, train_blocks: int = 1) -> Backbone:
    """Return a small random vision transformer: 3 blocks, 16 patches of 8 pixels, width 48."""
    with torch.random.fork_rng(devices=[]):  # timm draws initial weights from the global generator
        vit = VisionTransformer(
            img_size=SIZE, patch_size=PATCH, embed_dim=48, depth=DEPTH, num_heads=3, num_classes=0
        )
    generator = seeded(seed, "tiny backbone")
    with torch.no_grad():
        for name, parameter in vit.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.1, generator=generator)
            elif "norm" in name and name.endswith("weight"):
                parameter.fill_(1.0)
            else:
                parameter.zero_()
    mean = (0.5,) * 3
    return Backbone(vit.eval(), mean=mean, std=mean, image_size=SIZE, train_blocks=train_blocks)


@dataclass
class Bench:
    """A method on a toy problem, with all inputs of a step and of a whole run.

    With ``banked``, batches hold precomputed views, as with ``train.view_bank``.
    """

    spec: MethodSpec
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seed: int = 0
    banked: bool = False

    def __post_init__(self) -> None:
        generator = seeded(self.seed, "toy")
        labels = torch.arange(POOL) % CLASSES
        labels[(torch.arange(POOL) >= POOL // 2) | (labels >= OLD)] = UNLABELLED
        self.labels = labels
        # one flat colour pattern per class, so that there is something to learn
        pattern = torch.rand(CLASSES, 3, 4, 4, generator=generator).repeat_interleave(8, 2)
        pattern = pattern.repeat_interleave(8, 3)[torch.arange(POOL) % CLASSES]
        self.images = (0.7 * pattern + 0.3 * torch.rand(pattern.shape, generator=generator)).clamp(
            0, 1
        )
        names = tuple(f"class {number}" for number in range(OLD))
        self.task = Task(CLASSES, OLD, labels, EPOCHS, STEPS, self.seed, old_names=names)
        self.needs = registry.get("method", self.spec.method).constants
        backbone = tiny_backbone(self.seed, min(self.needs.get("train_blocks", 1), DEPTH))
        self.trunk = Trunk(backbone, torch.device("cpu"), owner="bench")
        self.model: Composed = compose(self.spec, self.configs, self.task, backbone)
        self.context = FitContext(
            self.compute_features,
            lambda *p: seeded(self.seed, *p),
            sweep_views=self.compute_views,
        )
        self.number = 0
        self.loop = self.new_loop()

    @classmethod
    def of(cls, text: str) -> Bench:
        """Return a bench for a method as it is written on the command line: ``simgcd+mcc``."""
        return cls(MethodSpec.parse(text))

    @property
    def config(self) -> TrainConfig:
        """The settings of the training loop: the method's own, with a common rate and length."""
        given = {**self.needs.get("train_defaults", {}), "lr": 0.01, "epochs": EPOCHS}
        return build(TrainConfig, {**given, "warmup_epochs": 0}, "train_defaults")

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of single steps."""
        return self.loop.optimizer

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of views that the method declares."""
        method = self.model.method
        return getattr(method.config, "views", type(method).views)

    def new_loop(self) -> _Loop:
        """Return the state of a training loop for the model as it is."""
        device = torch.device("cpu")
        return _Loop(self.model, self.config, STEPS, device, SingleProcess())

    def clock(self) -> Clock:
        """Return where training stands."""
        return Clock(self.number // STEPS, self.number, EPOCHS, STEPS, self.seed)

    def batch(self, rows: Tensor, purpose: str = "views") -> Batch:
        """Return noisy views of the rows of the pool, of the kinds that the method declares."""
        generator = seeded(self.seed, purpose, self.number)
        noise = torch.rand(len(self.kinds), POOL, 3, SIZE, SIZE, generator=generator)[:, rows]
        views = (0.9 * self.images[rows] + 0.1 * noise).clamp(0, 1)
        sides = [Views(SIZE, patch=PATCH).side(kind) for kind in self.kinds]
        if self.banked or set(sides) != {SIZE}:
            sized = [_resized(view, side) for view, side in zip(views, sides, strict=True)]
            return Batch(as_views([self._kept(v) for v in sized]), self.labels[rows], rows)
        return Batch(views, self.labels[rows], rows)

    @torch.no_grad()
    def _kept(self, images: Tensor) -> State:
        """Return images as a batch would hold them."""
        backbone, depth = self.model.backbone, self.model.cache_depth
        if not self.banked or depth == "images":
            return images
        patches = backbone.patches(images)
        if depth == "patches":
            return Patches(patches)
        return backbone.traced(patches) if depth == "traced" else backbone.trunk(patches)

    def mixed_rows(self) -> Tensor:
        """Return the rows of a typical batch: labelled and unlabelled images."""
        return torch.cat([torch.arange(0, 12), torch.arange(POOL - 12, POOL)])

    def begin(self) -> None:
        """Start training as the trainer does."""
        self.model.begin_fit(self.context)
        self.loop = self.new_loop()  # it may have built modules
        self.model.begin_epoch(self.clock(), self.context)
        self.train_mode()

    def train_mode(self) -> None:
        """Put the model into the mode in which steps are made."""
        self.model.train()
        self.model.backbone.eval()

    def loss(self, rows: Tensor | None = None) -> Step:
        """Compute a step without updating anything."""
        return self.model.step(
            self.batch(self.mixed_rows() if rows is None else rows), self.clock()
        )

    def update(
        self, rows: Tensor | None = None, *, what: str = "a usual batch", half: bool = False
    ) -> Step:
        """Make one training step, with mixed precision if ``half``; ``what`` names the batch."""
        batch, clock = self.batch(self.mixed_rows() if rows is None else rows), self.clock()
        if self.model.has_phases:
            self.loop.set_learning_rate(clock.epoch, clock)
        with torch.autocast("cpu", torch.float16, enabled=half):
            step = self.model.step(batch, clock)
        require_finite(step, what)
        self.optimizer.zero_grad()
        step.loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            self.model.after_step(batch, step, clock)
        self.number += 1
        return step

    def run(
        self,
        resume: Snapshot | None = None,
        on_step: Callable[[StepEvent], None] = lambda event: None,
    ) -> dict[str, Tensor]:
        """Train as the trainer does, to the end, and return what was trained."""
        train(
            self.model,
            _Rows(self),
            self.config,
            self.context,
            seed=self.seed,
            device=torch.device("cpu"),
            resume=resume,
            on_step=on_step,
        )
        return {name: value.clone() for name, value in trained_state(self.model).items()}

    def has_changed_frozen(self) -> bool:
        """Tell whether the frozen part of the backbone is not what was loaded."""
        return self.trunk.is_changed(self.model.backbone)

    @torch.no_grad()
    def compute_features(self) -> PoolFeatures:
        """Return features of the pool under the current weights, through the method."""
        encoded = self.model.encode(self._centre())
        rows = torch.arange(POOL)
        labelled, unlabelled = rows[self.labels >= 0], rows[self.labels < 0]
        return PoolFeatures(encoded.cls, encoded.taps, self.labels, labelled, unlabelled, rows)

    @torch.no_grad()
    def compute_views(self, kind: str, number: int, *purpose: object) -> Tensor:
        """Return features of noisy views of the pool."""
        generator = seeded(self.seed, "sweep", kind, *purpose)
        noise = torch.rand(number, *self.images.shape, generator=generator)
        views = (0.9 * self.images + 0.1 * noise).clamp(0, 1).flatten(0, 1)
        side = Views(SIZE, patch=PATCH).side(kind)
        return self.model.encode(_resized(views, side)).cls.unflatten(0, (number, -1))

    def _centre(self) -> State:
        """Return the pool as a sweep passes it to the method."""
        reads_images = self.model.reads_images or not self.banked
        backbone = self.model.backbone
        return self.images if reads_images else backbone.trunk(backbone.patches(self.images))


class _Rows:
    """Batches of a bench, each a function of its epoch and number alone."""

    steps_per_epoch = STEPS

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def epoch(self, epoch: int, weights: Tensor) -> Iterator[Batch]:
        """Yield the batches of an epoch."""
        generator = seeded(self.bench.seed, "rows", epoch)
        for number in range(STEPS):
            rows = torch.multinomial(weights, 24, generator=generator, replacement=True)
            self.bench.number = epoch * STEPS + number
            yield self.bench.batch(rows)


def _resized(images: Tensor, side: int) -> Tensor:
    return images if images.shape[-1] == side else F.interpolate(images, (side, side), mode="area")


def require_finite(step: Step, what: str) -> None:
    """Raise unless a step has terms and all of them are finite scalars."""
    if not step.terms:
        raise ContractError(f"{what} gives no loss terms")
    for name, term in step.terms.items():
        if term.ndim or not term.isfinite():
            value = "a tensor" if term.ndim else f"{term.item()}"
            raise ContractError(f"{what} gives term {name!r} = {value}; expected a finite scalar")


def require_finite_gradients(bench: Bench, what: str) -> None:
    """Raise if a gradient is not finite."""
    for name, parameter in bench.model.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            raise ContractError(f"{what} gives a gradient of {name} that is not finite")
