"""Datasets that are damaged, incomplete or set up in an impossible way: one sentence each."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.data_verbs import problem
from scipy.io import savemat

from gcdbench.data.datasets import domainnet
from gcdbench.errors import UserError


def refusal(plugin: str, root: Path | None, **config) -> str:
    with pytest.raises(UserError) as caught:
        problem(plugin, root, **config)
    message = str(caught.value)
    assert "\n" not in message
    return message


# --- lists and annotations


@pytest.mark.parametrize(
    ("name", "before", "after", "message"),
    [
        ("image_class_labels.txt", "\n600 200", "\n600 201", "there is a class 201, of 200"),
        ("image_class_labels.txt", "\n600 200", "\n600 0", "there is a class 0, of 200"),
        ("image_class_labels.txt", "\n600 200", "\n600 x", "image 600 has 'x'"),
        ("train_test_split.txt", "\n600 1", "\n600 2", "image 600 has '2' instead of 0 (test)"),
    ],
)
def test_a_wrong_entry_in_a_list_of_cub_is_named(trees, name, before, after, message):
    path = trees.cub() / name
    path.write_text(path.read_text().replace(before, after))
    assert refusal("cub", trees.root).startswith(f"{path}: {message}")


def test_cub_without_test_images_is_refused(trees):
    path = trees.cub() / "train_test_split.txt"
    path.write_text(path.read_text().replace(" 0\n", " 1\n"))
    assert refusal("cub", trees.root).startswith(f"{path}: no test images")


def test_empty_lists_are_refused(trees):
    folder = trees.cub()
    for name in ("images.txt", "image_class_labels.txt", "train_test_split.txt"):
        (folder / name).write_text("")
    assert "no training images" in refusal("cub", trees.root)


def test_cub_needs_its_folder_of_images(trees):
    folder = trees.cub()
    shutil.move(folder / "images", folder / "pictures")
    assert f"{folder} lacks images" in refusal("cub", trees.root)


def test_a_list_that_is_no_text_is_named(trees):
    paths = [
        ("cub", trees.cub() / "images.txt"),
        ("aircraft", trees.aircraft() / "data/variants.txt"),
        ("domainnet", trees.domainnet() / "real_train.txt"),
    ]
    for plugin, path in paths:
        path.write_bytes(b"\xff\xfe1 a")
        settings = {"listing": "lists"} if plugin == "domainnet" else {}
        expected = f"{path}: cannot be read as a list (it is not UTF-8)"
        assert refusal(plugin, trees.root, **settings).startswith(expected)


def test_a_folder_in_place_of_a_list_is_named(trees):
    path = trees.cub() / "images.txt"
    path.unlink()
    path.mkdir()
    assert refusal("cub", trees.root).startswith(f"{path}: cannot be read as a list (Is a dir")


@pytest.mark.parametrize("kept", [0, 100, 200, -10])
def test_annotations_of_the_cars_that_are_cut_off_are_named(trees, kept):
    path = trees.cars() / "devkit/cars_train_annos.mat"
    path.write_bytes(path.read_bytes()[:kept])
    assert refusal("cars", trees.root).startswith(f"{path}: not the devkit's annotations")


@pytest.mark.parametrize(
    ("classes", "message"),
    [([], "no training images"), ([1, 0], "a class 0, of 196"), ([197], "a class 197, of 196")],
)
def test_classes_of_the_cars_that_there_cannot_be_are_refused(trees, classes, message):
    path = trees.cars() / "devkit/cars_train_annos.mat"
    table = np.empty((1, len(classes)), dtype=[("class", "O"), ("fname", "O")])
    for i, number in enumerate(classes):
        table[0, i] = (number, f"{i + 1:05d}.jpg")
    savemat(path, {"annotations": table})
    text = refusal("cars", trees.root)
    assert text.startswith(f"{path}: ")
    assert message in text


@pytest.mark.parametrize(
    ("data", "labels", "message"),
    [
        (np.zeros((20, 3000), np.uint8), [0] * 20, "not images of 32 pixels, but uint8 of (20, 30"),
        (np.zeros((20, 3072), np.int64), [0] * 20, "not images of 32 pixels, but int64"),
        (np.zeros((20, 3072), np.uint8), [0] * 19, "20 images do not go with 19 class numbers"),
        (np.zeros((0, 3072), np.uint8), [], "0 images do not go with 0 class numbers"),
        (np.zeros((20, 3072), np.uint8), [12] * 20, "classes 12 to 12 instead of 0 to 9"),
    ],
)
def test_a_batch_of_cifar10_is_looked_at(trees, data, labels, message):
    path = trees.cifar10() / "test_batch"
    path.write_bytes(pickle.dumps({"data": data, "labels": labels}))
    assert refusal("cifar10", trees.root).startswith(f"{path}: {message}")


# --- domains


@pytest.mark.parametrize("domain", ["real", "painting", "sketch"])
def test_no_domain_of_domainnet_may_be_empty(trees, domain):
    folder = trees.domainnet() / domain
    shutil.rmtree(folder)
    folder.mkdir()
    assert refusal("domainnet", trees.root).startswith(f"{folder}: no image is at <class>/<image>")


def test_a_folder_of_domainnet_that_is_no_class_is_named(trees):
    folder = trees.domainnet() / "real"
    for path in folder.iterdir():
        path.rename(folder / f"x_{path.name}")
    assert "'x_The_Eiffel_Tower' is no class of DomainNet" in refusal("domainnet", trees.root)


def test_an_empty_list_of_domainnet_is_refused(trees):
    path = trees.domainnet() / "sketch_test.txt"
    path.write_text("")
    domainnet._from_lists.cache_clear()
    text = refusal("domainnet", trees.root, listing="lists")
    assert text.startswith(f"{path}: no image is listed there")


# --- settings


@pytest.mark.parametrize("value", [-1, 0, 11])
def test_a_number_of_old_classes_that_there_cannot_be_is_refused(trees, value):
    trees.cifar10()
    assert f"num_old is {value}, of 10 classes" in refusal("cifar10", trees.root, num_old=value)


@pytest.mark.parametrize("value", [-5, 200])
def test_the_same_holds_for_imagenet100(trees, value):
    trees.imagenet100(each=1)
    assert f"num_old is {value}" in refusal("imagenet100", trees.root, num_old=value)


@pytest.mark.parametrize(
    "config",
    [
        *({"labelled_share": share} for share in (-0.5, 0.0, 1.5)),
        *({"shifted_share": share} for share in (-0.5, 0.0, 1.5)),
        *({"validation": share} for share in (-0.2, 1.0, 1.5)),
    ],
)
def test_a_share_that_there_cannot_be_is_refused(trees, config):
    trees.cifar10()
    ((key, value),) = config.items()
    assert f"{key} is {value}; it is" in refusal("cifar10", trees.root, **config)
    assert f"{key} is {value}; it is" in refusal("drawshift", None, **config)
    assert f"{key} is {value}; it is" in refusal("drawshift_c", None, **config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"shifted_share": 0.01}, "the shifted set 'gaussian_noise/1' has no images (raise sh"),
        ({"validation": 0.01}, "the validation set 'validation' has no images (raise validation"),
        ({"labelled_share": 0.01}, "no image has a label"),
        ({"labelled_share": 1.0, "num_old": 10}, "the source set 'original' has no images"),
    ],
)
def test_shares_that_leave_nothing_are_refused(trees, config, message):
    trees.cifar10()
    assert message in refusal("cifar10", trees.root, **config)


def own(trees) -> None:
    for domain in ("photo", "sketch"):
        for name in ("ant", "bee", "cat", "dog"):
            for i in range(2):
                trees.image(f"mine/{domain}/{name}/{i}.png")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_old": -1}, "num_old is -1, of 4 classes"),
        ({"shifted": ["sketch"], "shifted_share": 0.3}, "leaves no image of sketch to train on"),
    ],
)
def test_impossible_settings_of_a_folder_are_refused(trees, config, message):
    own(trees)
    assert message in refusal("folder", trees.root, path="mine", source="photo", **config)


def test_a_source_without_old_classes_is_refused(trees):
    own(trees)
    for name in ("ant", "bee"):
        shutil.rmtree(trees.root / "mine/photo" / name)
    assert "no image has a label" in refusal("folder", trees.root, path="mine", source="photo")


def test_a_domain_is_not_mistaken_for_the_held_out_images(trees):
    own(trees)
    trees.image("mine/validation/ant/0.png")
    settings = {"path": "mine", "source": "photo", "validation": 0.5}
    assert "'validation' is a domain" in refusal("folder", trees.root, **settings)


# --- corrupted images on disk

ONE = {"corruptions": ["fog"], "severities": [1]}


def tree(trees, variant: str = "fog/1", **manifest) -> Path:
    """Write a tree of one variant, and how it was made."""
    folder = trees.aircraft()
    for image in (folder / "data/images_variant_test.txt").read_text().splitlines():
        trees.image(f"SSB-C/fgvc-c/{variant}/{image.split()[0]}.jpg")
    if manifest:
        settings = {"corruption_size": 32, "jpeg_quality": 85, "frost": "procedural"}
        facts = {"made": "so", "settings": settings, "code": "c0de", "gcdbench": "0"}
        trees.text("SSB-C/fgvc-c/gcdbench.json", json.dumps({**facts, **manifest}))
    return trees.root / "SSB-C/fgvc-c"


def test_a_tree_says_how_many_images_it_lacks(trees):
    folder = tree(trees, finished=["fog/1"])
    gone = sorted((folder / "fog/1").iterdir())[40:43]
    for path in gone:
        path.unlink()
    text = refusal("aircraft", trees.root, **ONE, corruption_size=32)
    assert f"3 of 100 are missing, the first is {gone[0]} (continue with gcdbench data" in text


def test_a_variant_that_is_not_finished_is_refused(trees):
    tree(trees, finished=["fog/2"])
    assert "not complete: fog/1 is not finished" in refusal(
        "aircraft", trees.root, **ONE, corruption_size=32
    )


@pytest.mark.parametrize("text", ["", "{}", '{"made', "[1]", '{"made": "so", "complete": true}'])
def test_a_damaged_manifest_is_named(trees, text):
    folder = tree(trees)
    (folder / "gcdbench.json").write_text(text)
    assert refusal("aircraft", trees.root, **ONE).startswith(f"{folder}/gcdbench.json: cut off")


@pytest.mark.parametrize("known", [True, False])
def test_a_tree_on_disk_does_not_overrule_what_is_asked_for(trees, known):
    tree(trees, **({"finished": ["fog/1"]} if known else {}))
    text = refusal("aircraft", trees.root, **ONE, corruption_size=64)
    assert f"corruption_size is 64, but that of the images in {trees.root}" in text
    assert "set corrupted: computed" in text
    for corrupted in ("computed", "stored"):
        problem("aircraft", trees.root, **ONE, corruption_size=64, corrupted=corrupted)


def test_the_usual_settings_do_not_take_a_tree_that_was_made_otherwise(trees):
    tree(trees, finished=["fog/1"])
    text = refusal("aircraft", trees.root, **ONE)
    assert "corruption_size is 256, but that of the images in" in text


def test_a_tree_that_was_made_as_asked_is_taken(trees):
    tree(trees, finished=["fog/1"])
    found = problem("aircraft", trees.root, **ONE, corruption_size=32)
    assert found.notes["corrupted"] == "stored, made so, code c0de"


def test_another_ice_is_no_matter_where_no_frost_is_asked_for(trees):
    settings = {"corruption_size": 256, "jpeg_quality": 85, "frost": "5 photographs"}
    tree(trees, finished=["fog/1"], settings=settings)
    assert problem("aircraft", trees.root, **ONE).notes["corrupted"].startswith("stored")


def test_two_trees_of_unknown_making_are_told_apart(trees):
    folder = tree(trees)
    before = problem("aircraft", trees.root, **ONE).fingerprint
    last = max((folder / "fog/1").iterdir())
    last.write_bytes(last.read_bytes() + b" ")
    assert problem("aircraft", trees.root, **ONE).fingerprint != before
