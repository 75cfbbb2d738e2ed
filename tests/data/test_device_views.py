"""Views made on a device are those of the CPU, from the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gcdbench.data.views import Frames, Views
from gcdbench.data.views.colour import ORDERS

RNG = np.random.RandomState(0)
SHAPES = [(64, 90), (64, 64), (131, 64), (64, 73)]


def picture(height: int, width: int) -> np.ndarray:
    """Return an image with smooth parts, edges and noise."""
    y, x = np.mgrid[:height, :width]
    waves = [127 + 120 * np.sin(x / (5 + c) + c) * np.cos(y / (9 - c)) for c in range(3)]
    image = np.stack(waves, 2) + RNG.normal(0, 8, (height, width, 3))
    image[height // 3 :, width // 2 :] = RNG.randint(0, 256, 3)
    return image.clip(0, 255).astype(np.uint8)


PICTURES = [picture(*SHAPES[i % 4]) for i in range(24)]


def both(views: Views, kinds: tuple[str, ...], draws: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """Return what device and CPU make of the pictures, per view as (b, h, w, 3)."""
    frames = Frames.pack(PICTURES)
    made = views.train_all(frames, draws, kinds)
    expected = [
        np.stack([views.train(p, u, kind) for p, u in zip(PICTURES, draw, strict=True)])
        for kind, draw in zip(kinds, draws, strict=True)
    ]
    return [(m.permute(0, 2, 3, 1).numpy(), e) for m, e in zip(made, expected, strict=True)]


def draws(views: int, numbers: int) -> np.ndarray:
    return torch.rand(views, len(PICTURES), numbers).numpy()


@pytest.mark.parametrize("changes", [{"flip", "colour"}, {"colour"}])
@pytest.mark.parametrize("kind", ["plain", "weak"])
def test_crops_and_flips_have_the_same_bytes(kind, changes):
    for _ in range(20):
        for made, expected in both(
            Views(56, changes=frozenset(changes)), (kind, kind), draws(2, 3)
        ):
            assert np.array_equal(made, expected)


def test_the_last_number_below_one_stays_inside():
    edge = np.full((1, len(PICTURES), 3), np.nextafter(np.float32(1), np.float32(0)))
    for made, expected in both(Views(56), ("plain",), edge):
        assert np.array_equal(made, expected)


def test_jittered_views_have_the_same_bytes():
    views = Views(56, "jitter")
    seen = set()
    for _ in range(10):
        drawn = draws(2, 9)
        seen |= {int(number * 24) for number in drawn[..., 3].flat}
        for made, expected in both(views, ("plain", "plain"), drawn):
            assert np.array_equal(made, expected)
    assert len(seen) == len(ORDERS)


@pytest.mark.parametrize("kind", ["strong", "small"])
@pytest.mark.parametrize("size", [56, 112])  # smaller and larger than what is cut out
def test_resized_views_have_the_same_bytes_and_blurred_ones_are_within_a_level(kind, size):
    views = Views(size)
    for _ in range(3):
        drawn = draws(2, 14)
        for view, (made, expected) in enumerate(both(views, (kind, kind), drawn)):
            apart = np.abs(made.astype(int) - expected).max((1, 2, 3))
            assert apart.max() <= 1
            assert apart[drawn[view, :, 12] >= 0.2].max() == 0


def test_views_of_several_kinds_come_in_their_order():
    views, kinds = Views(56), ("small", "plain", "plain", "weak")
    made = both(views, kinds, draws(4, 14))
    assert [one.shape[1] for one, _ in made] == [32, 56, 56, 56]
    for one, expected in made[1:]:
        assert np.array_equal(one, expected)
