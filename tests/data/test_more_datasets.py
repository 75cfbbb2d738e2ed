"""Readers of CIFAR-100, Herbarium-19, CLEVR-4, plain folders of domains and re-packs of the cars.

Each split is compared with what the released codes make of the same files, written out here.
"""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import more_trees
from helpers.data_verbs import call, problem

from gcdbench.data.class_splits import class_order
from gcdbench.data.datasets.clevr4 import TAXONOMIES
from gcdbench.data.splits import class_file
from gcdbench.errors import UserError


def released_half(targets: list[int], old: set[int]) -> set[int]:
    """Return the labelled rows as GCD's code draws them: half of the pooled old images."""
    pooled = [row for row, target in enumerate(targets) if target in old]
    np_random = np.random.RandomState(0)
    chosen = np_random.choice(range(len(pooled)), replace=False, size=(int(0.5 * len(pooled)),))
    return {pooled[i] for i in chosen}


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- CIFAR-100


def test_cifar100_is_split_as_the_released_code_does(tmp_path):
    folder = more_trees.cifar100(tmp_path)
    found = problem("cifar100", tmp_path, shift="none")
    batch = pickle.loads((folder / "train").read_bytes())
    assert (found.num_old, found.num_classes) == (80, 100)
    assert found.labels.tolist() == batch["fine_labels"]
    assert set(found.labelled.tolist()) == released_half(batch["fine_labels"], set(range(80)))
    assert found.classes[17] == "class 17"
    assert len(found.labelled) + len(found.unlabelled) == 400


def test_cifar100_c_is_computed_or_the_published_one(tmp_path):
    more_trees.cifar100(tmp_path, corrupted=True)
    asked = {"corruptions": ["fog", "snow"], "severities": [1, 3]}
    computed = problem("cifar100", tmp_path, **asked)
    stored = problem("cifar100", tmp_path, **asked, corrupted="stored")
    assert list(computed.sets) == list(stored.sets)
    assert np.array_equal(computed.labels, stored.labels)
    assert computed.fingerprint != stored.fingerprint
    row = int(stored.sets["snow/3"].rows[7])
    name = stored.images.ids[row].partition("@")[0]
    number = int(name.rpartition("/")[2])
    pixels = np.load(tmp_path / "CIFAR-100-C/snow.npy")[2 * 200 + number]
    assert np.array_equal(np.asarray(stored.images.open(row)), pixels)


def test_a_corruption_that_cifar100_c_lacks_is_named(tmp_path):
    more_trees.cifar100(tmp_path, corrupted=True)
    with pytest.raises(UserError, match=r"CIFAR-100-C/frost.npy: cannot be read as images"):
        problem("cifar100", tmp_path, corrupted="stored", corruptions=["frost"])


# --- Herbarium-19


def test_herbarium19_is_split_as_the_released_code_does(tmp_path):
    folder = more_trees.herbarium19(tmp_path)
    found = problem("herbarium19", tmp_path)
    names = entries(folder / "small-train")  # as torchvision's ImageFolder
    samples = [(n, f) for n in names for f in entries(folder / "small-train" / n)]
    assert found.images.ids == [f"herbarium19/{n}/{f}" for n, f in samples]
    old = set(class_file("herbarium19")["old"])
    targets = [names.index(n) for n, _ in samples]
    assert set(found.labelled.tolist()) == released_half(targets, old)
    assert (found.num_old, found.num_classes, len(found.labelled)) == (341, 683, 341)
    assert all((found.labels[row] < 341) == (targets[row] in old) for row in range(len(targets)))


def test_the_released_list_of_herbarium19_is_read_where_it_is(tmp_path):
    folder = more_trees.herbarium19(tmp_path, each=1)
    before = problem("herbarium19", tmp_path)
    old = [int(c) for c in range(1, 683, 2)]
    new = [int(c) for c in range(0, 683, 2)]
    path = folder / "herbarium_19_class_splits.pkl"
    path.write_bytes(pickle.dumps({"Old": np.array(old), "New": np.array(new)}))
    found = problem("herbarium19", tmp_path)
    names = entries(folder / "small-train")
    assert found.classes[:341] == tuple(names[c] for c in old)
    assert found.fingerprint != before.fingerprint
    path.write_bytes(pickle.dumps({"Old": before.fingerprint.__class__}))
    with pytest.raises(UserError, match=r"class_splits.pkl: not GCD's list"):
        problem("herbarium19", tmp_path)


# --- CLEVR-4


@pytest.mark.parametrize("taxonomy", TAXONOMIES)
def test_clevr4_has_four_taxonomies_of_one_set_of_images(tmp_path, taxonomy):
    folder = more_trees.clevr4(tmp_path)
    annotated = json.loads((folder / "clevr_4_annots.json").read_text())
    names = sorted(n for n, facts in annotated.items() if facts["split"] == "train")
    values = [str(value) for value in TAXONOMIES[taxonomy]]
    targets = [values.index(str(annotated[name][taxonomy])) for name in names]
    found = problem("clevr4", tmp_path, taxonomy=taxonomy)
    assert found.images.ids == [f"clevr4/{name}.png" for name in names]
    assert found.labels.tolist() == targets
    assert (found.num_old, found.num_classes) == (5, 10)
    assert set(found.labelled.tolist()) == released_half(targets, set(range(5)))
    assert ("colour" in found.changes) == (taxonomy != "color")


def test_an_unknown_value_of_clevr4_is_named_with_its_image(tmp_path):
    path = more_trees.clevr4(tmp_path) / "clevr_4_annots.json"
    annotated = json.loads(path.read_text())
    annotated["CLEVR_new_000001"]["shape"] = "dodo"
    path.write_text(json.dumps(annotated))
    with pytest.raises(UserError, match="image CLEVR_new_000001 has shape 'dodo'"):
        problem("clevr4", tmp_path, taxonomy="shape")


# --- domains in folders, and protocols


PACS = {"path": "PACS", "classes": "pacs", "source": "photo"}
OTHERS = ["art_painting", "cartoon", "sketch"]


def test_all_old_images_of_the_source_are_labelled_across_domains(tmp_path):
    more_trees.domain_folders(tmp_path, "pacs")
    found = problem("folder", tmp_path, **PACS, shifted=OTHERS, protocol="cross-domain")
    labelled = {found.images.ids[row] for row in found.labelled}
    old = ("dog", "elephant", "giraffe", "guitar")
    assert labelled == {f"PACS/photo/{c}/{i:03d}.jpg" for c in old for i in range(4)}
    assert list(found.sets) == OTHERS
    assert {s.role for s in found.sets.values()} == {"shifted"}
    trained = {found.images.ids[row].split("/")[1] for row in found.unlabelled}
    assert trained == set(OTHERS)


def test_targets_are_unseen_in_domain_generalisation(tmp_path):
    more_trees.domain_folders(tmp_path, "pacs")
    found = problem("folder", tmp_path, **PACS, shifted=OTHERS, protocol="domain-generalisation")
    gcd = problem("folder", tmp_path, **PACS, shifted=OTHERS)
    assert np.array_equal(found.labelled, gcd.labelled)
    assert {n: s.role for n, s in found.sets.items()} == {
        "photo": "source",
        **dict.fromkeys(OTHERS, "unseen"),
    }
    unseen = np.concatenate([s.rows for s in found.sets.values() if s.role == "unseen"])
    assert not np.isin(unseen, found.pool).any()


def test_a_protocol_without_targets_is_refused(tmp_path):
    more_trees.domain_folders(tmp_path, "pacs")
    with pytest.raises(UserError, match="no image is unlabelled: name shifted domains"):
        problem("folder", tmp_path, **PACS, protocol="cross-domain")


def test_the_spelling_and_depth_of_folders_do_not_matter(tmp_path):
    more_trees.domain_folders(tmp_path / "a", "office_home", each=2)
    asked = {"path": "OfficeHome", "classes": "office_home", "source": "Real World"}
    asked["shifted"] = ["Art", "Clipart"]
    before = problem("folder", tmp_path / "a", **asked)
    folder = more_trees.domain_folders(tmp_path / "b", "office_home", each=2)
    (folder / "Real World").rename(folder / "real_world")
    folder.rename(tmp_path / "b" / "office_home")
    after = problem("folder", tmp_path / "b", **asked)
    assert after.fingerprint == before.fingerprint
    assert all(Path(after.images.place(row)).exists() for row in range(0, len(after.images), 50))
    (tmp_path / "c" / "OfficeHome").mkdir(parents=True)
    shutil.move(tmp_path / "b" / "office_home", tmp_path / "c" / "OfficeHome" / "data")
    assert problem("folder", tmp_path / "c", **asked).fingerprint == before.fingerprint


def test_the_name_of_the_archive_of_office_home_is_known(tmp_path):
    folder = more_trees.domain_folders(tmp_path, "office_home", each=1)
    asked = {"path": "OfficeHome", "classes": "office_home", "source": "Art"}
    asked |= {"shifted": ["Real World"], "protocol": "cross-domain"}
    before = problem("folder", tmp_path, **asked).fingerprint
    folder.rename(tmp_path / "OfficeHomeDataset_10072016")
    (tmp_path / "OfficeHome-features").mkdir()
    assert problem("folder", tmp_path, **asked).fingerprint == before


@pytest.mark.parametrize("place", ["clevr_4_10k/clevr_4_10k", "archive", "archive/clevr_4_10k"])
def test_data_may_be_one_folder_further_down(tmp_path, place):
    folder = more_trees.clevr4(tmp_path / "new", 40)
    before = problem("clevr4", tmp_path / "new").fingerprint
    (tmp_path / "old" / place).parent.mkdir(parents=True)
    folder.rename(tmp_path / "old" / place)
    assert problem("clevr4", tmp_path / "old").fingerprint == before


def test_stats_and_verify_name_missing_images_and_empty_classes(tmp_path, capsys, caplog):
    folder = more_trees.clevr4(tmp_path, 40)
    (folder / "images/CLEVR_new_000005.png").unlink()
    call("stats", "--suite", "clevr-4", "--data-root", tmp_path)
    assert "1 of 36 images of train are missing, the first is" in caplog.text
    assert call("verify", "clevr4", "--no-decode", "--data-root", tmp_path) == 1
    assert "missing: " in capsys.readouterr().out
    folder = more_trees.domain_folders(tmp_path, "vlcs", each=1)
    (folder / "SUN09/car/000.jpg").unlink()
    (folder / "notes").mkdir()
    caplog.clear()
    call("stats", "--suite", "vlcs", "--data-root", tmp_path)
    call("verify", "--suite", "vlcs", "--no-decode", "--data-root", tmp_path)
    text = capsys.readouterr().out
    for said in ("SUN09/car: no image of this class", "notes: no image of this domain"):
        assert said in caplog.text
        assert said in text


def test_a_class_that_a_fixed_list_does_not_have_is_named(tmp_path):
    folder = more_trees.domain_folders(tmp_path, "vlcs", each=2)
    (folder / "SUN09" / "dog").rename(folder / "SUN09" / "hound")
    with pytest.raises(UserError, match="'hound' is no class of vlcs, which has bird, car"):
        problem("folder", tmp_path, path="VLCS", classes="vlcs", source="SUN09")


def test_a_lonely_domain_does_not_end_a_sentence_in_nothing(tmp_path):
    for label in ("ant", "bee"):
        for i in range(4):
            more_trees.picture(tmp_path / "mine" / "photo" / label / f"{i}.png")
    with pytest.raises(UserError, match="is none of the domains: there is no other one"):
        problem("folder", tmp_path, path="mine", source="photo", shifted=["photo"])


# --- class splits


def test_five_class_splits_differ_and_the_first_is_the_published_one(tmp_path):
    more_trees.domain_folders(tmp_path, "pacs")
    asked = {**PACS, "shifted": OTHERS}
    found = [problem("folder", tmp_path, **asked, class_split=split) for split in range(5)]
    assert found[0].fingerprint == problem("folder", tmp_path, **asked).fingerprint
    assert len({frozenset(one.classes[:4]) for one in found}) == 5
    assert {frozenset(one.classes) for one in found} == {frozenset(found[0].classes)}
    assert found[3].notes["split"].endswith("4 of 7 classes are old, class split 3 (1)")


@pytest.mark.parametrize("dataset", ["cub", "cars", "aircraft"])
def test_the_class_splits_of_ssb_are_of_the_published_size(miniature, dataset):
    found = [problem(dataset, miniature, shift="none", class_split=split) for split in range(5)]
    sizes = {(one.num_old, one.num_classes) for one in found}
    assert len(sizes) == 1
    assert len({frozenset(one.classes[: one.num_old]) for one in found}) == 5
    names = {one.images.ids[5]: one.classes[one.labels[5]] for one in found}
    assert len(names) == 1  # an image keeps its class


def test_every_list_of_class_splits_is_a_permutation():
    lists = class_file("class_splits")
    for name, splits in lists.items():
        if isinstance(splits, list):
            assert len(splits) == 4, name
            assert all(sorted(one) == list(range(len(one))) for one in splits), name
    with pytest.raises(UserError, match="class_split 1 of pacs is for 7 classes, not 8"):
        class_order("pacs", 1, 4, range(8))


# --- Stanford Cars as people have it


def test_the_release_of_all_cars_in_one_folder_is_read(tmp_path):
    more_trees.all_cars(tmp_path / "stanford_cars")
    found = problem("cars", tmp_path, shift="none")
    split = class_file("ssb")["cars"]
    targets = [c for c in range(196) for _ in range(2)]
    assert [found.images.ids[row] for row in (0, 1, 2)] == [
        f"cars/car_ims/{number:06d}.jpg" for number in (1, 2, 4)
    ]
    assert set(found.labelled.tolist()) == released_half(targets, set(split["old"]))
    assert found.notes["split"] == "ssb 1, in the order of cars_annos.mat"
    shifted = problem("cars", tmp_path, corruptions=["fog"], severities=[1])
    assert len(shifted.sets["fog/1"].rows) == 196


@pytest.mark.parametrize("layout", ["kaggle", "deeper", "root", "browser"])
def test_re_packs_of_the_cars_give_the_problem_of_the_devkit(trees, tmp_path, layout):
    folder = trees.cars(nested=layout == "kaggle")
    before = problem("cars", trees.root)
    new = tmp_path / "new"
    if layout == "kaggle":
        shutil.move(folder / "devkit", folder / "car_devkit" / "devkit")
        shutil.copytree(folder, new / "stanford-cars")
    elif layout == "deeper":
        shutil.copytree(folder, new / "cars" / "archive" / "data")
    elif layout == "root":
        shutil.copytree(folder, new)
    else:
        shutil.copytree(folder, new / "stanford_cars")
        name = "cars_test_annos_withlabels"
        (new / f"stanford_cars/{name}.mat").rename(new / f"stanford_cars/devkit/{name} (1).mat")
    after = problem("cars", new)
    assert after.fingerprint == before.fingerprint
    assert after.images.open(0).size == before.images.open(0).size


def test_class_folders_may_spell_the_classes_otherwise(trees, tmp_path):
    folder = trees.car_folders()
    before = problem("cars", trees.root)
    for part in ("train", "test"):
        odd = "Ram C-V Cargo Van Minivan 2012"
        (folder / part / odd).rename(folder / part / odd.replace("C-V", "C_V"))
    assert problem("cars", trees.root).fingerprint == before.fingerprint
