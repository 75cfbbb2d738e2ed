"""Families of transformers: plain ones with registers, and timm's Eva with rotary positions."""

from __future__ import annotations

import pytest
import timm
import torch
import torch.nn.functional as F

from gcdbench.core.settings import BACKBONES
from gcdbench.errors import UserError
from gcdbench.nn.adapters import AddedTokens, LoRA
from gcdbench.nn.backbone import Backbone
from gcdbench.nn.load import build_timm_vit
from gcdbench.nn.transformer import transformer_of

SMALL = {"embed_dim": 48, "depth": 3, "num_heads": 2, "num_classes": 0}
# name in timm -> changes that make it small
MODELS = {
    "vit_small_patch16_dinov3": {},  # registers, rotary, layer scale
    "vit_small_patch16_dinov3_qkvb": {},
    "eva02_tiny_patch14_224": {},  # absolute and rotary positions, SwiGLU, separate projections
    "vit_small_patch16_rope_mixed_224": {},  # rotary positions that differ by block
    "vit_small_patch14_reg4_dinov2": {"img_size": 56},  # registers, absolute positions
}


def make(name: str, train_blocks: int = 1) -> Backbone:
    size = 4 * (14 if "patch14" in name else 16)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        changes = {**SMALL, **MODELS[name], "img_size": size}
        vit = timm.create_model(name, **changes).eval()
        for parameter in vit.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    if vit.dynamic_img_size:
        vit.dynamic_img_size, vit.patch_embed.flatten = False, True
    mean = (0.5,) * 3
    return Backbone(vit, mean=mean, std=mean, image_size=size, train_blocks=train_blocks)


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def some_images(backbone: Backbone, side: int | None = None) -> torch.Tensor:
    side = backbone.image_size if side is None else side
    return torch.rand(3, 3, side, side, generator=torch.Generator().manual_seed(1))


def reference(name: str, backbone: Backbone, images: torch.Tensor) -> torch.Tensor:
    """Return all tokens as timm's own model, made for images of this size, computes them."""
    changes = {**SMALL, **MODELS[name], "img_size": images.shape[-1]}
    vit = timm.create_model(name, **changes).eval()
    state = backbone.vit.state_dict()
    if "pos_embed" in state and state["pos_embed"].shape != vit.pos_embed.shape:
        side, old = images.shape[-1] // vit.patch_embed.patch_size[0], backbone.transformer.grid
        prefix = state["pos_embed"].shape[1] - old[0] * old[1]
        grid = state["pos_embed"][:, prefix:].unflatten(1, old).permute(0, 3, 1, 2)
        coarse = F.interpolate(grid, size=(side, side), mode="bicubic", antialias=True)
        state["pos_embed"] = torch.cat([state["pos_embed"][:, :prefix], coarse.flatten(2).mT], 1)
    vit.load_state_dict(state)
    x = vit.forward_features(backbone.normalise(images))
    return x if not isinstance(vit.norm, torch.nn.Identity) else vit.fc_norm(x)


@pytest.mark.parametrize("name", MODELS)
def test_the_output_is_that_of_timm(name):
    backbone = make(name)
    backbone.reads_patches = True
    images = some_images(backbone)
    expected = reference(name, backbone, images)
    found = backbone(images)
    near(found.cls, expected[:, 0])
    near(found.patches, expected[:, backbone.num_prefix :])
    backbone.reads_patches = False  # the last block may be cut short
    near(backbone(images).cls, expected[:, 0])


@pytest.mark.parametrize("name", MODELS)
def test_a_smaller_view_has_the_positions_of_a_smaller_model(name):
    backbone = make(name)
    images = some_images(backbone, backbone.image_size // 2)
    near(backbone(images).cls, reference(name, backbone, images)[:, 0])


@pytest.mark.parametrize("name", MODELS)
def test_the_attention_is_that_of_the_blocks(name):
    backbone, seen = make(name), []
    for block in backbone.vit.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
    backbone.reads_patches = True  # or the last block does not compute all rows
    images = some_images(backbone)
    backbone(images)
    expected = torch.stack([maps[:, :, 0, backbone.num_prefix :] for maps in seen])
    near(backbone.attention(images), expected)


@pytest.mark.parametrize("name", MODELS)
def test_an_added_token_has_no_position_and_lora_no_effect_at_first(name):
    backbone = make(name)
    images = some_images(backbone)
    plain = backbone(images).cls
    layers = ("attn.proj",)
    generator = torch.Generator().manual_seed(0)
    backbone.adapt(LoRA(rank=2, depth=1, layers=layers, generator=generator))
    near(backbone(images).cls, plain)
    token = torch.randn(1, 48, generator=generator)
    backbone.adapt(AddedTokens(token, 1))
    with_token = backbone(images)
    assert not torch.allclose(with_token.cls, plain)
    # two tokens that are alike are one token that is attended to twice, so their order is nothing
    twice = make(name)
    twice.adapt(AddedTokens(torch.cat([token, 0 * token]), 1))
    thrice = make(name)
    thrice.adapt(AddedTokens(torch.cat([0 * token, token]), 1))
    near(twice(images).cls, thrice(images).cls)
    near(twice(images).added, thrice(images).added.flip(1))


@pytest.mark.parametrize("name", [n for n in BACKBONES if n != "embedded"])
def test_every_name_is_a_transformer_with_a_cls_token_for_images_of_224_pixels(name):
    with torch.device("meta"):
        vit = build_timm_vit(name, pretrained=False)
    assert transformer_of(vit).num_prefix == (5 if "dinov3" in name else 1)
    assert tuple(vit.patch_embed.img_size) == (224, 224)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("resnet18", "ResNet is none"),
        ("convnext_tiny", "ConvNeXt is none"),
        ("vit_base_patch16_gap_224", "it has no CLS token"),
        ("vit_medium_patch16_rope_reg1_gap_256", "it has no CLS token"),
    ],
)
def test_a_backbone_is_refused_with_the_true_reason(name, reason):
    with torch.device("meta"), pytest.raises(UserError, match=reason):
        build_timm_vit(name, pretrained=False)
