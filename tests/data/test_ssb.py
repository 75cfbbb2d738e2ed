"""CUB, Stanford Cars and FGVC-Aircraft, and their corrupted versions."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from helpers.data_verbs import problem
from PIL import Image

from gcdbench.data.corruptions import CORRUPTIONS, corrupt
from gcdbench.data.images import resize_shorter
from gcdbench.data.splits import class_file, labelled_half
from gcdbench.errors import UserError


def raw_label(benchmark: str, raw: int) -> int:
    split = class_file("ssb")[benchmark]
    return [*split["old"], *(c for part in split["new"].values() for c in part)].index(raw)


@pytest.mark.parametrize(
    ("source", "classes", "old", "train", "test"),
    [("cub", 200, 100, 400, 200), ("cars", 196, 98, 392, 196), ("aircraft", 100, 50, 200, 100)],
)
def test_a_miniature_of_ssb_c_has_the_sizes_of_the_protocol(
    miniature, source, classes, old, train, test
):
    found = problem(source, miniature)
    assert (found.num_classes, found.num_old) == (classes, old)
    assert len(found.labelled) == old * train // classes // 2  # half of the old training images
    assert len(found.sets["original"].rows) == train - len(found.labelled)
    assert len(found.unlabelled) == train - len(found.labelled) + 45 * test
    assert len(found.images) == train + 45 * test
    assert {s.role for s in found.sets.values()} == {"source", "shifted"}
    assert len(found.sets) == 46


def test_the_shifted_rows_are_severity_then_corruption_then_image(miniature):
    found = problem("cub", miniature)
    names = [name for name in found.sets if "/" in name]
    assert names == [f"{c}/{s}" for s in range(1, 6) for c in CORRUPTIONS]
    rows = np.concatenate([found.sets[name].rows for name in names])
    assert np.array_equal(rows, np.arange(400, 400 + 45 * 200))
    # the decode that HiLo's maintainer gave: image = i mod N, corruption = i div N mod 9
    index = 7543
    image, corruption, severity = index % 200, index // 200 % 9, index // 1800 + 1
    test_ids = [
        path
        for path in found.images.parts[0].root.parent.joinpath("images.txt").read_text().split()
        if "_0000_" in path
    ]
    expected = f"{CORRUPTIONS[corruption]}/{severity}/cub/{test_ids[image]}"
    assert found.images.ids[400 + index].partition("@")[0] == expected


def test_a_label_of_cub_is_the_place_of_its_number_in_the_split(miniature):
    found = problem("cub", miniature)
    for row in (0, 17, 399, 400, 5000, 9399):
        number = int(found.images.ids[row].split("/")[-2][:3])
        assert found.labels[row] == raw_label("cub", number - 1)
        assert found.classes[found.labels[row]].startswith(f"{number:03d}.")


def test_a_label_of_the_cars_is_the_place_of_the_annotated_class(miniature, trees):
    found = problem("cars", miniature)
    names = class_file("cars")["classes"]
    rows = trees.car_classes()
    for row, (file, number) in enumerate(rows["train"] + rows["test"]):
        assert found.images.ids[row].partition("@")[0].endswith(file)
        assert found.labels[row] == raw_label("cars", number - 1)
        assert found.classes[found.labels[row]] == names[number - 1]


def test_a_label_of_the_aircraft_is_the_rank_of_the_variant(miniature):
    found = problem("aircraft", miniature)
    lines = (miniature / "fgvc-aircraft-2013b/data/images_variant_trainval.txt").read_text()
    pairs = [line.split(" ", 1) for line in lines.splitlines()]
    ranks = sorted({variant for _, variant in pairs})
    for row, (image, variant) in enumerate(pairs):
        assert found.images.ids[row] == f"aircraft/{image}.jpg"
        assert found.labels[row] == raw_label("aircraft", ranks.index(variant))


@pytest.mark.parametrize("source", ["cub", "cars", "aircraft"])
def test_the_labelled_images_are_the_pooled_half_of_the_old_ones(miniature, source):
    found = problem(source, miniature, shift="none")
    mask = labelled_half(found.labels, found.num_old)
    assert np.array_equal(found.labelled, np.flatnonzero(mask))
    assert np.array_equal(found.unlabelled, np.flatnonzero(~mask))
    assert list(found.sets) == ["original"]


def test_all_layouts_of_the_cars_give_one_problem(trees, tmp_path):
    trees.cars()
    first = problem("cars", trees.root)
    nested = type(trees)(tmp_path / "nested")
    nested.cars(nested=True)
    folders = type(trees)(tmp_path / "folders")
    folders.car_folders()
    assert problem("cars", nested.root).fingerprint == first.fingerprint
    assert problem("cars", folders.root).fingerprint == first.fingerprint
    for root in (nested.root, folders.root):
        other = problem("cars", root)
        for row in (0, 391, 392):
            assert np.array_equal(other.images.open(row), first.images.open(row))


def test_the_labels_of_the_test_cars_may_lie_in_the_devkit(trees):
    folder = trees.cars()
    expected = problem("cars", trees.root).fingerprint
    name = "cars_test_annos_withlabels.mat"
    shutil.move(folder / name, folder / "devkit" / name)
    assert problem("cars", trees.root).fingerprint == expected


def test_the_unlabelled_test_annotations_of_the_devkit_are_not_enough(trees):
    folder = trees.cars()
    (folder / "cars_test_annos_withlabels.mat").unlink()
    with pytest.raises(UserError, match=r"cars_test_annos_withlabels.mat is missing; the devkit"):
        problem("cars", trees.root)


def test_a_computed_variant_is_the_corrupted_test_image(miniature):
    found = problem("cub", miniature, corruption_size=32, jpeg_quality=0)
    row = found.sets["speckle_noise/3"].rows[5]
    path = found.images.ids[row].partition("@")[0].removeprefix("speckle_noise/3/cub/")
    clean = resize_shorter(Image.open(miniature / "CUB_200_2011/images" / path).convert("RGB"), 32)
    expected = corrupt(clean, "speckle_noise", 3, key=f"cub/{path}")
    assert np.array_equal(np.asarray(found.images.open(int(row))), expected)


def test_a_variant_does_not_depend_on_the_others_that_are_asked_for(miniature):
    everything = problem("cub", miniature)
    few = problem("cub", miniature, corruptions=["fog"], severities=[4])
    one = np.asarray(few.images.open(int(few.sets["fog/4"].rows[3])))
    other = np.asarray(everything.images.open(int(everything.sets["fog/4"].rows[3])))
    assert np.array_equal(one, other)


def test_a_tree_on_disk_is_read_instead_of_computed(trees):
    trees.cub()
    computed = problem(
        "cub", trees.root, corruptions=["fog"], severities=[1, 2], corrupted="computed"
    )
    ids = [name.partition("@")[0] for name in computed.images.ids[400:]]
    for name in ids:
        trees.image(f"SSB-C/cub-c/{name.replace('/cub/', '/')}", size=(60, 50))
    found = problem("cub", trees.root, corruptions=["fog"], severities=[1, 2])
    assert found.notes["corrupted"].startswith("stored, of unknown making, sizes ")
    assert found.images.open(400).size == (60, 50)
    assert [name.removesuffix("@stored") for name in found.images.ids[400:]] == ids
    assert computed.notes["corrupted"] == "made at 256 px, JPEG quality 85"
    assert computed.fingerprint != found.fingerprint


def test_an_incomplete_tree_is_refused_before_training(trees):
    trees.cub()
    first = problem("cub", trees.root).images.ids[400].partition("@")[0]
    trees.image(f"SSB-C/cub-c/{first.replace('/cub/', '/')}")
    with pytest.raises(UserError, match=r"8,999 of 9,000 are missing, .*noise/1/002.*unpack"):
        problem("cub", trees.root)


def test_a_stored_tree_that_is_asked_for_must_be_there(miniature):
    with pytest.raises(UserError, match=r"no corrupted images in .*SSB-C/cub-c"):
        problem("cub", miniature, corrupted="stored")


def test_a_hold_out_leaves_the_unlabelled_images_alone(trees):
    trees.cub(train=20)
    whole = problem("cub", trees.root, shift="none")
    held = problem("cub", trees.root, shift="none", validation=0.2)
    chosen = held.sets["validation"].rows
    assert held.sets["validation"].role == "validation"
    assert np.array_equal(np.union1d(held.labelled, chosen), whole.labelled)
    assert np.array_equal(held.unlabelled, whole.unlabelled)
    counts = np.bincount(whole.labels[whole.labelled], minlength=100)
    assert np.array_equal(np.bincount(held.labels[chosen], minlength=100), counts // 5)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"corruptions": ["fogg"]}, "unknown corruption 'fogg'"),
        ({"severities": [6]}, "severity 6"),
        ({"severities": []}, "at least one"),
        ({"frost": "no/ice"}, "no pictures of ice"),
    ],
)
def test_impossible_corruptions_are_refused(miniature, config, message):
    with pytest.raises(UserError, match=message):
        problem("cub", miniature, **config)


def test_lists_that_disagree_are_refused(trees):
    folder = trees.cub()
    lines = (folder / "train_test_split.txt").read_text().splitlines()
    (folder / "train_test_split.txt").write_text("\n".join(lines[:-1]))
    with pytest.raises(UserError, match=r"train_test_split.txt: image 600 of images.txt"):
        problem("cub", trees.root)


def test_a_line_that_is_no_list_entry_is_named(trees):
    folder = trees.cub()
    (folder / "images.txt").write_text("<html>moved</html>\n")
    with pytest.raises(UserError, match=r"images.txt, line 1: expected '<number> <value>'"):
        problem("cub", trees.root)


def test_another_number_of_images_is_said_aloud(miniature, caplog):
    problem("cub", miniature)
    assert "CUB-200-2011: 400 images in train instead of 5994" in caplog.text
