"""HypCD: SimGCD with contrast and classifier in hyperbolic space (Liu et al., CVPR 2025).

Features are mapped into a ball of negative curvature, where the contrastive terms compare them by
angle and, more and more over the run, by distance. The classifier is a linear map of the ball whose
outputs take the place of SimGCD's cosines. This is the paper's HypSimGCD. "Released" below is the
authors' code. As there, Adam trains the classifier at a constant rate: by the run's SGD it learns
new classes too slowly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from gcdbench.plugin import (
    Backbone,
    Batch,
    Clock,
    Method,
    Step,
    Task,
    contrast_by_score,
    cross_entropy_on,
    full_precision,
    info_nce,
    mean_entropy_deficit,
    other_view,
    self_distillation,
    sup_con,
    teacher_temperature,
)

EPS = 1e-5  # of norms and denominators, released


class HypCD(Method):
    paper: ClassVar[str] = "https://arxiv.org/abs/2504.06120"
    provides: ClassVar[frozenset[str]] = frozenset({"logits", "projection"})
    tuning: ClassVar[dict[str, Any]] = {  # ranges of `gcdbench tune`, with train.lr and epochs
        "longest": ("uniform", 1.2, 2.3),  # its scripts
        "angle_scale": ("uniform", 0.3, 0.4),  # its scripts
        "curvature": ("choice", 0.05, 0.1),  # its default and scripts
    }

    @dataclass(frozen=True)
    class Config:
        preset: Literal[
            "ours",
            "cub",
            "cars",
            "aircraft",
            "cub-dinov2",
            "cars-dinov2",
            "aircraft-dinov2",
        ] = "ours"  # one setting for all datasets; the others are the released scripts'
        curvature: float = 0.1  # released scripts; default 0.05
        longest: float | None = 2.0  # clip of the features, ours; released 1.2 to 2.3 by dataset
        angle_scale: float = 0.3  # of the angle's temperatures, ours; released 0.3 to 0.4
        distance_weight: float = 1.0  # at the end of the ramp, released
        ramp_start: float = 0.0  # share of the run, released: epoch 0
        ramp_end: float = 1.0  # share of the run, released: epoch 200 of 200
        classifier_lr: float = 0.01  # of Adam, constant, released
        sup_weight: float = 0.35  # released; the rest, 0.65, is on the unsupervised terms
        entropy_weight: float = 1.0  # released scripts; default 2
        student_temp: float = 0.1  # released
        teacher_start: float = 0.07  # released
        teacher_end: float = 0.04  # released
        teacher_warmup: int = 30  # epochs, released; cut to the length of a shorter run
        contrast_temp: float = 1.0  # InfoNCE, released
        sup_contrast_temp: float = 0.07  # SupCon, released

        presets: ClassVar[dict[str, dict[str, Any]]] = {
            "cub": {"longest": 2.0, "angle_scale": 0.3},
            "cars": {"longest": 1.2, "angle_scale": 0.3},
            "aircraft": {"longest": 2.3, "angle_scale": 0.4},
            "cub-dinov2": {"longest": 1.2, "angle_scale": 0.4},
            "cars-dinov2": {"longest": 1.2, "angle_scale": 0.35},
            "aircraft-dinov2": {"longest": 2.0, "angle_scale": 0.4},
        }

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        self.classifier = HyperbolicLinear(
            backbone.dim,
            task.num_classes,
            curvature=config.curvature,
            generator=task.generator("heads"),
        )
        self.adam = Adam(sum(p.numel() for p in self.classifier.parameters()))

    def step(self, batch: Batch, clock: Clock) -> Step:
        features = self.encode(batch).cls
        z = self.project(features)
        logits = self.classifier(z)
        return Step(
            self.terms(z, logits, batch, clock), features, logits / self.config.student_temp
        )

    def terms(self, z: Tensor, logits: Tensor, batch: Batch, clock: Clock) -> dict[str, Tensor]:
        """Return the weighted terms of points of the ball and logits (2B, .), view-major."""
        c, w, labels = self.config, self.config.sup_weight, batch.per_view(batch.labels)
        soft = None if batch.targets is None else batch.per_view(batch.targets)
        teacher_temp = teacher_temperature(
            clock.epoch,
            clock.epochs,
            start=c.teacher_start,
            end=c.teacher_end,
            warmup=c.teacher_warmup,
        )
        distil = self_distillation(logits, student_temp=c.student_temp, teacher_temp=teacher_temp)
        spread = mean_entropy_deficit(logits, temperature=c.student_temp)
        known = batch.in_views(batch.labelled_rows)
        classify = cross_entropy_on(
            logits, labels, targets=soft, rows=known, temperature=c.student_temp
        )
        near = -pairwise_distances(z, curvature=c.curvature)
        temps = c.contrast_temp, c.sup_contrast_temp
        angle = (
            info_nce(z, temperature=temps[0] * c.angle_scale),
            sup_con(z[known], labels[known], temperature=temps[1] * c.angle_scale),
        )
        distance = (
            contrast_by_score(near / temps[0], other_view(len(z), z.device)),
            contrast_by_score(
                near[known][:, known] / temps[1], labels[known][:, None] == labels[known]
            ),
        )
        share = self.distance_share(clock)
        return {
            "distil": (1 - w) * distil,
            "entropy": (1 - w) * c.entropy_weight * spread,
            "classify": w * classify,
            "contrast": (1 - w) * ((1 - share) * angle[0] + share * distance[0]),
            "sup_contrast": w * ((1 - share) * angle[1] + share * distance[1]),
        }

    def distance_share(self, clock: Clock) -> float:
        """Return the weight of distances against angles in an epoch."""
        c = self.config
        first, last = (round(share * clock.epochs) for share in (c.ramp_start, c.ramp_end))
        done = (clock.epoch - (first - 1)) / max(last - first, 1)
        return c.distance_weight * min(max(done, 0.0), 1.0)

    def param_groups(self) -> Iterable[tuple[Iterable[nn.Parameter], float]]:
        head = list(self.classifier.parameters())
        own = {id(p) for p in head}
        yield [p for p in self.parameters() if p.requires_grad and id(p) not in own], 1.0
        yield head, 0.0  # ``after_step`` trains it

    def after_step(self, batch: Batch, step: Step, clock: Clock) -> None:
        self.adam.step(self.classifier.parameters(), self.config.classifier_lr)

    def classify(self, features: Tensor) -> Tensor:
        return self.classifier(self.project(features)) / self.config.student_temp

    def project(self, features: Tensor) -> Tensor:
        return to_ball(features, curvature=self.config.curvature, longest=self.config.longest)


class Adam(nn.Module):
    """Adam with its moments in buffers, so that they are part of a checkpoint.

    Its steps do not depend on the scale of the gradient, so that of mixed precision may stay. A
    gradient that is not finite is passed over.
    """

    mean: Tensor
    square: Tensor
    steps: Tensor

    def __init__(self, number: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(number))
        self.register_buffer("square", torch.zeros(number))
        self.register_buffer("steps", torch.zeros(()))

    @torch.no_grad()
    def step(self, parameters: Iterable[nn.Parameter], lr: float) -> None:
        """Move parameters along their gradients."""
        moved = [p for p in parameters if p.grad is not None]
        if not moved:
            return
        grad = torch.cat([p.grad.flatten() for p in moved]).to(self.mean)  # type: ignore[union-attr]
        finite = grad.isfinite().all()
        self.steps += finite
        self.mean.copy_(torch.where(finite, 0.9 * self.mean + 0.1 * grad, self.mean))
        self.square.copy_(torch.where(finite, 0.999 * self.square + 0.001 * grad**2, self.square))
        steps = self.steps.clamp(min=1)
        root = (self.square / (1 - 0.999**steps)).sqrt()
        change = lr * finite * self.mean / (1 - 0.9**steps) / (root + 1e-8)
        for parameter, part in zip(moved, change.split([p.numel() for p in moved]), strict=True):
            parameter.sub_(part.view_as(parameter))


class HyperbolicLinear(nn.Module):
    """A linear map of the ball with a bias; its outputs are coordinates of points of a ball."""

    def __init__(
        self, in_dim: int, out_dim: int, *, curvature: float, generator: Generator
    ) -> None:
        super().__init__()
        self.curvature = curvature
        bound = in_dim**-0.5
        self.weight = nn.Parameter(torch.empty(out_dim, in_dim))
        self.bias = nn.Parameter(torch.empty(out_dim))
        for parameter in (self.weight, self.bias):
            nn.init.uniform_(parameter, -bound, bound, generator=generator)

    def forward(self, z: Tensor) -> Tensor:
        """Return (n, out_dim) coordinates of points of the ball."""
        return self._forward(z, self.weight, self.bias)

    @full_precision
    def _forward(self, z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        c = self.curvature
        moved = ball_matvec(weight, z, c)
        # released: the curvature of this sum is 1 whatever that of the ball is
        return project(mobius_add(moved, exp0(bias, c), 1.0), c)


@full_precision
def to_ball(x: Tensor, *, curvature: float, longest: float | None) -> Tensor:
    """Return the points of the ball for features, cut at a length before they are mapped."""
    if longest is not None:
        x = x * (longest / (x.norm(dim=-1, keepdim=True) + EPS)).clamp(max=1.0)
    return project(exp0(x, curvature), curvature)


def exp0(x: Tensor, c: float) -> Tensor:
    """Map vectors into the ball of curvature -c, along geodesics from its centre."""
    length = x.norm(dim=-1, keepdim=True).clamp(min=EPS) * c**0.5
    return length.clamp(max=15.0).tanh() * x / length


def project(x: Tensor, c: float) -> Tensor:
    """Pull points that lie on or outside of the ball's rim just inside."""
    length, most = x.norm(dim=-1, keepdim=True).clamp(min=EPS), (1 - 1e-3) / c**0.5
    return torch.where(length > most, x / length * most, x)


def mobius_add(x: Tensor, y: Tensor, c: float) -> Tensor:
    """Return the sum of points of the ball."""
    xy, xx, yy = ((a * b).sum(-1, keepdim=True) for a, b in ((x, y), (x, x), (y, y)))
    top = (1 + 2 * c * xy + c * yy) * x + (1 - c * xx) * y
    return top / (1 + 2 * c * xy + c**2 * xx * yy + EPS)


def ball_matvec(weight: Tensor, z: Tensor, c: float) -> Tensor:
    """Return the points (n, k) that a matrix (k, d) makes of points (n, d) of the ball."""
    root, length = c**0.5, z.norm(dim=-1, keepdim=True).clamp(min=EPS)
    image = z @ weight.T
    nothing = (image == 0).all(-1, keepdim=True)
    size = image.norm(dim=-1, keepdim=True).masked_fill(nothing, 1.0)
    stretched = (size / length * artanh(root * length)).clamp(-15.0, 15.0).tanh()
    moved = (stretched * image / (size * root)).masked_fill(nothing, 0.0)
    return project(moved, c)


def artanh(x: Tensor) -> Tensor:
    """Return the inverse of tanh below 1; the gradient there is that of the limit, not zero."""
    limited = x + (x.clamp(-1 + EPS, 1 - EPS) - x).detach()
    return limited.atanh()


@full_precision
def pairwise_distances(z: Tensor, *, curvature: float) -> Tensor:
    """Return (n, n) distances in the ball; a point's distance from itself is zero.

    They are differences of almost equal numbers near the rim, so they are made in double precision.
    """
    x, c = z.double(), curvature
    products, squares = x @ x.T, x.square().sum(1)
    xx, yy = squares[:, None], squares
    a, b = 1 - 2 * c * products + c * yy, 1 - c * xx
    top = a**2 * xx - 2 * a * b * products + b**2 * yy
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    top = top.clamp(min=1e-24).masked_fill(itself, 1.0)  # no root of zero in the graph
    length = top.sqrt() / (1 - 2 * c * products + c**2 * xx * yy + EPS)
    distance = 2 / c**0.5 * artanh(c**0.5 * length)
    return distance.masked_fill(itself, 0.0).to(z.dtype)
