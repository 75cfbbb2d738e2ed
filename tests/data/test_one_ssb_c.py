"""SSB-C has the same bytes in a tree, from a store and while loading."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.data_verbs import call, problem
from PIL import Image

from gcdbench.data.corruptions.frost import FrostTextures

SIZES = {"cub": 200, "cars": 196, "aircraft": 100}


@pytest.mark.slow
@pytest.mark.parametrize("dataset", SIZES)
def test_all_ways_to_ssb_c_have_the_same_bytes_in_all_45_variants(trees, tmp_path, dataset):
    getattr(trees, dataset)()
    computed = problem(dataset, trees.root)
    assert call("make-ssb-c", dataset, "--workers", 1, "--data-root", trees.root) == 0
    stored = problem(dataset, trees.root)
    assert stored.fingerprint == computed.fingerprint
    cached = computed.images.stored(tmp_path / "cache")
    number = SIZES[dataset]
    first = len(computed.images) - 45 * number
    for row in range(first, len(computed.images), number):  # one image of each variant
        row += row % number
        pixels = np.asarray(computed.images.open(row))
        assert np.array_equal(np.asarray(stored.images.open(row)), pixels)
        for size in (256, 64):
            expected = computed.images.resized(row, size)
            assert np.array_equal(stored.images.resized(row, size), expected)
            assert np.array_equal(cached.resized(row, size), expected)


def test_a_tree_of_another_quality_is_a_variant_that_must_be_named(trees):
    trees.aircraft()
    few = ["--corruptions", "fog", "--severities", 1, "--size", 32, "--workers", 1]
    call("make-ssb-c", "aircraft", *few, "--quality", 60, "--data-root", trees.root)
    asked = {"corruptions": ["fog"], "severities": [1], "corruption_size": 32}
    named = problem("aircraft", trees.root, **asked, jpeg_quality=60)
    usual = problem("aircraft", trees.root, **asked, corrupted="computed")
    assert named.notes["corrupted"] == "made at 32 px, JPEG quality 60"
    assert named.fingerprint != usual.fingerprint


def test_frost_never_draws_the_sixth_photograph(tmp_path):
    for number in range(1, 7):
        Image.new("RGB", (40, 40), (40 * number, 0, 0)).save(tmp_path / f"frost{number}.png")
    Image.new("RGB", (40, 40)).save(tmp_path / "._frost1.png")
    ice = FrostTextures.from_folder(tmp_path)
    assert [picture.getpixel((0, 0))[0] for picture in ice.pictures] == [40, 80, 120, 160, 200]
    assert ice.describe().startswith("5 photographs of ")
