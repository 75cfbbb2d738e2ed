"""The contract between the benchmark and its plug-ins: methods and techniques.

A method file defines one class derived from ``Method``; a technique file one derived from
``Technique``. Both are ``nn.Module``s, and all their state is in parameters and buffers, so that a
run can be resumed. They see batches (``Batch``) with visible labels only: neither the labels of
unlabelled images nor any image's domain, so hidden information cannot leak by accident.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from gcdbench.nn.backbone import Backbone, Encoded, Recording
from gcdbench.ops.kmeans.rows import Rows
from gcdbench.ops.labels import UNLABELLED
from gcdbench.ops.random import seeded
from gcdbench.training.batch import Batch


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
    old_names: tuple[str, ...] = ()  # of classes 0..num_old-1; those of new classes are unknown

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
class Phase:
    """What is trained at a step, and how fast."""

    name: str = "training"
    # parts of the method that are trained, as its attributes: ("classifier", "backbone.adapters");
    # None: all that is trainable. Whatever techniques add is always trained
    train: tuple[str, ...] | None = None
    lr: float = 1.0  # multiplier of the schedule's learning rate


@dataclass(frozen=True)
class Step:
    """What a method computed from a batch."""

    terms: dict[str, Tensor]  # named, already weighted; the loss is their sum
    features: Tensor  # (V*B, d); fewer views if the method classifies some of them only
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

    # (n, d); of very many images Rows in half precision, which can be indexed and split as well
    features: Tensor
    taps: dict[int, Tensor]  # block -> (n, d), for the tapped blocks
    labels: Tensor  # (n,), UNLABELLED where hidden
    labelled: Tensor  # rows of labelled training images
    unlabelled: Tensor  # rows of unlabelled training images, in the order of the training pool
    queries: Tensor  # rows that are to be predicted
    sets: tuple[Tensor, ...] = ()  # rows of each evaluation set, nameless; in ``predict`` only

    def at(self, rows: Tensor) -> Tensor | Rows:
        """Return the features of some images; of very many, to be read in parts."""
        stored: Any = self.features
        return stored.choose(rows) if isinstance(stored, Rows) else stored[rows]


@dataclass(frozen=True)
class FitContext:
    """What the benchmark provides to a method outside of the step."""

    compute_features: Callable[[], PoolFeatures]  # with the current weights; cached
    generator: Callable[..., torch.Generator]
    sweep_unlabelled: Callable[[], Tensor] | None = None  # see ``compute_unlabelled``
    sweep_views: Callable[..., Tensor] | None = None  # see ``compute_views``

    def compute_unlabelled(self) -> Tensor:
        """Return the features (n, d) of the unlabelled training images, in the pool's order.

        They are those of ``compute_features``, but images that are only evaluated are passed over.
        """
        if self.sweep_unlabelled is not None:
            return self.sweep_unlabelled()
        pool = self.compute_features()
        return pool.features[pool.unlabelled]

    def compute_views(self, kind: str = "plain", number: int = 1, *purpose: object) -> Tensor:
        """Return features (number, n, d) of fresh views of the training images, in their order.

        The views are of one kind; the same purpose, for example the epoch, gives the same ones.
        """
        if self.sweep_views is None:
            raise RuntimeError("there are no images to make views of")
        return self.sweep_views(kind, number, *purpose)


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
    tuning: ClassVar[dict[str, Any]] = {}  # ranges that ``tune`` searches, see experiment/tuning
    # what a step is given of each image: kinds of views (gcdbench/data/views), drawn one by one; a
    # field ``views`` of Config takes its place
    views: ClassVar[tuple[str, ...]] = ("plain", "plain")
    train_blocks: ClassVar[int] = 1  # the last blocks of the backbone, which are trained
    # of: patches (patch tokens in Encoded.patches), images (pixels, never precomputed features)
    requires: ClassVar[frozenset[str]] = frozenset()
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
        """Return what the heads see of all views of a batch.

        Evaluation calls it with one view of each image, so what it does to features counts there.
        """
        return self.backbone(batch.images)

    def phase(self, clock: Clock) -> Phase:
        """Return what is trained at a step; a pure function of the clock, so any step can resume.

        By default all that is trainable is trained all the time.
        """
        return Phase()

    def classify(self, features: Tensor) -> Tensor:
        """Return logits (n, K) of CLS features; softmax of them is the posterior."""
        raise NotImplementedError(f"{type(self).__name__} has no classifier")

    def project(self, features: Tensor) -> Tensor:
        """Return the embedding (n, e) that the contrastive terms compare, not normalised."""
        raise NotImplementedError(f"{type(self).__name__} has no projection")

    def begin_fit(self, context: FitContext) -> None:
        """Prepare, before the first epoch of a fresh run.

        Modules that are built here are trained and kept in checkpoints. A run that is resumed calls
        it again if the checkpoint has modules that ``__init__`` did not build.
        """

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
        features = pool.at(pool.queries)
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
    tuning: ClassVar[dict[str, Any]] = {}  # as of a method
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
    "Phase",
    "PoolFeatures",
    "Step",
    "Task",
    "Technique",
    "balanced_weights",
    "sampling_weights",
    "seeded",
]
