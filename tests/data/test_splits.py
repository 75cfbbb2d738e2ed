from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import torch
from helpers.paths import GOLDEN as _GOLDEN
from timm.data import ImageNetInfo

from gcdbench.data.splits import (
    class_file,
    hold_out,
    labelled_half,
    per_class_sample,
    positions,
)
from gcdbench.training.loader import draw
from gcdbench.training.method import balanced_weights

GOLDEN = json.loads((_GOLDEN / "gcd_misc.json").read_text())


@pytest.mark.parametrize("number", GOLDEN["subsample_seed0"])
def test_the_labelled_half_is_the_draw_of_the_official_code(number):
    expected = GOLDEN["subsample_seed0"][number]
    picked = np.flatnonzero(labelled_half(np.zeros(int(number), dtype=int), 1))
    assert picked[:10].tolist() == expected["sorted_first10"]
    digest = hashlib.sha256(picked.astype("<i8").tobytes()).hexdigest()
    assert digest == expected["sha256_of_sorted_int64"]


def test_new_classes_have_no_labels_and_do_not_change_the_draw():
    labels = np.tile([0, 5], 50)
    mask = labelled_half(labels, 5)
    assert not mask[labels == 5].any()
    assert np.array_equal(mask[labels == 0], labelled_half(np.zeros(50, dtype=int), 1))


# the image lists of the real datasets are not at hand: both numbers of old-class training images
# that fit the published sizes are tried
@pytest.mark.parametrize(
    ("total", "old", "labelled", "unlabelled"),
    [
        (5994, (2996, 2997), 1498, 4496),  # CUB: 30 images a class, six classes with 29
        (8144, (4000, 4001), 2000, 6144),  # Cars
        (6667, (3332, 3333), 1666, 5001),  # Aircraft: 66 or 67 images a class
    ],
)
def test_the_published_numbers_of_labelled_images_follow_from_the_rule(
    total, old, labelled, unlabelled
):
    for number in old:
        labels = np.repeat([0, 1], [number, total - number])
        mask = labelled_half(labels, 1)
        assert (mask.sum(), (~mask).sum()) == (labelled, unlabelled)


@pytest.mark.parametrize("share", GOLDEN["balanced_subsample_seed0"]["picked"])
def test_a_share_of_each_class_is_the_draw_of_the_official_code(share):
    golden = GOLDEN["balanced_subsample_seed0"]
    picked = per_class_sample(np.array(golden["targets"]), float(share))
    assert picked.tolist() == golden["picked"][share]


def test_the_hold_out_takes_a_fifth_of_each_class_and_nothing_twice():
    labels = np.repeat(np.arange(4), 25)
    rows = np.flatnonzero(np.arange(100) % 25 < 20)
    kept, held = hold_out(rows, labels, 0.2)
    assert np.bincount(labels[held]).tolist() == [4, 4, 4, 4]
    assert np.array_equal(np.sort(np.concatenate([kept, held])), rows)


def test_a_label_is_the_position_in_the_old_and_then_the_new_list():
    label = positions([2, 0], [3, 1])
    assert label[[2, 0, 3, 1]].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("old", "new"), [([0, 1], [1, 2]), ([0], [2]), ([0, 0], [1])])
def test_classes_that_are_missing_or_named_twice_are_refused(old, new):
    with pytest.raises(ValueError, match="each of them once"):
        positions(old, new)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("cub", 100, [34, 34, 32]), ("cars", 98, [7, 15, 76]), ("aircraft", 50, [13, 17, 20])],
)
def test_the_splits_of_ssb_have_their_published_sizes(name, old, new):
    split = class_file("ssb")[name]
    assert len(split["old"]) == old
    assert list(split["new"]) == ["hard", "medium", "easy"]
    assert [len(members) for members in split["new"].values()] == new
    positions(split["old"], [c for members in split["new"].values() for c in members])


def test_the_published_order_of_the_splits_is_kept():
    split = class_file("ssb")["cub"]
    assert split["old"][:4] == [150, 70, 34, 178]  # not sorted, and the order is the target map
    assert split["new"]["hard"][:4] == [29, 110, 3, 8]


def test_imagenet100_is_the_draw_of_gcd_over_the_sorted_synsets():
    synsets = sorted(ImageNetInfo("imagenet-1k").label_names())
    drawn = np.sort(np.random.RandomState(0).choice(range(1000), size=(100,), replace=False))
    assert class_file("imagenet100")["synsets"] == [synsets[i] for i in drawn]


def test_domainnet_has_one_list_of_classes_in_two_orders():
    lists = class_file("domainnet")
    folders, official = lists["folders"], lists["official"]
    assert len(folders) == 345
    assert folders == sorted(folders)
    assert sorted(official) == folders
    # numbers that the official list files give
    for name, number in (("aircraft_carrier", 0), ("cello", 66), ("cell_phone", 67)):
        assert official.index(name) == number
    for name, number in (("The_Eiffel_Tower", 308), ("t-shirt", 327), ("zebra", 343)):
        assert official.index(name) == number


def test_the_two_orders_of_domainnet_disagree_about_three_old_classes():
    lists = class_file("domainnet")
    folders, official = set(lists["folders"][:173]), set(lists["official"][:173])
    assert folders - official == {"The_Eiffel_Tower", "The_Great_Wall_of_China", "The_Mona_Lisa"}
    assert official - folders == {"lighter", "lighthouse", "lightning"}


def test_the_names_of_the_cars_are_not_in_alphabetical_order():
    classes = class_file("cars")["classes"]
    assert len(set(classes)) == 196
    assert classes[1] == "Acura RL Sedan 2012"
    assert classes[5] == "Acura Integra Type R 2001"
    assert classes != sorted(classes)


@pytest.mark.parametrize("name", ["cub", "scars", "aircraft", "toy"])
def test_half_of_what_is_drawn_is_labelled(name):
    golden = GOLDEN["sampler"][name]
    hidden = torch.full((golden["unlabelled"],), -1)
    weights = balanced_weights(torch.cat([torch.zeros(golden["labelled"], dtype=int), hidden]))
    assert weights[0].item() == golden["w_labelled"]
    assert weights[-1].item() == pytest.approx(golden["w_unlabelled"], rel=1e-12)
    assert weights.sum().item() == pytest.approx(golden["sum"])


def test_images_are_drawn_as_by_the_official_sampler():
    golden = GOLDEN["sampler"]["toy"]
    labels = torch.tensor([0] * golden["labelled"] + [-1] * golden["unlabelled"])
    drawn = draw(balanced_weights(labels), 24, torch.Generator().manual_seed(0))
    assert drawn.tolist() == golden["draw_seed0_24"]
