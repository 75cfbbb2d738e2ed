"""The backbone that ships with the package."""

from __future__ import annotations

import socket

import pytest
import timm
import torch
from safetensors import safe_open
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from gcdbench.nn.embedded import (
    DEPTH,
    IMAGE_SIZE,
    MEAN,
    STD,
    WEIGHTS,
    WIDTH,
    Lite0Stem,
    build_embedded,
    fold_batchnorm,
    load_embedded,
)


@pytest.fixture(scope="module")
def model() -> VisionTransformer:
    return load_embedded()


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 3, IMAGE_SIZE, IMAGE_SIZE, generator=generator)


def test_it_loads_without_a_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the embedded backbone asked for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert isinstance(load_embedded(), VisionTransformer)


def test_the_shipped_folder_stays_small():
    assert sum(path.stat().st_size for path in WEIGHTS.parent.iterdir()) < 9_000_000


def test_weights_are_stored_in_half_and_used_in_single_precision(model):
    with safe_open(WEIGHTS, framework="pt") as stored:
        assert {stored.get_tensor(name).dtype for name in stored.keys()} == {torch.float16}  # noqa: SIM118
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


def test_the_weights_say_what_they_were_made_from():
    with safe_open(WEIGHTS, framework="pt") as stored:
        metadata = stored.metadata()
    assert len(metadata["corpus_sha256"]) == len(metadata["stem_sha256"]) == 64
    assert "pretrain.py" in metadata["command"]
    assert "torch" in metadata["versions"]
    assert "Apache-2.0" in metadata["stem"]


def test_licence_and_attribution_lie_beside_the_weights():
    notice = (WEIGHTS.parent / "LICENSE-efficientnet-lite0").read_text(encoding="utf-8")
    assert "ML Illustrated" in notice
    assert "Iconify" in (WEIGHTS.parent / "README.md").read_text(encoding="utf-8")


def test_an_image_becomes_sixteen_tokens_and_one_feature(model, images):
    with torch.inference_mode():
        assert model.patch_embed(images).shape == (3, 16, WIDTH)
        assert model(images).shape == (3, WIDTH)


def test_the_steps_of_a_vision_transformer_give_its_feature(model, images):
    with torch.inference_mode():
        tokens = model.norm_pre(model._pos_embed(model.patch_embed(images)))
        for block in model.blocks:
            tokens = block(tokens)
        feature = model.norm(tokens)[:, 0]
        torch.testing.assert_close(feature, model(images))
    assert len(model.blocks) == DEPTH
    assert isinstance(model.norm_pre, nn.Identity)


def test_two_loads_give_the_same_features(model, images):
    with torch.inference_mode():
        assert torch.equal(load_embedded()(images), model(images))


def test_an_image_does_not_depend_on_its_batch(model, images):
    with torch.inference_mode():
        torch.testing.assert_close(model(images)[1:2], model(images[1:2]), rtol=1e-4, atol=1e-4)


def test_training_mode_changes_neither_the_features_nor_the_stem(images):
    model = load_embedded()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        expected = model(images)
        for _ in range(2):
            torch.testing.assert_close(model.train()(images), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


def test_the_stem_takes_no_gradient_and_the_asked_block_does(images):
    model = load_embedded()
    model.requires_grad_(False)
    model.blocks[-1].requires_grad_(True)
    model(images).square().sum().backward()
    given = {name for name, p in model.named_parameters() if p.grad is not None}
    assert given == {name for name, _ in model.named_parameters() if name.startswith("blocks.3.")}


def test_only_the_stem_is_frozen_when_built():
    frozen = {name for name, p in build_embedded().named_parameters() if not p.requires_grad}
    stem = "patch_embed.backbone."
    assert frozen == {n for n, _ in build_embedded().named_parameters() if n.startswith(stem)}


def test_pixels_are_scaled_as_lite0_was_trained():
    pixel = torch.tensor([0.0, 127.0, 255.0])
    torch.testing.assert_close((pixel / 255 - MEAN[0]) / STD[0], (pixel - 127) / 128)


def test_folding_batch_normalisation_keeps_the_stem_s_function(images):
    torch.manual_seed(0)
    lite0 = timm.create_model("tf_efficientnet_lite0", num_classes=0).eval()
    for module in lite0.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 2.0)
            nn.init.normal_(module.bias)
    with torch.inference_mode():
        early = lite0.blocks[:2](lite0.bn1(lite0.conv_stem(images)))
        late = lite0.blocks[2:5](early)
        maps = torch.cat([late, early.unflatten(3, (4, 4)).unflatten(2, (4, 4)).mean((3, 5))], 1)
        torch.testing.assert_close(
            Lite0Stem(lite0.state_dict())(images), maps, rtol=1e-3, atol=1e-3
        )
    assert maps.std() > 0.1


def test_a_batch_normalisation_without_a_convolution_is_refused():
    with pytest.raises(ValueError, match="no convolution comes before"):
        fold_batchnorm(nn.Sequential(nn.BatchNorm2d(3)))
