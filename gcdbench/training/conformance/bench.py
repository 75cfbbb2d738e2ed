"""A method on a toy problem, with all inputs of a step: what the checks run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from gcdbench.core.method_spec import MethodSpec
from gcdbench.core.settings import TrainConfig
from gcdbench.nn.backbone import Backbone
from gcdbench.ops.labels import UNLABELLED
from gcdbench.training.compose import Composed, compose
from gcdbench.training.features.trunk import Trunk
from gcdbench.training.method import Batch, Clock, FitContext, PoolFeatures, Step, Task, seeded
from gcdbench.training.optimizer import make_optimizer

SIZE, CLASSES, OLD, POOL, EPOCHS, STEPS = 32, 6, 4, 48, 4, 3


class ContractError(AssertionError):
    """Raised if a method breaks the contract; the message says how, and the remedy."""


def tiny_backbone(seed: int = 0) -> Backbone:
    """Return a small random vision transformer: 3 blocks, 16 patches of 8 pixels, width 48."""
    with torch.random.fork_rng(devices=[]):  # timm draws initial weights from the global generator
        vit = VisionTransformer(
            img_size=SIZE, patch_size=8, embed_dim=48, depth=3, num_heads=3, num_classes=0
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
    return Backbone(vit.eval(), mean=(0.5,) * 3, std=(0.5,) * 3, image_size=SIZE)


@dataclass
class Bench:
    """A method on a toy problem, with all inputs of a step."""

    spec: MethodSpec
    configs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seed: int = 0

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
        self.task = Task(CLASSES, OLD, labels, EPOCHS, STEPS, self.seed)
        backbone = tiny_backbone(self.seed)
        self.trunk = Trunk(backbone, torch.device("cpu"), owner="bench")
        self.model: Composed = compose(self.spec, self.configs, self.task, backbone)
        self.context = FitContext(self.compute_features, lambda *p: seeded(self.seed, *p))
        self.optimizer = make_optimizer(self.model, TrainConfig(lr=0.01))
        self.number = 0

    @classmethod
    def of(cls, text: str) -> Bench:
        """Return a bench for a method as it is written on the command line: ``simgcd+mcc``."""
        return cls(MethodSpec.parse(text))

    def clock(self) -> Clock:
        """Return where training stands."""
        return Clock(self.number // STEPS, self.number, EPOCHS, STEPS, self.seed)

    def batch(self, rows: Tensor, purpose: str = "views") -> Batch:
        """Return two noisy views of the rows of the pool."""
        generator = seeded(self.seed, purpose, self.number)
        noise = torch.rand(2, POOL, 3, SIZE, SIZE, generator=generator)[:, rows]
        views = (0.9 * self.images[rows] + 0.1 * noise).clamp(0, 1)
        return Batch(views, self.labels[rows], rows)

    def mixed_rows(self) -> Tensor:
        """Return the rows of a typical batch: labelled and unlabelled images."""
        return torch.cat([torch.arange(0, 12), torch.arange(POOL - 12, POOL)])

    def begin(self) -> None:
        """Start training as the trainer does."""
        self.model.begin_fit(self.context)
        self.model.begin_epoch(self.clock(), self.context)
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
        batch = self.batch(self.mixed_rows() if rows is None else rows)
        with torch.autocast("cpu", torch.float16, enabled=half):
            step = self.model.step(batch, self.clock())
        require_finite(step, what)
        self.optimizer.zero_grad()
        step.loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            self.model.after_step(batch, step, self.clock())
        self.number += 1
        return step

    def has_changed_frozen(self) -> bool:
        """Tell whether the frozen part of the backbone is not what was loaded."""
        return self.trunk.is_changed(self.model.backbone)

    @torch.no_grad()
    def compute_features(self) -> PoolFeatures:
        """Return features of the pool under the current weights."""
        encoded = self.model.backbone(self.images)
        rows = torch.arange(POOL)
        labelled, unlabelled = rows[self.labels >= 0], rows[self.labels < 0]
        return PoolFeatures(encoded.cls, encoded.taps, self.labels, labelled, unlabelled, rows)


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
