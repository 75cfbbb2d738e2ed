from __future__ import annotations

import argparse

import pytest
import timm
import torch
from safetensors.torch import save_file

from gcdbench.core.settings import BackboneConfig
from gcdbench.errors import UserError
from gcdbench.nn import backbone as backbone_module
from gcdbench.nn.backbone import Backbone
from gcdbench.nn.load import load_backbone
from gcdbench.training.conformance import SIZE, tiny_backbone


@pytest.fixture
def images():
    return torch.rand(4, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))


def plain_forward(backbone, images):
    """Run every block on all tokens with autograd, as the original codes do."""
    vit = backbone.vit
    x = vit._pos_embed(vit.patch_embed(backbone.normalise(images)))
    for block in vit.blocks:
        x = block(x)
    return vit.norm(x)[:, 0]


def with_normed_keys():
    """Return a backbone whose keys are not linear in its tokens."""
    vit = timm.models.VisionTransformer(
        img_size=SIZE, patch_size=8, embed_dim=48, depth=3, num_heads=3, num_classes=0, qk_norm=True
    )
    return Backbone(vit.eval(), mean=(0.5,) * 3, std=(0.5,) * 3, image_size=SIZE)


@pytest.mark.parametrize("make", [tiny_backbone, with_normed_keys])
def test_the_short_cuts_give_the_plain_output_and_gradients(images, make):
    backbone, images = make().double(), images.double()
    ours, plain = backbone(images).cls, plain_forward(backbone, images)
    torch.testing.assert_close(ours, plain)
    weights = [p for p in backbone.parameters() if p.requires_grad]
    ours_grad = torch.autograd.grad(ours.square().sum(), weights)
    plain_grad = torch.autograd.grad(plain.square().sum(), weights)
    for a, b in zip(ours_grad, plain_grad, strict=True):
        torch.testing.assert_close(a, b)


def test_the_trunk_gives_the_same_in_parts(images, monkeypatch):
    backbone = tiny_backbone()
    patches = backbone.patches(images)
    whole = backbone.trunk(patches, taps=[1])
    monkeypatch.setattr(backbone_module, "CPU_CACHE", 1)
    parts = backbone.trunk(patches, taps=[1])
    torch.testing.assert_close(whole.x, parts.x)
    torch.testing.assert_close(whole.taps[1], parts.taps[1])


def test_only_the_last_block_is_trained():
    names = {n for n, p in tiny_backbone().named_parameters() if p.requires_grad}
    assert names
    assert all(name.startswith("vit.blocks.2.") for name in names)


def test_a_tap_is_the_cls_token_behind_its_block_and_the_final_norm(images):
    backbone = tiny_backbone()
    backbone.tap(1)
    vit = backbone.vit
    x = vit.blocks[0](vit._pos_embed(vit.patch_embed(backbone.normalise(images))))
    torch.testing.assert_close(backbone(images).taps[1], vit.norm(x[:, 0]))


def test_a_tap_of_the_last_block_is_the_output(images):
    backbone = tiny_backbone()
    backbone.tap(3)
    encoded = backbone(images)
    torch.testing.assert_close(encoded.taps[3], encoded.cls)


@pytest.mark.parametrize("block", [0, 4])
def test_a_block_that_does_not_exist_cannot_be_tapped(block):
    with pytest.raises(ValueError, match=r"the blocks are 1\.\.3"):
        tiny_backbone().tap(block)


def test_attention_of_cls_to_patches_and_prefix_sums_to_one(images):
    attention = tiny_backbone().attention(images)
    assert attention.shape == (3, 4, 3, 16)
    assert (attention.sum(-1) < 1).all()  # the rest is on the CLS token itself
    assert (attention > 0).all()


def test_hooks_see_every_block_and_end_with_the_context(images):
    backbone, seen = tiny_backbone(), []

    def hook(x, block):
        seen.append(block)
        return x

    with backbone.hooked([hook], lambda cls: cls * 0):
        assert backbone(images).cls.abs().max() == 0
    assert seen == [0, 1, 2, 3]
    assert backbone(images).cls.abs().max() > 0


def original_dino_layout(state):
    """Return a checkpoint of a whole run, as DINO's training writes it."""
    return {
        "student": {f"module.backbone.{k}": 0 * v for k, v in state.items()},
        "teacher": {f"backbone.{k}": v for k, v in state.items()}
        | {"head.last_layer.weight_g": torch.ones(3)},
        "epoch": 100,
        "args": argparse.Namespace(arch="vit_tiny", patch_size=16),
    }


def test_local_weights_load_from_all_layouts(tmp_path):
    vit = timm.create_model("vit_tiny_patch16_224", num_classes=0)
    state = vit.state_dict()
    save_file(state, tmp_path / "timm.safetensors")
    torch.save(original_dino_layout(state), tmp_path / "dino.pth")
    torch.save(state, tmp_path / "dino_backbone_only.pth")
    torch.save({"state_dict": state}, tmp_path / "timm.pth")
    for file in ("timm.safetensors", "dino.pth", "dino_backbone_only.pth", "timm.pth"):
        config = BackboneConfig("vit_tiny_patch16_224", weights=str(tmp_path / file))
        loaded = load_backbone(config)
        assert isinstance(loaded, Backbone)
        for name, value in loaded.vit.state_dict().items():
            assert torch.equal(value, state[name]), name


def test_a_transformer_for_images_of_any_size_gives_patches_in_a_row(tmp_path):
    vit = timm.create_model("test_vit", num_classes=0).eval()
    save_file(vit.state_dict(), tmp_path / "any.safetensors")
    backbone = load_backbone(BackboneConfig("test_vit", weights=str(tmp_path / "any.safetensors")))
    side = backbone.image_size
    images = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0))
    assert backbone.patches(images).ndim == 3
    expected = vit.forward_features(backbone.normalise(images))[:, 0]
    torch.testing.assert_close(backbone(images).cls, expected, rtol=1e-4, atol=1e-5)


def test_a_dinov2_takes_weights_of_its_own_image_size_at_224_pixels(tmp_path):
    name = "vit_small_patch14_dinov2.lvd142m"
    state = timm.create_model(name, num_classes=0).state_dict()  # positions for 518 pixels
    assert state["pos_embed"].shape[1] == 1 + 37**2
    torch.save({**state, "mask_token": torch.zeros(1, 384)}, tmp_path / "dinov2.pth")
    backbone = load_backbone(BackboneConfig(name, weights=str(tmp_path / "dinov2.pth")))
    assert backbone.image_size == 224
    assert backbone.vit.pos_embed.shape[1] == 1 + 16**2
    assert torch.equal(backbone.vit.cls_token, state["cls_token"])
    with torch.no_grad():
        assert backbone(torch.zeros(1, 3, 224, 224)).cls.shape == (1, 384)


class Malicious:
    def __reduce__(self):
        return (print, ("executed",))


def test_weights_that_do_not_fit_or_cannot_be_trusted_are_refused(tmp_path, capsys):
    torch.save({"blocks.0.norm1.weight": torch.ones(3)}, tmp_path / "other.pth")
    with pytest.raises(UserError, match="do not fit the backbone"):
        load_backbone(BackboneConfig("vit_tiny_patch16_224", weights=str(tmp_path / "other.pth")))
    torch.save(Malicious(), tmp_path / "bad.pth")
    with pytest.raises(UserError, match="cannot be read as weights"):
        load_backbone(BackboneConfig("vit_tiny_patch16_224", weights=str(tmp_path / "bad.pth")))
    assert "executed" not in capsys.readouterr().out


def test_an_unknown_backbone_is_refused():
    with pytest.raises(UserError, match="unknown backbone 'resnet_of_mine'"):
        load_backbone(BackboneConfig("resnet_of_mine"))


def test_a_backbone_that_is_no_transformer_is_refused():
    reason = "a VisionTransformer or Eva of timm is needed, and ResNet is none"
    with pytest.raises(UserError, match=reason):
        load_backbone(BackboneConfig("resnet18", weights="unused"))
