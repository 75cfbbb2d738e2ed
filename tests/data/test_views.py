"""Kinds of views: what they do to an image, from which numbers, and in which batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import functional as reference

from gcdbench.data.images import ArrayImages
from gcdbench.data.problem import EvalSet, Problem
from gcdbench.data.views import Views, kinds
from gcdbench.data.views.blur import blurred
from gcdbench.errors import UserError
from gcdbench.plugin import view_kind
from gcdbench.training.loader import Loader
from gcdbench.training.method import seeded

RNG = np.random.RandomState(0)
PICTURE = RNG.randint(0, 256, (73, 91, 3), dtype=np.uint8)


def numbers(*, crop=(0.5, 0.5, 0.0, 0.0), flip=0.9, jitter=0.9, grey=0.9, blur=0.9, sigma=0.5):
    """Return the 14 numbers of a strong view."""
    return (*crop, flip, jitter, 0.3, 0.1, 0.9, 0.2, 0.8, grey, blur, sigma)


def make_problem(**settings) -> Problem:
    pixels = RNG.randint(0, 256, (40, 40, 50, 3), dtype=np.uint8)
    rows = np.arange(40)
    return Problem(
        name="test",
        classes=("a", "b"),
        num_old=1,
        images=ArrayImages(pixels, [f"{i}" for i in rows]),
        labels=rows % 2,
        labelled=rows[:10:2],
        unlabelled=rows[10:],
        sets={"all": EvalSet(rows, "source")},
        **settings,
    )


def batches(problem: Problem, **settings) -> list:
    loader = Loader(problem, **{"size": 32, "batch_size": 8, **settings})
    return list(loader.epoch(2, torch.ones(len(problem.pool)).double()))


# --- one view


@pytest.mark.parametrize("kind", ["weak", "plain"])
def test_a_weak_view_is_a_crop_that_may_be_flipped(kind):
    views = Views(64)
    assert np.array_equal(views.train(PICTURE, (0, 0, 0.6), kind), PICTURE[:64, :64])
    flipped = views.train(PICTURE, (0.999, 0.999, 0.4), kind)
    assert np.array_equal(flipped, PICTURE[9:, 27:][:, ::-1])


def test_a_weak_view_keeps_its_colours_where_a_plain_one_is_jittered():
    views, draw = Views(64, "jitter"), RNG.rand(9)
    assert np.array_equal(views.train(PICTURE, draw, "weak"), Views(64).train(PICTURE, draw))
    assert not np.array_equal(views.train(PICTURE, draw, "weak"), views.train(PICTURE, draw))


@pytest.mark.parametrize("kind", ["strong", "small"])
def test_a_strong_view_is_that_of_torchvision(kind):
    views, recipe = Views(64), {"strong": kinds.STRONG, "small": kinds.SMALL}[kind]
    side = views.side(kind)
    for _ in range(30):
        draw = RNG.rand(14)
        draw[12] = 0.9  # the blur is tested below
        top, left, height, width = recipe.box(draw, 73, 91)
        whole = Image.fromarray(PICTURE)
        once = reference.resized_crop(whole, top, left, height, width, [side, side])
        cut = PICTURE[top : top + height, left : left + width]
        expected = Image.fromarray(kinds.resized(cut, side))
        assert np.abs(np.asarray(once).astype(int) - np.asarray(expected)).max() <= 1
        if draw[4] < 0.5:
            expected = reference.hflip(expected)
        if draw[5] < 0.5:
            amounts = (2 * draw[7:11] - 1) * (0.4, 0.4, 0.2, 0.1)
            steps = (
                lambda p, a=amounts[0]: reference.adjust_brightness(p, 1 + a),
                lambda p, a=amounts[1]: reference.adjust_contrast(p, 1 + a),
                lambda p, a=amounts[2]: reference.adjust_saturation(p, 1 + a),
                lambda p, a=amounts[3]: reference.adjust_hue(p, a),
            )
            for step in kinds_order(draw[6]):
                expected = steps[step](expected)
        if draw[11] < 0.2:
            expected = reference.rgb_to_grayscale(expected, num_output_channels=3)
        found = views.train(PICTURE, draw, kind)
        assert np.array_equal(found, np.asarray(expected))


def kinds_order(number: float) -> tuple[int, ...]:
    from itertools import permutations

    return list(permutations(range(4)))[int(number * 24)]


def test_boxes_have_the_share_and_the_shape_they_were_drawn_with():
    draws = RNG.rand(500, 4)
    boxes = np.array([kinds.STRONG.box(draw, 600, 600) for draw in draws])
    top, left, height, width = boxes.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= 600).all()
    assert (left + width <= 600).all()
    free = (height < 600) & (width < 600)
    share, ratio = height * width / 600**2, width / height
    assert np.allclose(share[free], 0.5 + 0.5 * draws[free, 0], atol=2e-3)
    assert np.allclose(np.log(ratio[free]), (2 * draws[free, 1] - 1) * np.log(4 / 3), atol=5e-3)
    assert free.mean() > 0.5
    assert top.max() > 50


def test_small_views_have_a_whole_number_of_patches():
    assert Views(224).side("small") == 96
    assert Views(64).side("small") == 32
    assert Views(518, patch=14).side("small") == 224
    assert Views(32).train(PICTURE, RNG.rand(14), "small").shape == (16, 16, 3)


def test_a_blur_spreads_a_point_like_a_gaussian():
    image = np.zeros((41, 41, 3), dtype=np.uint8)
    image[20, 20] = (255, 0, 255)
    found = blurred(image, 1.5).astype(float)
    y, x = np.mgrid[-20:21, -20:21]
    bell = np.exp(-(x**2 + y**2) / (2 * 1.5**2))
    assert np.abs(found[..., 0] - 255 * bell / bell.sum()).max() <= 1
    assert np.array_equal(found[..., 0], found[..., 2])
    assert found[..., 1].max() == 0


def test_the_number_decides_whether_and_how_much_a_view_is_blurred():
    views = Views(64)
    sharp, soft, softer = (
        views.train(PICTURE, numbers(blur=blur, sigma=sigma), "strong").astype(float)
        for blur, sigma in ((0.9, 0.5), (0.1, 0.7), (0.1, 0.99))
    )
    rough = [np.abs(np.diff(view, axis=0)).mean() for view in (sharp, soft, softer)]
    assert rough[0] > rough[1] > rough[2]


# --- what is natural for the images


@pytest.mark.parametrize(("kind", "first"), [("plain", 2), ("weak", 2), ("strong", 4)])
def test_images_that_must_not_be_flipped_are_not(kind, first):
    digits = Views(64, changes=frozenset({"colour"}))
    low, high = np.array(numbers()), np.array(numbers())
    low[first], high[first] = 0.1, 0.9
    turned, straight = (digits.train(PICTURE, draw, kind) for draw in (low, high))
    assert np.array_equal(turned, straight)
    assert not np.array_equal(Views(64).train(PICTURE, low, kind), straight)


def test_images_whose_colour_is_their_class_keep_it():
    draw = numbers(jitter=0.1, grey=0.1)
    kept = Views(64, changes=frozenset({"flip"})).train(PICTURE, draw, "strong")
    assert np.array_equal(kept, Views(64).train(PICTURE, numbers(), "strong"))
    assert not np.array_equal(kept, Views(64).train(PICTURE, draw, "strong"))


def test_what_is_natural_is_part_of_a_problem_but_for_the_default():
    usual = make_problem()
    assert make_problem(changes=frozenset({"flip", "colour"})).fingerprint == usual.fingerprint
    assert make_problem(changes=frozenset({"colour"})).fingerprint != usual.fingerprint


# --- batches


@pytest.mark.parametrize("augment", ["plain", "jitter"])
def test_plain_batches_are_made_of_the_numbers_they_always_were(augment):
    problem = make_problem(augment=augment)
    weights = torch.ones(35).double()
    generator = seeded(0, "batches", 2)
    index = torch.multinomial(weights, 32, replacement=True, generator=generator).view(4, 8)
    draws = torch.rand((4, 2, 8, 3 if augment == "plain" else 9), generator=generator)
    for step, batch in enumerate(batches(problem)):
        assert torch.equal(batch.index, index[step])
        for view in range(2):
            for place, i in enumerate(index[step].tolist()):
                image = problem.images.resized(int(problem.pool[i]), 36)
                expected = Views(32, augment).train(image, draws[step, view, place].numpy())
                assert np.array_equal(batch.views[view, place].permute(1, 2, 0), expected)


def test_every_view_of_a_batch_is_of_its_kind():
    problem = make_problem()
    for batch in batches(problem, kinds=("weak", "strong", "strong")):
        assert batch.views.shape == (3, 8, 3, 32, 32)
        for place, i in enumerate(batch.index.tolist()):
            image = problem.images.resized(int(problem.pool[i]), 36)
            windows = np.lib.stride_tricks.sliding_window_view(image, (32, 32, 3))[:, :, 0]
            is_crop = [
                any((windows == side).all((2, 3, 4)).any() for side in (view, view[:, ::-1]))
                for view in batch.views[:, place].permute(0, 2, 3, 1).numpy()
            ]
            assert is_crop == [True, False, False]
        assert not torch.equal(batch.views[1], batch.views[2])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
@pytest.mark.parametrize("workers", [0, 1])
def test_views_of_several_sizes_are_a_tuple(workers):
    problem, asked = make_problem(), ("plain", "plain", "small", "small")
    for batch in batches(problem, kinds=asked, workers=workers):
        assert [tuple(view.shape) for view in batch.views] == [
            *[(8, 3, 32, 32)] * 2,
            *[(8, 3, 16, 16)] * 2,
        ]


# --- kinds of a plug-in


@pytest.fixture
def centre(monkeypatch):
    monkeypatch.setattr(kinds, "_KINDS", dict(kinds._KINDS))

    @view_kind("centre", numbers=1, share=0.5)
    def centre(image, draw, side, views):
        return np.full((side, side, 3), int(draw[0] * 256), dtype=np.uint8)

    return centre


def test_a_plug_in_adds_a_kind(centre):
    found = batches(make_problem(), kinds=("plain", "centre"))
    for batch in found:
        assert batch.views[1].shape == (8, 3, 16, 16)
        assert batch.views[1].flatten(1).float().std(1).max() == 0
    assert torch.cat([batch.views[1][:, 0, 0, 0] for batch in found]).float().std() > 10


def test_a_kind_of_another_file_is_not_replaced(centre):
    view_kind("centre", numbers=1)(centre)  # the same file, imported again
    with pytest.raises(UserError, match=r"'strong' is defined twice.*choose another name"):
        view_kind("strong", numbers=1)(centre)
    with pytest.raises(UserError, match="share 0 must be above 0"):
        view_kind("none", numbers=1, share=0)


def test_an_unknown_kind_is_named():
    with pytest.raises(UserError, match=r"unknown kind of view 'string'; did you mean 'strong'"):
        batches(make_problem(), kinds=("weak", "string"))
