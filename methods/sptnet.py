"""SPTNet: prompts in the image and SimGCD's classifier, trained in turns (Wang et al., ICLR 2024).

One image-shaped prompt is added to all images: a frame around every patch and a border around the
image. Spells in which the prompt learns through the frozen network alternate with spells in which
the last block and the heads learn, from pairs of a plain and a prompted image. Both have SimGCD's
loss. Written from facts about the authors' code ("released" below), without any of it. That code
starts from a trained SimGCD; here the first part of the run is SimGCD. It gives the prompt a cosine
of its own, here it follows that of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Generator, Tensor, nn

from gcdbench.plugin import (
    PIXELS,
    Adapter,
    Backbone,
    Batch,
    Clock,
    CosineClassifier,
    Encoded,
    EpochPlan,
    FitContext,
    Method,
    Phase,
    ProjectionHead,
    Step,
    Task,
    parametric_terms,
    self_distillation,
    teacher_temperature,
)


class SPTNet(Method):
    paper: ClassVar[str] = "https://arxiv.org/abs/2403.13684"
    # released, of the classifier; its rate ends at a tenth
    train_defaults: ClassVar[dict[str, Any]] = {
        "lr": 0.05,
        "weight_decay": 5e-4,
        "min_lr_share": 0.1,
    }
    provides: ClassVar[frozenset[str]] = frozenset({"logits", "projection"})
    requires: ClassVar[frozenset[str]] = frozenset({"images"})
    tuning: ClassVar[dict[str, Any]] = {  # ranges of `gcdbench tune`, with train.lr and epochs
        "prompt_lr": ("log", 20.0, 1700.0),  # 20 to 1667 are released
        "entropy_weight": ("choice", 1.0, 2.0),  # both are released
        "simgcd_share": ("choice", 0.17, 0.33, 0.5),  # ours; 200 of 1200 epochs released
    }

    prompted: Tensor

    @dataclass(frozen=True)
    class Config:
        preset: Literal[
            "ours",
            "cub",
            "cars",
            "aircraft",
            "cifar10",
            "cifar100",
            "imagenet100",
            "herbarium",
        ] = "ours"  # one setting for all datasets; the others are released, with their train.lr
        prompts: Literal["all", "frames"] = "all"  # released; CIFAR without the border
        border: float = 0.134  # share of the image's side, released: 30 of 224 pixels
        frame: int = 1  # pixels at each side of a patch, released
        spell: int = 20  # steps between turns, released
        simgcd_share: float = 0.5  # of the run, ours; released: 200 epochs before 1000 more
        prompt_lr: float = 20.0  # times the run's rate, released for Aircraft (1 and 0.05)
        prompt_warmup: float = 0.02  # share of the turns, ours; released: 1000 steps
        sup_weight: float = 0.35  # released; the rest, 0.65, is on the unsupervised terms
        entropy_weight: float = 1.0  # released; CUB 2
        student_temp: float = 0.1  # released
        teacher_start: float = 0.07  # released
        teacher_end: float = 0.04  # released
        teacher_warmup: int = 10  # epochs, released command; default 30
        contrast_temp: float = 1.0  # InfoNCE, released
        sup_contrast_temp: float = 0.07  # SupCon, released
        hidden_dim: int = 2048  # of the projector, released
        projection_dim: int = 256  # released

        presets: ClassVar[dict[str, dict[str, Any]]] = {
            "cub": {"prompt_lr": 500.0, "entropy_weight": 2.0},  # rates 25 and 0.05
            "cars": {"prompt_lr": 200.0},  # 10 and 0.05
            "aircraft": {"prompt_lr": 20.0},
            "cifar10": {"prompt_lr": 333.0, "prompts": "frames"},  # 1 and 0.003
            "cifar100": {"prompt_lr": 1667.0, "prompts": "frames"},  # 5 and 0.003
            "imagenet100": {"prompt_lr": 1667.0},  # 5 and 0.003
            "herbarium": {"prompt_lr": 50.0},  # 0.5 and 0.01
        }

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        generator, size = task.generator("heads"), backbone.image_size
        self.projector = ProjectionHead(
            backbone.dim,
            hidden_dim=config.hidden_dim,
            out_dim=config.projection_dim,
            generator=generator,
        )
        self.classifier = CosineClassifier(backbone.dim, task.num_classes, generator=generator)
        masks = [frames(size, patch_size(backbone), config.frame)]
        if config.prompts == "all":
            masks.append(border(size, round(config.border * size)))
        self.prompts = Prompts(masks, task.generator("prompts"))
        backbone.adapt(self.prompts)
        self.register_buffer("prompted", torch.tensor(False))  # whether the turns have begun

    def phase(self, clock: Clock) -> Phase:
        c = self.config
        heads = ("backbone.vit", "projector", "classifier")
        first = round(c.simgcd_share * clock.epochs)
        if clock.epoch < first:
            return Phase("simgcd", heads)
        turn = (clock.step % clock.steps_per_epoch + 1) // c.spell
        if turn % 2:
            return Phase("classifier", heads)
        begun = clock.step - first * clock.steps_per_epoch
        warmup = c.prompt_warmup * (clock.epochs - first) * clock.steps_per_epoch
        return Phase(
            "prompts", ("backbone.adapters",), c.prompt_lr * min((begun + 1) / max(warmup, 1), 1)
        )

    def begin_epoch(self, clock: Clock, context: FitContext) -> EpochPlan | None:
        self.prompted.fill_(self.phase(clock).name != "simgcd")
        return None

    def encode(self, batch: Batch) -> Encoded:
        if self.prompted:
            return self.backbone(batch.images)
        with self.backbone.without(self.prompts):  # they are noise until they are trained
            return self.backbone(batch.images)

    def step(self, batch: Batch, clock: Clock) -> Step:
        c = self.config
        features = self.features(batch, clock).cls
        z, cosines = self.project(features), self.classifier(features)
        teacher_temp = teacher_temperature(
            clock.epoch,
            clock.epochs,
            start=c.teacher_start,
            end=c.teacher_end,
            warmup=c.teacher_warmup,
        )
        distil = self_distillation(cosines, student_temp=c.student_temp, teacher_temp=teacher_temp)
        others = parametric_terms(
            z,
            cosines,
            batch.per_view(batch.labels),
            labelled=batch.in_views(batch.labelled_rows),
            targets=None if batch.targets is None else batch.per_view(batch.targets),
            sup_weight=c.sup_weight,
            entropy_weight=c.entropy_weight,
            student_temp=c.student_temp,
            contrast_temp=c.contrast_temp,
            sup_contrast_temp=c.sup_contrast_temp,
        )
        terms = {"distil": (1 - c.sup_weight) * distil, **others}
        return Step(terms, features, cosines / c.student_temp)

    def features(self, batch: Batch, clock: Clock) -> Encoded:
        """Encode what a step shows of every image: two views, or one, plain and prompted."""
        name = self.phase(clock).name
        if name == "prompts":
            return self.backbone(batch.images)
        shown = batch.images
        if name == "classifier":
            assert isinstance(shown, Tensor)
            plain = shown[: len(batch)]
            # in the units of pixels that are not normalised yet
            shown = torch.cat([plain, plain + self.prompts.image().detach() * self.backbone.std])
        with self.backbone.without(self.prompts):
            return self.backbone(shown)

    def classify(self, features: Tensor) -> Tensor:
        return self.classifier(features) / self.config.student_temp

    def project(self, features: Tensor) -> Tensor:
        return self.projector(features)


class Prompts(Adapter):
    """Adds trained numbers to normalised images, one for every channel and pixel of every mask.

    They are kept as one vector, which weight decay spares.
    """

    depth = PIXELS
    places: Tensor

    def __init__(self, masks: list[Tensor], generator: Generator) -> None:
        super().__init__()
        places = torch.cat(
            [mask.expand(3, -1, -1).flatten().nonzero().squeeze(1) for mask in masks]
        )
        self.shape = (3, *masks[0].shape)
        self.register_buffer("places", places, persistent=False)
        self.value = nn.Parameter(torch.randn(len(places), generator=generator))

    def image(self) -> Tensor:
        """Return the prompt (3, H, W); where masks overlap, their numbers add up."""
        return (
            self.value.new_zeros(self.shape)
            .flatten()
            .index_add(0, self.places, self.value)
            .view(self.shape)
        )

    def images(self, images: Tensor) -> Tensor:
        """Return the prompted images."""
        return images + self.image()


def frames(size: int, patch: int, width: int) -> Tensor:
    """Return the mask (size, size) of the outer pixels of every patch."""
    place = torch.arange(size) % patch
    outer = (place < width) | (place >= patch - width)
    return outer[:, None] | outer


def border(size: int, width: int) -> Tensor:
    """Return the mask (size, size) of the outer pixels of the image."""
    return frames(size, size, width)


def patch_size(backbone: Backbone) -> int:
    """Return the side of a patch in pixels."""
    rows, _ = backbone.transformer.grid
    return backbone.image_size // rows
