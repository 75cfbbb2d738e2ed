"""Settings that all methods share: training, backbone, task. Does not import torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from gcdbench.core.hub_weights import check_hub_name, is_hub_name

LARGEST_SEED = 2**32 - 1  # of NumPy's RandomState, which k-means draws from
# short names of backbones -> names in timm's model registry; any other timm ViT by its own name
BACKBONES = {
    "embedded": "small hybrid ViT that ships with gcdbench (64 px drawings)",
    "dino-vitb16": "vit_base_patch16_224.dino",
    "dino-vits16": "vit_small_patch16_224.dino",
    "dinov2-vits14": "vit_small_patch14_dinov2.lvd142m",
    "dinov2-vitb14": "vit_base_patch14_dinov2.lvd142m",
    "dinov2-vitl14": "vit_large_patch14_dinov2.lvd142m",
    "dinov3-vits16": "vit_small_patch16_dinov3.lvd1689m",
    "dinov3-vitb16": "vit_base_patch16_dinov3.lvd1689m",
    "dinov3-vitl16": "vit_large_patch16_dinov3.lvd1689m",
    "clip-vitb16": "vit_base_patch16_clip_quickgelu_224.openai",
}


@dataclass(frozen=True)
class TrainConfig:
    """Settings of the training loop; a method's defaults and a suite override these."""

    epochs: int = 200  # paper and all released codes
    batch_size: int = 128  # images, each in two views; released GCD, SimGCD and DomainNet scripts
    lr: float = 0.1  # released GCD and SimGCD
    optimizer: Literal["sgd", "nesterov", "adamw"] = "sgd"  # with momentum, released codes
    momentum: float = 0.9  # released codes; AdamW's first beta, its second one is 0.999
    weight_decay: float = 5e-5  # released codes
    decay: Literal["matrices", "all"] = "matrices"  # SimGCD and HiLo spare 1-d parameters
    schedule: Literal["cosine", "step"] = "cosine"  # step: a tenth after 85 %, as in AutoNovel
    min_lr_share: float = 1e-3  # the cosine ends at lr/1000, released codes
    warmup_epochs: int = 0  # linear from lr * min_lr_share; UNO uses 10
    sampling: Literal["balanced", "natural"] = "balanced"  # half labelled, as in GCD and SimGCD
    draws_per_epoch: int | None = None  # images drawn per epoch; as many as the pool has by default
    view_bank: int = 0  # pre-drawn views per image, kept as frozen features; 0: fresh ones
    # of matrix products on CUDA; auto is float16. A CPU always computes in float32
    precision: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    compile: bool = (
        False  # trained blocks and heads by torch.compile, which takes a minute to start
    )
    eval_tokens: Literal["float32", "float16"] = "float32"  # frozen features in evaluation
    # of a sweep: float16 ones are in a temporary file, which k-means, neighbours and scores read in
    # parts; auto: float16 if float32 would take more than 4 GB
    eval_features: Literal["auto", "float32", "float16"] = "auto"
    eval_every: int = 0  # epochs between evaluations for the learning curve; 0: the last one only

    def __post_init__(self) -> None:
        _require_at_least(self, 1, "epochs", "batch_size", "draws_per_epoch")
        _require_at_least(self, 0, "momentum", "weight_decay", "min_lr_share", "warmup_epochs")
        _require_at_least(self, 0, "eval_every")
        if self.view_bank < 0 or self.view_bank == 1:
            raise ValueError(f"view_bank must be 0 or at least 2, got {self.view_bank}")
        if not 0 < self.lr < math.inf:
            raise ValueError(f"lr must be above 0 and finite, got {self.lr}")
        for name in ("momentum", "min_lr_share"):
            if getattr(self, name) > 1:
                raise ValueError(f"{name} must be at most 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class TaskConfig:
    """What methods may know about the problem; the defaults are the field's protocol."""

    classes: Literal["known", "estimated"] = "known"  # estimated: from features, as in GCD
    num_classes: int | None = None  # outputs of the classifiers, in place of the true number
    estimate_images: int = 10_000  # largest number of images clustered to estimate it, ours

    def __post_init__(self) -> None:
        if self.num_classes is not None and self.classes == "estimated":
            raise ValueError("num_classes cannot be given and estimated at once")
        _require_at_least(self, 1, "num_classes", "estimate_images")


@dataclass(frozen=True)
class BackboneConfig:
    """Which backbone, with which weights, and how much of it is trained."""

    name: str = "dino-vitb16"  # a key of BACKBONES or any timm vision transformer
    weights: str | None = None  # a file or hf-hub:owner/name; by default timm's, from its hub
    train_blocks: int = 1  # last blocks that are trained; 1 in the paper and all released codes

    def __post_init__(self) -> None:
        _require_at_least(self, 0, "train_blocks")
        if self.weights is not None and is_hub_name(self.weights):
            check_hub_name(self.weights)

    @property
    def from_hub(self) -> bool:
        """Whether the weights are fetched from the hub unless they are on this machine."""
        if self.weights is not None:
            return is_hub_name(self.weights)
        return self.name != "embedded"


def _require_at_least(config: Any, least: int, *names: str) -> None:
    """Raise a ValueError for numbers below a limit and for NaN; None means the default."""
    for name in names:
        value = getattr(config, name)
        if value is not None and not least <= value < math.inf:
            raise ValueError(f"{name} must be at least {least}, got {value}")
