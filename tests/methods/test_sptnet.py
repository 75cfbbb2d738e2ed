"""SPTNet against outputs of its authors' code (golden/README_next.md)."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from helpers.golden import assert_near, load_golden, make_batch, module_of, part, visible
from timm.models.vision_transformer import VisionTransformer
from torch import nn

from gcdbench.core import registry
from gcdbench.core.config import build
from gcdbench.nn.backbone import Backbone
from gcdbench.training.method import Clock, Task

ARRAYS, SCALARS = load_golden("next_sptnet")
ours = module_of("sptnet")


def as_images(given, shape):
    """Return the reference's prompts as images in the order of ours: frames, then border."""
    images = [given[name][0] for name in given if name.endswith("patch")]
    pads = {name.rpartition("_")[2]: given[name][0] for name in given if "pad_" in name}
    if pads:
        image, width = torch.zeros(shape), pads["up"].shape[1]
        inner = slice(width, -width)
        image[:, :width], image[:, -width:] = pads["up"], pads["down"]
        image[:, inner, :width], image[:, inner, -width:] = pads["left"], pads["right"]
        images.append(image)
    return images


def numbers(masks, given):
    """Return the reference's numbers as the one vector that ours are."""
    images = as_images(given, (3, *masks[0].shape))
    found = [image[mask.expand_as(image)] for mask, image in zip(masks, images, strict=True)]
    return torch.cat(found)


KINDS = {"patch": (8, 1, None), "patch2": (8, 2, None), "pad": (None, None, 3), "all": (8, 1, 3)}


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_are_added_where_the_original_adds_them(kind):
    patch, frame, width = KINDS[kind]
    masks = [] if patch is None else [ours.frames(24, patch, frame)]
    masks += [] if width is None else [ours.border(24, width)]
    prompts = ours.Prompts(masks, torch.Generator())
    given = part(ARRAYS, f"place__{kind}_param_")
    with torch.no_grad():
        prompts.value.copy_(numbers(masks, given))
    shown = prompts.images(ARRAYS["place__images"])
    assert_near(shown, ARRAYS[f"place__{kind}_out"])
    if wanted := part(ARRAYS, f"place__{kind}_grad_"):
        (grad,) = torch.autograd.grad((shown * ARRAYS["place__probe"]).sum(), prompts.value)
        assert_near(grad, numbers(masks, wanted))


def test_there_are_as_many_numbers_as_in_the_original():
    frame, edge = ours.frames(224, 16, 1), ours.border(224, 30)
    assert len(ours.Prompts([frame], torch.Generator()).value) == 35_280
    assert len(ours.Prompts([edge], torch.Generator()).value) == 69_840


def sptnet(*, epochs=1, steps=5, **config):
    vit = VisionTransformer(
        img_size=16,
        patch_size=8,
        embed_dim=8,
        depth=12,
        num_heads=2,
        mlp_ratio=2,
        num_classes=0,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
    )
    init = part(ARRAYS, "loop__init_")
    vit.load_state_dict(part(init, "0."))
    backbone = Backbone(vit.eval(), mean=(0,) * 3, std=(1,) * 3, image_size=16)
    task = Task(7, 4, torch.full((8,), -1), epochs=epochs, steps_per_epoch=steps, seed=0)
    cls = registry.load("method", "sptnet")
    values = {
        "hidden_dim": 10,
        "projection_dim": 6,
        "border": 2 / 16,
        "simgcd_share": 0.0,
        **config,
    }
    method = cls(build(cls.Config, values, "sptnet"), task, backbone)
    method.projector.load_state_dict({k: v for k, v in part(init, "1.").items() if "mlp" in k})
    masks = [ours.frames(16, 8, 1), ours.border(16, 2)]
    with torch.no_grad():
        method.classifier.weight.copy_(init["1.last_layer.weight_v"])
        given = part(init, "prompter.")
        method.prompts.value.copy_(numbers(masks, given))
    return method, masks


@pytest.mark.parametrize("every", [1, 2, 3, 20])
def test_turns_change_as_in_the_original(every):
    wanted, steps = (
        SCALARS[f"alternation_freq{every}"][k] for k in ("updated", "batches_per_epoch")
    )
    epochs = len(wanted) // steps
    method, _ = sptnet(epochs=epochs, steps=steps, spell=every)
    clocks = [Clock(t // steps, t, epochs, steps, 0) for t in range(epochs * steps)]
    names = {"prompts": "P", "classifier": "C"}
    assert "".join(names[method.phase(one).name] for one in clocks) == wanted


def test_five_steps_match_the_original_with_its_rates():
    method, masks = sptnet(spell=2, teacher_warmup=1)
    scalars = SCALARS["loop"]["steps"]
    heads = [*method.projector.parameters(), *method.classifier.parameters()]
    block = list(method.backbone.vit.blocks[11].parameters())
    decayed = [p for p in (*block, *heads) if p.ndim > 1]
    flat = [p for p in (*block, *heads) if p.ndim < 2]
    optimizers = {
        "prompts": torch.optim.SGD([method.prompts.value], lr=1.0, momentum=0.9),
        "classifier": torch.optim.SGD(
            [{"params": decayed, "weight_decay": 5e-4}, {"params": flat}], lr=0.05, momentum=0.9
        ),
    }
    for number, expected in enumerate(scalars):
        now = Clock(0, number, 1, 5, 0)
        name = method.phase(now).name
        assert expected["updated"] == name
        for one in (method.prompts.value, *block, *heads):
            one.requires_grad_((one is method.prompts.value) == (name == "prompts"))
        labels = visible(ARRAYS[f"loop__labels_{number}"], ARRAYS[f"loop__mask_lab_{number}"])
        step = method.step(make_batch(ARRAYS[f"loop__images_{number}"], labels), now)
        terms = {
            "distil": 0.65 * expected["distill"],
            "entropy": 0.65 * expected["memax"],
            "contrast": 0.65 * expected["infonce"],
            "classify": 0.35 * expected["cls"],
            "sup_contrast": 0.35 * expected["supcon"],
        }
        near = {"rtol": 1e-4, "atol": 1e-4}
        for term, value in terms.items():
            assert_near(step.terms[term], value, **near)
        optimizer = optimizers[name]
        for group in optimizer.param_groups:
            group["lr"] = expected["lr"]
        optimizer.zero_grad()
        step.loss.backward()
        if number == 0:
            wanted = part(ARRAYS, "loop__step0_grad_prompter.")
            assert_near(method.prompts.value.grad, numbers(masks, wanted), **near)
        optimizer.step()
    after = part(ARRAYS, "loop__after_")
    assert_near(method.prompts.value, numbers(masks, part(after, "prompter.")), **near)
    assert_near(method.classifier.weight, after["1.last_layer.weight_v"], **near)
    for name, found in method.backbone.vit.blocks[11].named_parameters():
        assert_near(found, after[f"0.blocks.11.{name}"], **near)


def test_the_first_part_of_the_run_is_simgcd_without_prompts():
    method, _ = sptnet(epochs=4, simgcd_share=0.5)
    first, later = Clock(1, 9, 4, 5, 0), Clock(2, 10, 4, 5, 0)
    assert method.phase(first).name == "simgcd"
    assert method.phase(later).name == "prompts"
    assert method.phase(first).train == ("backbone.vit", "projector", "classifier")
    labels = visible(ARRAYS["loop__labels_0"], ARRAYS["loop__mask_lab_0"])
    batch = make_batch(ARRAYS["loop__images_0"], labels)
    with torch.no_grad():
        plain = method.backbone.vit.forward_features(ARRAYS["loop__images_0"])[:, 0]
    assert_near(method.step(batch, first).features, plain, rtol=1e-4, atol=1e-5)
    assert (method.step(batch, later).features - plain).abs().max() > 1e-3


def test_evaluation_sees_prompts_from_the_first_turn_on():
    method, _ = sptnet(epochs=4, simgcd_share=0.5)
    labels = visible(ARRAYS["loop__labels_0"], ARRAYS["loop__mask_lab_0"])
    batch = make_batch(ARRAYS["loop__images_0"], labels)
    for epoch, phase in enumerate(["simgcd", "simgcd", "prompts", "prompts"]):
        clock = Clock(epoch, 5 * epoch, 4, 5, 0)
        assert method.phase(clock).name == phase
        method.begin_epoch(clock, None)
        with torch.no_grad():
            assert torch.equal(method.encode(batch).cls, method.step(batch, clock).features)


def test_the_prompt_warms_up_to_its_own_rate():
    method, _ = sptnet(epochs=2, steps=100, prompt_warmup=0.05, prompt_lr=40.0, spell=50)
    rates = [method.phase(Clock(0, t, 2, 100, 0)).lr for t in (0, 4, 9, 30)]
    assert rates == pytest.approx([4.0, 20.0, 40.0, 40.0])
    assert method.phase(Clock(0, 60, 2, 100, 0)).lr == 1.0
