"""The embedded backbone: a small hybrid vision transformer whose weights ship with the package.

Drawings of 64 x 64 pixels pass the first five stages of EfficientNet-Lite0 (Tan and Le,
https://arxiv.org/abs/1905.11946, in its Lite form), which turn them into 4 x 4 tokens. A token
holds features of an early and of the last map, because the early one shows the style of the strokes
better. Four transformer blocks of width 192 follow. The model is a timm ``VisionTransformer``, so
class token, patch tokens, attention and "the last block" mean what they mean in a ViT-B/16.
The weights were made by ``benchmarks/embedded/pretrain.py``; ``weights/README.md`` says from what.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file
from timm.layers import HybridEmbed
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

IMAGE_SIZE = 64
# Lite0 was trained on (pixel - 127) / 128.
MEAN = (127 / 255,) * 3
STD = (128 / 255,) * 3
WIDTH = 192
DEPTH = 4
STEM_STAGES = 5
EARLY_STAGES = 2  # of these; their map (24 channels, stride 4) is averaged to the tokens' stride
WEIGHTS = Path(__file__).parent / "weights" / "embedded.safetensors"


class Lite0Stem(nn.Module):
    """Map images to early and late features at stride 16 by stages of EfficientNet-Lite0.

    Batch normalisation is folded into the convolutions, so there are no running statistics that
    ``train()`` could change.
    """

    def __init__(self, lite0_weights: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        lite0: Any = timm.create_model("tf_efficientnet_lite0", num_classes=0)
        if lite0_weights is not None:
            lite0.load_state_dict(lite0_weights)
        lite0.eval()
        first = nn.Sequential(lite0.conv_stem, lite0.bn1)
        self.early = nn.Sequential(first, *lite0.blocks[:EARLY_STAGES])
        self.late = nn.Sequential(*lite0.blocks[EARLY_STAGES:STEM_STAGES])
        self.to(memory_format=torch.channels_last)
        fold_batchnorm(self)

    def forward(self, images: Tensor) -> Tensor:
        # On CPUs channels-last convolutions run about twice as fast.
        early = self.early(images.contiguous(memory_format=torch.channels_last))
        late = self.late(early)
        return torch.cat([late, F.adaptive_avg_pool2d(early, late.shape[-2:])], dim=1)


def fold_batchnorm(module: nn.Module) -> None:
    """Merge each batch normalisation below ``module`` into the convolution before it, in place."""
    conv = None
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Conv2d):
            conv = name
        elif isinstance(child, nn.BatchNorm2d):
            if conv is None:
                raise ValueError(f"no convolution comes before the batch normalisation {name!r}")
            setattr(module, conv, fuse_conv_bn_eval(getattr(module, conv), child))
            # timm's BatchNormAct2d carries the activation that follows.
            setattr(module, name, getattr(child, "act", nn.Identity()))
            conv = None
        else:
            fold_batchnorm(child)


def build_embedded(lite0_weights: Mapping[str, Tensor] | None = None) -> VisionTransformer:
    """Build the embedded backbone with a frozen stem and untrained blocks.

    Args:
        lite0_weights: State of timm's ``tf_efficientnet_lite0`` without its classifier, to start
            the stem from; random if absent.
    """
    model = VisionTransformer(
        img_size=IMAGE_SIZE,
        patch_size=1,
        embed_layer=partial(HybridEmbed, backbone=Lite0Stem(lite0_weights)),
        embed_dim=WIDTH,
        depth=DEPTH,
        num_heads=3,
        num_classes=0,
    )
    model.patch_embed.backbone.requires_grad_(False)
    return model


def load_embedded() -> VisionTransformer:
    """Load the embedded backbone with the bundled weights, in evaluation mode and in float32."""
    model = build_embedded()
    model.load_state_dict({name: value.float() for name, value in load_file(WEIGHTS).items()})
    return model.eval()
