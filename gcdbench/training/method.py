"""The contract between the benchmark and its plug-ins: methods and techniques.

A method file defines one class derived from ``Method``; a technique file one derived from
``Technique``. Both are ``nn.Module``s, and all their state is in parameters and buffers, so that a
run can be resumed. They see batches (``Batch``) with visible labels only: neither the labels of
unlabelled images nor any image's domain, so hidden information cannot leak by accident.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gcdbench.nn.backbone import Backbone, Encoded, Patches, Recording, Tokens
from gcdbench.ops.labels import UNLABELLED
from gcdbench.ops.random import seeded


@dataclass(frozen=True)
class Task:
    """What a method may know about the problem before it starts."""

    num_classes: int  # old and new together; assumed to be known, as in the field's protocol
    num_old: int  # classes 0..num_old-1 have labelled images
    labels: Tensor  # (n,) of the training pool, UNLABELLED where hidden
    epochs: int
    steps_per_epoch: int
    seed: int
    sampling: Literal["balanced", "natural"] = "balanced"  # see ``sampling_weights``

    @property
    def num_new(self) -> int:
        """Number of classes without labels."""
        return self.num_classes - self.num_old

    @property
    def num_labelled(self) -> int:
        """Number of labelled images in the training pool."""
        return int((self.labels != UNLABELLED).sum())

    @property
    def num_unlabelled(self) -> int:
        """Number of unlabelled images in the training pool."""
        return len(self.labels) - self.num_labelled

    def generator(self, *purpose: object) -> torch.Generator:
        """Return a generator for a purpose, for example the initialisation of a head."""
        return seeded(self.seed, *purpose)


@dataclass(frozen=True)
class Clock:
    """Where training stands; the only source of randomness inside a step."""

    epoch: int
    step: int  # counted over the whole run
    epochs: int
    steps_per_epoch: int
    seed: int

    def generator(self, purpose: str, device: torch.device | str = "cpu") -> torch.Generator:
        """Return a generator for this step and purpose; a resumed run gets the same one."""
        return seeded(self.seed, self.step, purpose, device=device)


@dataclass(frozen=True)
class HostCopy:
    """Labels and places of a batch on the CPU, and the tensors elsewhere that equal them."""

    labels: Tensor
    index: Tensor
    copies: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Batch:
    """Images of one step: V views of B images, view-major wherever they are stacked.

    Which rows are labelled and how many decides shapes, and shapes must be known to the CPU. Asking
    a GPU for them makes the CPU wait for all work so far, so a batch keeps a copy of its labels and
    places where it came from: ``order``, ``labelled_rows`` and ``unlabelled_rows`` are free.
    """

    views: Tensor | Patches | Tokens  # (V, B, 3, H, W) in [0, 1], or V*B precomputed views
    labels: Tensor  # (B,), UNLABELLED where hidden
    index: Tensor  # (B,), position in the training pool
    targets: Tensor | None = None  # (B, K) soft labels of labelled rows that were mixed
    host: HostCopy | None = None  # kept by ``to``

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def labelled(self) -> Tensor:
        """Mask (B,) of the rows whose label is visible."""
        return self.labels != UNLABELLED

    @property
    def images(self) -> Tensor | Patches | Tokens:
        """All views stacked, V*B rows: first all first views, then all second ones."""
        return self.views.flatten(0, 1) if isinstance(self.views, Tensor) else self.views

    @property
    def num_views(self) -> int:
        """Number of views of every image."""
        return len(self.images) // max(len(self), 1)

    @cached_property
    def on_cpu(self) -> tuple[Tensor, Tensor]:
        """Labels and places (B,) on the CPU."""
        host = self.host
        if host is not None and host.copies[0] is self.labels and host.copies[1] is self.index:
            return host.labels, host.index
        return self.labels.cpu(), self.index.cpu()

    @cached_property
    def cpu_order(self) -> Tensor:
        """Rows (B,) by their place in the pool, on the CPU."""
        return self.on_cpu[1].argsort(stable=True)

    @property
    def cpu_labelled(self) -> Tensor:
        """Mask (B,) of the rows whose label is visible, on the CPU."""
        return self.on_cpu[0] != UNLABELLED

    def here(self, rows: Tensor) -> Tensor:
        """Move what was computed on the CPU to where the batch is, without waiting for it."""
        return rows.to(self.labels.device, non_blocking=True)

    @cached_property
    def order(self) -> Tensor:
        """Rows (B,) by their place in the pool: draws along it ignore the order of the batch."""
        return self.here(self.cpu_order)

    @cached_property
    def labelled_rows(self) -> Tensor:
        """Rows whose label is visible; ``x[labelled_rows]`` equals ``x[labelled]``."""
        return self.here(self.cpu_labelled.nonzero().squeeze(1))

    @cached_property
    def unlabelled_rows(self) -> Tensor:
        """Rows whose label is hidden."""
        return self.here((~self.cpu_labelled).nonzero().squeeze(1))

    def in_views(self, rows: Tensor) -> Tensor:
        """Return the rows of the stack of all views that belong to some rows of the batch."""
        later = (rows + view * len(self) for view in range(1, self.num_views))
        return torch.cat([rows, *later])

    def per_view(self, rows: Tensor) -> Tensor:
        """Repeat a per-image tensor (B, ...) for every view: (V*B, ...)."""
        return rows.repeat(self.num_views, *[1] * (rows.ndim - 1))

    def blended(
        self, views: Sequence[Tensor], partners: Tensor, share: Tensor, num_classes: int
    ) -> Batch:
        """Return the batch of mixed images: ``share`` (B,) of each row, the rest of its partner.

        Labelled rows get soft targets; label and index are those of the image with the larger
        share. Partners and shares on the CPU need not be waited for.
        """
        own, others = share.cpu() >= 0.5, partners.cpu()
        labels, index = (torch.where(own, ids, ids[others]) for ids in self.on_cpu)
        share, partners = self.here(share), self.here(partners)
        one_hot = F.one_hot(self.labels.clamp(min=0), num_classes).to(share.dtype)
        targets = one_hot if self.targets is None else self.targets
        mixed = replace(
            self,
            views=torch.stack(list(views)),
            labels=self.here(labels),
            index=self.here(index),
            targets=share[:, None] * targets + (1 - share)[:, None] * targets[partners],
        )
        return replace(mixed, host=HostCopy(labels, index, (mixed.labels, mixed.index)))

    def to(self, device: torch.device) -> Batch:
        """Move to a device, turning stored bytes into numbers between 0 and 1."""
        if isinstance(self.views, Tensor):
            views: Tensor | Patches | Tokens = self.views.to(device, non_blocking=True)
        else:
            views = self.views.to(device)
        if isinstance(views, Tensor) and views.dtype == torch.uint8:
            views = views.float().div_(255)
        labels, index = (ids.to(device, non_blocking=True) for ids in (self.labels, self.index))
        host = HostCopy(*self.on_cpu, (labels, index))
        return replace(self, views=views, labels=labels, index=index, host=host)


@dataclass(frozen=True)
class Step:
    """What a method computed from a batch."""

    terms: dict[str, Tensor]  # named, already weighted; the loss is their sum
    features: Tensor  # (V*B, d)
    logits: Tensor | None = None  # (V*B, K), scaled so that softmax is the posterior
    per_sample: Tensor | None = None  # (B,) loss of each image, if the method computes it
    recording: Recording = field(default_factory=Recording)  # if a technique requires attention
    added: Tensor | None = None  # (m, d) of the rows that the technique has added, see ``add``
    embeddings: Tensor | None = None  # (V*B, e) where ``after_step`` remembers them
    # named scalars to watch: averaged over the steps of an epoch that have them, NaN left out
    diagnostics: dict[str, Tensor] = field(default_factory=dict)

    @property
    def loss(self) -> Tensor:
        """Sum of the terms."""
        return torch.stack([term.float() for term in self.terms.values()]).sum()


@dataclass(frozen=True)
class PoolFeatures:
    """Eval-mode features of training and evaluation images, with the visible labels."""

    features: Tensor  # (n, d)
    taps: dict[int, Tensor]  # block -> (n, d), for the tapped blocks
    labels: Tensor  # (n,), UNLABELLED where hidden
    labelled: Tensor  # rows of labelled training images
    unlabelled: Tensor  # rows of unlabelled training images, in the order of the training pool
    queries: Tensor  # rows that are to be predicted
    sets: tuple[Tensor, ...] = ()  # rows of each evaluation set, nameless; in ``predict`` only


@dataclass(frozen=True)
class FitContext:
    """What the benchmark provides to a method outside of the step."""

    compute_features: Callable[[], PoolFeatures]  # with the current weights; cached
    generator: Callable[..., torch.Generator]
    sweep_unlabelled: Callable[[], Tensor] | None = None  # see ``compute_unlabelled``

    def compute_unlabelled(self) -> Tensor:
        """Return the features (n, d) of the unlabelled training images, in the pool's order.

        They are those of ``compute_features``, but images that are only evaluated are passed over.
        """
        if self.sweep_unlabelled is not None:
            return self.sweep_unlabelled()
        pool = self.compute_features()
        return pool.features[pool.unlabelled]


@dataclass(frozen=True)
class EpochPlan:
    """How the batches of an epoch are drawn."""

    weights: Tensor  # (n,) sampling weight of every image of the training pool


def balanced_weights(labels: Tensor) -> Tensor:
    """Return weight 1 for labelled, L/U for unlabelled images: half of a batch is labelled."""
    labelled = labels != UNLABELLED
    share = labelled.sum().double() / (~labelled).sum().clamp(min=1)
    return torch.where(labelled, 1.0, share)


def sampling_weights(labels: Tensor, sampling: Literal["balanced", "natural"]) -> Tensor:
    """Return the sampling weights of ``balanced_weights``, or the same weight for all images."""
    if sampling == "natural":
        return torch.ones(len(labels), dtype=torch.float64, device=labels.device)
    return balanced_weights(labels)


class Method(nn.Module):
    """Base class of all methods; methods/README.md explains how to write one.

    Class attributes that describe a method are literals: they are read without importing it.
    """

    paper: ClassVar[str] = ""
    train_defaults: ClassVar[dict[str, Any]] = {}  # the method's own defaults for TrainConfig
    techniques: ClassVar[tuple[str, ...]] = ()  # applied unless it is written as method-technique
    provides: ClassVar[frozenset[str]] = frozenset()  # of: logits, projection
    # whether __init__ changes weights or modules of the backbone's frozen part: such a method gets
    # frozen features of its own, which no other cell shares
    changes_frozen: ClassVar[bool] = False
    # "fit" or "epoch": when it asks for the features of all images, for the estimate of its cost
    sweeps: ClassVar[str] = ""

    @dataclass(frozen=True)
    class Config:
        """Parameters of the method; every default with its source in a comment."""

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__()
        self.config = config
        self.task = task
        self.backbone = backbone

    @abstractmethod
    def step(self, batch: Batch, clock: Clock) -> Step:
        """Compute the loss terms of a batch; any mix of labelled and unlabelled rows must work."""

    def encode(self, batch: Batch) -> Encoded:
        """Run the backbone on all views of a batch."""
        return self.backbone(batch.images)

    def classify(self, features: Tensor) -> Tensor:
        """Return logits (n, K) of CLS features; softmax of them is the posterior."""
        raise NotImplementedError(f"{type(self).__name__} has no classifier")

    def project(self, features: Tensor) -> Tensor:
        """Return the embedding (n, e) that the contrastive terms compare, not normalised."""
        raise NotImplementedError(f"{type(self).__name__} has no projection")

    def begin_fit(self, context: FitContext) -> None:
        """Prepare, before the first epoch of a fresh run."""

    def begin_epoch(self, clock: Clock, context: FitContext) -> EpochPlan | None:
        """Prepare an epoch; return a plan to draw its batches in another way than the default."""
        return None

    def after_step(self, batch: Batch, step: Step, clock: Clock) -> None:
        """Update memories, after the optimiser's step."""

    def param_groups(self) -> Iterable[tuple[Iterable[nn.Parameter], float]]:
        """Yield (parameters, multiplier of the learning rate); all trainable ones by default."""
        yield [p for p in self.parameters() if p.requires_grad], 1.0

    def predict(self, pool: PoolFeatures, context: FitContext) -> Tensor:
        """Return the predicted class or cluster (len(queries),) of every query image."""
        features = pool.features[pool.queries]
        return torch.cat([self.classify(chunk).argmax(1) for chunk in features.split(4096)])


class Model(Protocol):
    """The interface through which a technique uses the method that it is applied to."""

    @property
    def backbone(self) -> Backbone:
        """The backbone, shared with the method."""

    def classify(self, features: Tensor) -> Tensor:
        """Return logits of CLS features, from an auxiliary head if the method has no classifier."""

    def project(self, features: Tensor) -> Tensor:
        """Return the embedding that contrastive terms compare."""


class Technique(nn.Module):
    """Base class of techniques, which can be applied to any method and act in training only."""

    paper: ClassVar[str] = ""
    # of: logits, projection, tokens, attention (patch embedding and attention in Step.recording)
    requires: ClassVar[frozenset[str]] = frozenset()
    attention_gradient: bool = False  # whether its terms teach the recorded attention
    # "fit" or "epoch": when it asks for the features of all images, for the estimate of its cost
    sweeps: ClassVar[str] = ""
    labelled_passes: ClassVar[int] = 0  # of the backbone per labelled image, besides its views

    @dataclass(frozen=True)
    class Config:
        """Parameters of the technique; every default with its source in a comment."""

    def __init__(self, config: Any, task: Task, model: Model) -> None:
        super().__init__()
        self.config = config
        self.task = task

    def begin_fit(self, model: Model, context: FitContext) -> None:
        """Prepare, before the first epoch of a fresh run."""

    def weights(self, weights: Tensor, clock: Clock, context: FitContext) -> Tensor:
        """Change the sampling weights of an epoch."""
        return weights

    def mix(self, batch: Batch, clock: Clock) -> Batch:
        """Change the images of a batch."""
        return batch

    def tokens(self, x: Tensor, block: int, batch: Batch, clock: Clock) -> Tensor:
        """Change the tokens after a block (0: the patch embedding, before CLS and positions)."""
        return x

    def features(self, features: Tensor, batch: Batch, clock: Clock) -> Tensor:
        """Change the CLS features that the method's heads see."""
        return features

    def add(self, patches: Tensor, batch: Batch, clock: Clock) -> Tensor | None:
        """Return patch embeddings (m, p, d) to encode in the same pass as those of the batch.

        It is called by techniques that require attention. The features are ``Step.added``, or None
        if the rows could not be added because another technique changes tokens.
        """
        return None

    def terms(self, model: Model, batch: Batch, step: Step, clock: Clock) -> dict[str, Tensor]:
        """Add loss terms."""
        return {}

    def after_step(self, model: Model, batch: Batch, step: Step, clock: Clock) -> None:
        """Update memories, after the optimiser's step."""


__all__ = [
    "UNLABELLED",
    "Batch",
    "Clock",
    "EpochPlan",
    "FitContext",
    "Method",
    "Model",
    "PoolFeatures",
    "Step",
    "Task",
    "Technique",
    "balanced_weights",
    "sampling_weights",
    "seeded",
]
