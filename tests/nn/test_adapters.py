"""Adapters: what they compute against a plain pass, where gradients go, and what is cacheable."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from gcdbench.nn.adapters import (
    PIXELS,
    Adapter,
    AddedTokens,
    DeepPrompts,
    LoRA,
    PixelPrompt,
)
from gcdbench.nn.backbone import Backbone
from gcdbench.training.conformance import SIZE, tiny_backbone
from gcdbench.training.weights import trained_state

DIM, BLOCKS = 48, 3


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


@pytest.fixture
def images():
    return torch.rand(4, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0)).double()


def plain(backbone: Backbone, images: torch.Tensor, at=None, replaced: bool = False):
    """Run every block on all tokens; ``at`` (block -> tokens) come after all others."""
    vit, added = backbone.vit, 0
    x = vit._pos_embed(vit.patch_embed(images))
    for number, block in enumerate(vit.blocks, start=1):
        if at and number in at:
            if replaced and added:
                x = x[:, :-added]
            x = torch.cat([x, at[number].expand(len(x), -1, -1)], dim=1)
            added = at[number].shape[0]
        x = block(x)
    return vit.norm(x), added


def assert_same_gradients(ours, expected, parameters):
    parameters = list(parameters)
    for a, b in zip(
        torch.autograd.grad(ours.square().sum(), parameters),
        torch.autograd.grad(expected.square().sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
        assert a.abs().sum() > 0


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_added_tokens_are_attended_to_and_returned(images, depth):
    backbone = tiny_backbone().double()
    adapter = AddedTokens(numbers(2, DIM), depth).double()
    backbone.adapt(adapter)
    assert backbone.num_frozen == depth
    found = backbone(images)
    expected, added = plain(backbone, backbone.normalise(images), {depth + 1: adapter.value})
    torch.testing.assert_close(found.cls, expected[:, 0])
    torch.testing.assert_close(found.added, expected[:, -added:])
    trained = [adapter.value, *(p for p in backbone.vit.parameters() if p.requires_grad)]
    both = torch.cat([found.cls[:, None], found.added], dim=1)
    assert_same_gradients(both, torch.cat([expected[:, :1], expected[:, -added:]], 1), trained)


def test_tokens_of_the_trunk_can_be_kept_below_an_adapter(images):
    backbone = tiny_backbone().double()
    backbone.adapt(AddedTokens(numbers(1, DIM), 1).double())
    kept = backbone.trunk(backbone.patches(images))
    assert not kept.x.requires_grad
    torch.testing.assert_close(backbone(kept).cls, backbone(images).cls)


def test_the_output_without_the_final_norm(images):
    backbone = tiny_backbone().double()
    backbone.adapt(AddedTokens(numbers(1, DIM), 2).double())
    normed = backbone(images)
    backbone.final_norm = False
    raw = backbone(images)
    torch.testing.assert_close(backbone.vit.norm(raw.cls), normed.cls)
    torch.testing.assert_close(backbone.vit.norm(raw.added), normed.added)
    assert not torch.allclose(raw.cls, normed.cls)


def test_prompts_at_every_block_replace_each_other(images):
    backbone = tiny_backbone().double()
    adapter = DeepPrompts(numbers(BLOCKS, 2, DIM)).double()
    backbone.adapt(adapter)
    at = {number: adapter.value[number - 1] for number in range(1, BLOCKS + 1)}
    expected, _ = plain(backbone, backbone.normalise(images), at, replaced=True)
    found = backbone(images).cls
    torch.testing.assert_close(found, expected[:, 0])
    assert_same_gradients(found, expected[:, 0], [adapter.value])


def test_a_pixel_prompt_acts_on_normalised_images_where_its_mask_is_one(images):
    backbone = tiny_backbone().double()
    mask = torch.zeros(1, SIZE, SIZE)
    mask[:, :4] = 1
    adapter = PixelPrompt(numbers(3, SIZE, SIZE), mask).double()
    backbone.adapt(adapter)
    assert backbone.adapts_pixels
    shown = backbone.normalise(images).clone()
    shown[:, :, :4] += adapter.value[:, :4]
    expected, _ = plain(backbone, shown)
    found = backbone(images).cls
    torch.testing.assert_close(found, expected[:, 0])
    (grad,) = torch.autograd.grad(found.square().sum(), adapter.value)
    assert grad[:, :4].abs().sum() > 0
    assert grad[:, 4:].abs().sum() == 0


@pytest.mark.parametrize("layers", [("attn.qkv",), ("attn.proj", "mlp.fc1")])
def test_lora_adds_a_matrix_of_low_rank_to_the_weights(images, layers):
    backbone, untouched = tiny_backbone().double(), tiny_backbone().double()
    generator = torch.Generator().manual_seed(0)
    backbone.adapt(LoRA(rank=2, depth=1, alpha=4.0, layers=layers, generator=generator))
    torch.testing.assert_close(backbone(images).cls, untouched(images).cls)  # starts at zero
    for block, same in zip(backbone.vit.blocks[1:], untouched.vit.blocks[1:], strict=True):
        for path in layers:
            (update,) = block.get_submodule(path).parametrizations.weight
            torch.nn.init.normal_(update.up, generator=generator)
            product = (update.up @ update.down).detach()
            assert torch.linalg.matrix_rank(product) == 2
            same.get_submodule(path).weight.data += 4.0 / 2 * product
    found, expected = backbone(images).cls, untouched(images).cls
    torch.testing.assert_close(found, expected)
    updates = [p for n, p in backbone.named_parameters() if n.endswith((".up", ".down"))]
    assert len(updates) == 2 * 2 * len(layers)
    assert all(grad.abs().sum() > 0 for grad in torch.autograd.grad(found.sum(), updates))


def test_an_adapter_can_rest(images):
    backbone = tiny_backbone().double()
    before = backbone(images).cls
    generator = torch.Generator().manual_seed(0)
    lora = LoRA(rank=2, generator=generator)
    adapters = [AddedTokens(numbers(1, DIM), 0).double(), lora]
    adapters += [PixelPrompt(numbers(3, SIZE, SIZE)).double()]
    for one in adapters:
        backbone.adapt(one)
    for name, parameter in backbone.named_parameters():
        if name.endswith(".up"):
            torch.nn.init.normal_(parameter, generator=generator)
    assert not torch.allclose(backbone(images).cls, before)
    with backbone.without():
        torch.testing.assert_close(backbone(images).cls, before)
    with backbone.without(adapters[0]):
        assert not torch.allclose(backbone(images).cls, before)
    assert all(one.active for one in adapters)


def test_hooks_do_not_see_added_tokens(images):
    backbone, seen = tiny_backbone().double(), []
    backbone.adapt(AddedTokens(numbers(2, DIM), 0).double())

    def hook(x, block):
        seen.append(x.shape[1])
        return x

    without = backbone(images).cls
    with backbone.hooked([hook], lambda cls: cls):
        torch.testing.assert_close(backbone(images).cls, without)
    assert seen == [16, 17, 17, 17]


@pytest.mark.parametrize("depth", [-2, 3])
def test_a_depth_that_does_not_exist_is_refused(depth):
    with pytest.raises(ValueError, match=r"expected PIXELS \(-1\) or .* 0\.\.2"):
        tiny_backbone().adapt(AddedTokens(numbers(1, DIM), depth))


def test_patch_tokens_pass_the_final_norm(images):
    backbone = tiny_backbone().double()
    backbone.adapt(AddedTokens(numbers(2, DIM), 1).double())
    backbone.reads_patches = True
    expected, _ = plain(backbone, backbone.normalise(images), {2: backbone.adapters[0].value})
    found = backbone(images)
    torch.testing.assert_close(found.patches, expected[:, 1:17])
    torch.testing.assert_close(found.cls, expected[:, 0])


def test_views_of_several_sizes_are_encoded_in_their_order(images):
    backbone = tiny_backbone().double()
    small = F.interpolate(images, size=(16, 16))
    found = backbone((images, images.flip(3), small)).cls
    torch.testing.assert_close(found[:8], backbone(torch.cat([images, images.flip(3)])).cls)
    torch.testing.assert_close(found[8:], backbone(small).cls)


def test_positions_of_a_small_view_are_resampled(images):
    backbone = tiny_backbone().double()
    small = F.interpolate(images, size=(16, 16))
    vit = backbone.vit
    grid = vit.pos_embed[:, 1:].unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    coarse = F.interpolate(grid, size=(2, 2), mode="bicubic", antialias=True).flatten(2).mT
    x = torch.cat([vit.cls_token.expand(4, -1, -1), backbone.patches(small)], dim=1)
    x = x + torch.cat([vit.pos_embed[:, :1], coarse], dim=1)
    for block in vit.blocks:
        x = block(x)
    torch.testing.assert_close(backbone(small).cls, vit.norm(x)[:, 0])


def test_a_copy_shares_the_trunk_and_owns_the_rest(images):
    backbone = tiny_backbone().double()
    generator = torch.Generator().manual_seed(0)
    backbone.adapt(LoRA(rank=2, depth=2, generator=generator))
    backbone.adapt(AddedTokens(numbers(1, DIM), 2).double())
    teacher = copy.deepcopy(backbone).requires_grad_(False)
    torch.testing.assert_close(teacher(images).cls, backbone(images).cls)
    assert teacher.vit.blocks[0] is backbone.vit.blocks[0]
    assert teacher.vit.cls_token is backbone.vit.cls_token
    before = teacher(images).cls
    for parameter in backbone.parameters():
        if parameter.requires_grad:
            parameter.data.add_(0.1)
    torch.testing.assert_close(teacher(images).cls, before)
    assert not torch.allclose(backbone(images).cls, before)


def test_the_state_holds_a_frozen_teacher_but_not_the_pretrained_trunk():
    model = torch.nn.ModuleDict({"backbone": tiny_backbone()})
    model["teacher"] = copy.deepcopy(model["backbone"]).requires_grad_(False)
    names = set(trained_state(model))
    assert {"backbone.vit.blocks.2.attn.qkv.weight", "teacher.vit.blocks.2.attn.qkv.weight"} < names
    assert not any(".blocks.0." in name or "pos_embed" in name for name in names)


def test_an_adapter_of_ones_own_can_do_nothing(images):
    class Nothing(Adapter):
        depth = PIXELS

    backbone = tiny_backbone().double()
    before = backbone(images).cls
    backbone.adapt(Nothing())
    torch.testing.assert_close(backbone(images).cls, before)
