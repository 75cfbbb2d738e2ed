"""Checks of the contract that every method must fulfil; failures are reported as sentences.

The project's tests run them on the whole registry, so a new method is tested without a new test.
Each check builds the method on a tiny random backbone and a toy problem; all of them together take
seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from gcdbench.training.trainer import make_optimizer, trained_state

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
        _require_finite(step, what)
        self.optimizer.zero_grad()
        step.loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            self.model.after_step(batch, step, self.clock())
        self.number += 1
        return step

    def has_changed_frozen(self) -> bool:
        """Tell whether the frozen part of the backbone is not what was loaded."""
        return self.trunk.key(self.model.backbone) != self.trunk.digest

    @torch.no_grad()
    def compute_features(self) -> PoolFeatures:
        """Return features of the pool under the current weights."""
        encoded = self.model.backbone(self.images)
        rows = torch.arange(POOL)
        labelled, unlabelled = rows[self.labels >= 0], rows[self.labels < 0]
        return PoolFeatures(encoded.cls, encoded.taps, self.labels, labelled, unlabelled, rows)


def check_terms_are_finite(make: Callable[[], Bench]) -> None:
    """The terms of a typical batch are named, scalar and finite."""
    bench = make()
    bench.begin()
    for _ in range(STEPS):
        bench.update()


def check_odd_batches(make: Callable[[], Bench]) -> None:
    """Batches without labels, without unlabelled rows, and of one row work."""
    bench = make()
    bench.begin()
    rows = torch.arange(POOL)
    odd = {
        "a batch without labelled rows": rows[bench.labels < 0][:8],
        "a batch without unlabelled rows": rows[bench.labels >= 0][:8],
        "a batch of one labelled row": rows[bench.labels >= 0][:1],
        "a batch of one unlabelled row": rows[bench.labels < 0][:1],
    }
    for name, chosen in odd.items():
        bench.update(chosen, what=name)
        _require_finite_gradients(bench, name)


def check_mixed_precision(make: Callable[[], Bench]) -> None:
    """Terms and gradients are finite when matrix products have half precision."""
    bench, what = make(), "a batch in mixed precision"
    bench.begin()
    for _ in range(STEPS):
        bench.update(what=what, half=True)
        _require_finite_gradients(bench, what)


def check_gradients(make: Callable[[], Bench]) -> None:
    """Gradients reach all trainable parameters and no frozen one."""
    bench = make()
    bench.begin()
    reached: set[str] = set()
    for _ in range(STEPS):
        bench.update()
        reached |= {n for n, p in bench.model.named_parameters() if p.grad is not None}
    trainable = {n for n, p in bench.model.named_parameters() if p.requires_grad}
    optimised = {id(p) for params, _ in bench.model.param_groups() for p in params}
    left_out = [
        n for n, p in bench.model.named_parameters() if n in reached and id(p) not in optimised
    ]
    if frozen := reached - trainable:
        raise ContractError(f"a gradient reaches the frozen parameter {min(frozen)}")
    if idle := trainable - reached:
        raise ContractError(
            f"no gradient reaches {min(idle)}; freeze it (requires_grad_(False)) or use it in step"
        )
    if left_out:
        raise ContractError(f"param_groups leaves out {left_out[0]}, which has a gradient")


def check_row_order(make: Callable[[], Bench]) -> None:
    """The order of the rows of a batch does not change the terms."""
    bench, other = make(), make()
    bench.begin()
    other.begin()
    rows = bench.mixed_rows()
    shuffled = rows[torch.randperm(len(rows), generator=seeded("rows"))]
    first, second = bench.loss(rows).terms, other.loss(shuffled).terms
    for name, value in first.items():
        if not torch.allclose(value, second[name], rtol=1e-3, atol=1e-4):
            raise ContractError(
                f"term {name!r} depends on the order of the rows "
                f"({value.item():.6g} and {second[name].item():.6g})"
            )


def check_frozen_part(make: Callable[[], Bench]) -> None:
    """The frozen part of the backbone is left alone, or declared to be changed."""
    bench = make()
    changed = bench.has_changed_frozen()
    if changed and not bench.model.method.changes_frozen:
        raise ContractError(
            "__init__ changes weights or modules of the backbone below its trained blocks; "
            "declare it (changes_frozen = True), so that the frozen features are not shared"
        )
    if bench.model.method.changes_frozen and not changed:
        raise ContractError("changes_frozen is True, but the frozen part is as it was loaded")
    before = bench.trunk.key(bench.model.backbone)
    bench.begin()
    for _ in range(STEPS):
        bench.update()
    if bench.trunk.key(bench.model.backbone) != before:
        raise ContractError(
            "training changes weights of the backbone below its trained blocks; "
            "features that were computed with the old ones would still be used"
        )


def check_determinism(make: Callable[[], Bench]) -> None:
    """The same seed gives the same numbers, and the global generator is not touched."""
    state = torch.get_rng_state()
    losses = []
    for _ in range(2):
        bench = make()
        bench.begin()
        losses.append([bench.update().loss.item() for _ in range(3)])
    if losses[0] != losses[1]:
        raise ContractError(
            "two runs with the same seed differ; draw from task.generator and clock.generator only"
        )
    if not torch.equal(state, torch.get_rng_state()):
        raise ContractError(
            "the global random generator was used; "
            "draw from task.generator (initial weights) and clock.generator (steps)"
        )


def check_resume(make: Callable[[], Bench]) -> None:
    """A model restored from its parameters and buffers continues with the same loss."""
    bench = make()
    bench.begin()
    bench.update()
    bench.update()
    saved = {name: value.clone() for name, value in trained_state(bench.model).items()}
    optimizer = bench.optimizer.state_dict()
    expected = bench.update().loss.item()
    fresh = make()
    fresh.model.load_state_dict(saved, strict=False)
    fresh.optimizer.load_state_dict(optimizer)
    fresh.number = 2
    fresh.model.train()
    fresh.model.backbone.eval()
    found = fresh.update().loss.item()
    if abs(found - expected) > 1e-6 * max(1.0, abs(expected)):
        raise ContractError(
            f"a resumed run gives loss {found:.6g} instead of {expected:.6g}; "
            "keep all state in parameters and registered buffers"
        )


def check_predictions(make: Callable[[], Bench]) -> None:
    """Every query gets one cluster id, the same one when asked again."""
    bench = make()
    bench.begin()
    bench.update()
    bench.model.eval()
    with torch.no_grad():
        first = bench.model.predict(bench.compute_features(), bench.context)
        second = bench.model.predict(bench.compute_features(), bench.context)
    if first.shape != (POOL,) or first.dtype not in (torch.int64, torch.int32):
        raise ContractError(
            f"predict returned {first.dtype} of shape {tuple(first.shape)}; "
            f"expected whole numbers of shape ({POOL},), one for each query"
        )
    if int(first.min()) < 0:
        raise ContractError("predict returned a negative cluster id")
    if not torch.equal(first, second):
        raise ContractError("predict gives another answer when asked again")


def check_batch_is_left_alone(make: Callable[[], Bench]) -> None:
    """A step does not change the batch that it was given."""
    bench = make()
    bench.begin()
    batch = bench.batch(bench.mixed_rows())
    assert isinstance(batch.views, Tensor)
    views, labels = batch.views.clone(), batch.labels.clone()
    bench.model.step(batch, bench.clock())
    if not (torch.equal(views, batch.views) and torch.equal(labels, batch.labels)):
        raise ContractError("step changes the batch in place; work on a copy")


CHECKS = (
    check_terms_are_finite,
    check_odd_batches,
    check_mixed_precision,
    check_gradients,
    check_frozen_part,
    check_row_order,
    check_determinism,
    check_resume,
    check_predictions,
    check_batch_is_left_alone,
)


def _require_finite(step: Step, what: str) -> None:
    if not step.terms:
        raise ContractError(f"{what} gives no loss terms")
    for name, term in step.terms.items():
        if term.ndim or not term.isfinite():
            value = "a tensor" if term.ndim else f"{term.item()}"
            raise ContractError(f"{what} gives term {name!r} = {value}; expected a finite scalar")


def _require_finite_gradients(bench: Bench, what: str) -> None:
    for name, parameter in bench.model.named_parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            raise ContractError(f"{what} gives a gradient of {name} that is not finite")
