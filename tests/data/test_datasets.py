"""DomainNet, ImageNet-100, CIFAR-10, drawings, folders of one's own, and what all sources share."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest
from helpers.data_verbs import problem
from helpers.paths import ROOT

from gcdbench.core import registry
from gcdbench.data.splits import class_file
from gcdbench.errors import UserError

ON_DISK = ["cub", "cars", "aircraft", "domainnet", "imagenet100", "cifar10"]


# --- DomainNet


def test_domainnet_trains_on_a_share_of_the_shifted_domain_and_scores_all_of_it(trees):
    trees.domainnet()
    found = problem("domainnet", trees.root, shifted=["sketch"])
    assert found.augment == "jitter"
    assert {n: s.role for n, s in found.sets.items()} == {
        "real": "source",
        "sketch": "shifted",
        "painting": "unseen",
        "quickdraw": "unseen",
        "clipart": "unseen",
        "infograph": "unseen",
    }
    assert len(found.sets["sketch"].rows) == 80
    trained = np.intersect1d(found.unlabelled, found.sets["sketch"].rows)
    assert np.bincount(found.labels[trained])[[0, 1, 2, 3, 173, 174, 175, 176]].tolist() == [3] * 8
    unseen = np.concatenate([s.rows for s in found.sets.values() if s.role == "unseen"])
    assert not np.isin(unseen, found.pool).any()
    assert (len(found.labelled), len(found.sets["real"].rows)) == (20, 60)


def test_all_domains_can_be_shifted(trees):
    trees.domainnet()
    others = ["painting", "quickdraw", "sketch", "clipart", "infograph"]
    found = problem("domainnet", trees.root, shifted=others, shifted_share=0.2)
    assert [n for n, s in found.sets.items() if s.role == "shifted"] == others
    assert len(found.unlabelled) == 60 + 5 * 16


def test_domainnet_reads_the_official_lists_as_it_reads_the_folders(trees):
    folder = trees.domainnet()
    assert (
        problem("domainnet", trees.root, listing="lists").fingerprint
        == problem("domainnet", trees.root, listing="folders").fingerprint
    )
    (folder / "real_test.txt").write_text("real/dodo/real_344_000001.jpg 12\n")
    registry.load("dataset", "domainnet")
    sys.modules["gcdbench.data.datasets.domainnet"]._from_lists.cache_clear()
    with pytest.raises(UserError, match=r"real_test.txt, line 1: not an image of a known class"):
        problem("domainnet", trees.root, listing="lists")


def test_a_class_without_a_folder_shifts_no_label(trees):
    folder = trees.domainnet()
    before = problem("domainnet", trees.root)
    shutil.rmtree(folder / "real" / "The_Eiffel_Tower")
    sys.modules["gcdbench.data.datasets.domainnet"]._from_folders.cache_clear()
    after = problem("domainnet", trees.root)
    assert after.classes == before.classes
    labels = dict(zip(after.images.ids, after.labels.tolist(), strict=True))
    assert all(labels.get(i, y) == y for i, y in zip(before.images.ids, before.labels, strict=True))


def test_the_old_classes_of_domainnet_are_options(trees):
    trees.domainnet()
    released = problem("domainnet", trees.root)
    paper = problem("domainnet", trees.root, num_old=172)
    official = problem("domainnet", trees.root, class_order="official")
    assert (released.num_old, paper.num_old) == (173, 172)
    assert released.classes[0] == "The_Eiffel_Tower"
    assert official.classes[308] == "The_Eiffel_Tower"
    names = {official.classes[label] for label in official.labels[official.labelled]}
    assert names == {"aircraft_carrier", "lighter", "lighthouse", "lightning"}
    assert len({released.fingerprint, paper.fingerprint, official.fingerprint}) == 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"shifted": ["real"]}, "'real' is none of painting"),
        ({"shifted": ["cartoon"]}, "'cartoon' is none of painting"),
        ({"shifted": ["sketch", "sketch"]}, "named twice"),
        ({"num_old": 400}, "between 1 and 345"),
    ],
)
def test_impossible_domains_are_refused(trees, config, message):
    trees.domainnet()
    with pytest.raises(UserError, match=message):
        problem("domainnet", trees.root, **config)


# --- the others


def test_imagenet100_takes_its_classes_from_a_larger_tree(trees):
    trees.imagenet100()
    found = problem("imagenet100", trees.root)
    assert (found.num_classes, found.num_old, len(found.images)) == (100, 50, 400)
    assert (len(found.labelled), len(found.unlabelled)) == (100, 300)
    assert found.classes == tuple(class_file("imagenet100")["synsets"])
    assert list(found.sets) == ["original"]


def test_cifar10_is_read_from_its_batches(trees):
    folder = trees.cifar10()
    found = problem("cifar10", trees.root)
    assert (found.num_old, found.num_classes) == (5, 10)
    assert (len(found.labelled), len(found.unlabelled)) == (25, 75 + 45 * 20)
    batch = pickle.loads((folder / "data_batch_2").read_bytes())
    picture = np.asarray(found.images.open(23))
    assert np.array_equal(picture[:, :, 1], batch["data"][3, 1024:2048].reshape(32, 32))
    assert found.labels[23] == batch["labels"][3]
    assert found.images.open(100).size == (32, 32)


def test_a_share_of_the_corrupted_images_is_one_of_each_class(trees):
    trees.cifar10(each=40)
    found = problem("cifar10", trees.root, shifted_share=0.5)
    for name, one in found.sets.items():
        if name != "original":
            assert np.bincount(found.labels[one.rows]).tolist() == [2] * 10


class _Evil:
    def __reduce__(self):
        return (print, ("this must not run",))


def test_a_batch_that_would_run_code_is_refused(trees, capsys):
    folder = trees.cifar10()
    (folder / "data_batch_4").write_bytes(pickle.dumps({"data": _Evil(), "labels": []}))
    with pytest.raises(UserError, match=r"data_batch_4: not a batch .*print"):
        problem("cifar10", trees.root)
    assert capsys.readouterr().out == ""


def own(trees) -> None:
    for domain, count in (("photo", 4), ("sketch", 2), ("toy", 1)):
        for name in ("ant", "bee", "cat", "dog"):
            for i in range(count):
                trees.image(f"mine/{domain}/{name}/{i}.png")
    trees.text("mine/README.txt", "not an image")


def test_a_folder_of_ones_own_needs_no_code(trees):
    own(trees)
    found = problem("folder", trees.root, path="mine", source="photo", shifted=["sketch"])
    assert found.classes == ("ant", "bee", "cat", "dog")
    assert found.num_old == 2
    assert (len(found.labelled), len(found.unlabelled)) == (4, 12 + 8)
    assert {n: s.role for n, s in found.sets.items()} == {
        "photo": "source",
        "sketch": "shifted",
        "toy": "unseen",
    }
    named = problem("folder", trees.root, path="mine", source="photo", old=["dog", "bee"])
    assert named.classes == ("dog", "bee", "ant", "cat")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"path": "yours", "source": "photo"}, "yours: no such folder"),
        ({"path": "mine/photo", "source": "ant"}, "no image is at <domain>/<class>/<image>"),
        ({"path": "mine", "source": "film"}, "source 'film' is none of photo, sketch, toy"),
        ({"path": "mine", "source": "photo", "old": ["elk"]}, "the old class 'elk'"),
        ({"path": "mine", "source": "photo", "num_old": 9}, "num_old is 9, of 4 classes"),
        ({"path": "mine", "source": "photo", "num_old": 1, "old": ["ant"]}, "by name"),
        ({"path": "mine"}, "the key 'source' is missing"),
    ],
)
def test_a_wrong_description_of_a_folder_is_answered_with_a_sentence(trees, config, message):
    own(trees)
    with pytest.raises(UserError, match=message):
        problem("folder", trees.root, **config)


def test_no_drawing_is_both_clean_and_corrupted():
    found = problem("drawshift_c", None)
    clean = set(found.images.ids[: found.sets["gaussian_noise/1"].rows[0]])
    shifted = {n.partition("@")[0].split("/", 2)[2] for n in found.images.ids[len(clean) :]}
    assert clean
    assert shifted
    assert not clean & shifted
    sizes = {len(s.rows) for n, s in found.sets.items() if "/" in n}
    assert sizes == {len(shifted)}
    assert 0.42 < len(shifted) / (len(clean) + len(shifted)) < 0.45  # whole images of each class


def test_a_share_of_the_corrupted_drawings_leaves_the_clean_ones_alone():
    whole, some = problem("drawshift_c", None), problem("drawshift_c", None, shifted_share=0.5)
    assert np.array_equal(whole.labelled, some.labelled)
    assert set(some.images.ids) < set(whole.images.ids)


# --- all of them


@pytest.mark.parametrize("source", ON_DISK)
def test_without_a_data_root_the_remedy_is_named(source, monkeypatch):
    monkeypatch.delenv("GCDBENCH_DATA", raising=False)
    with pytest.raises(UserError, match=r"--data-root or GCDBENCH_DATA \('gcdbench data info"):
        problem(source, None)


@pytest.mark.parametrize("source", ON_DISK)
def test_an_empty_data_root_is_told_what_to_hold(source, tmp_path):
    title = registry.get("dataset", source).constants["title"]
    with pytest.raises(UserError) as caught:
        problem(source, tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{title} is not there: expected {tmp_path}")
    assert "\n" not in message


def test_a_layout_that_is_almost_right_is_told_what_it_lacks(trees):
    folder = trees.cub()
    (folder / "train_test_split.txt").unlink()
    with pytest.raises(UserError, match=r"CUB_200_2011 lacks train_test_split.txt"):
        problem("cub", trees.root)


def test_the_data_root_may_be_an_environment_variable(miniature, monkeypatch):
    monkeypatch.setenv("GCDBENCH_DATA", str(miniature))
    assert problem("cub", None).fingerprint == problem("cub", miniature).fingerprint


def test_a_problem_is_the_same_wherever_the_data_are(miniature, tmp_path):
    shutil.copytree(miniature / "CUB_200_2011", tmp_path / "CUB_200_2011")
    assert problem("cub", tmp_path).fingerprint == problem("cub", miniature).fingerprint


def test_images_that_differ_have_different_names(miniature, trees):
    own(trees)
    for name in ("ant/0", "ant/1", "bee/0"):
        trees.image(f"yours/photo/{name}.png", size=(30, 30))
    names = [
        problem("cub", miniature).images.ids[400:],
        problem("cub", miniature, corruption_size=64).images.ids[400:],
        problem("cub", miniature, jpeg_quality=90).images.ids[400:],
        problem("folder", trees.root, path="mine", source="photo").images.ids,
        problem("folder", trees.root, path="yours", source="photo").images.ids,
    ]
    assert sum(map(len, names)) == len(set().union(*names))


def test_a_folder_of_digits_says_that_they_must_not_be_flipped(trees):
    own(trees)
    usual, digits = (
        problem("folder", trees.root, path="mine", source="photo", flip=f) for f in (True, False)
    )
    assert usual.changes == {"flip", "colour"}
    assert digits.changes == {"colour"}
    assert digits.fingerprint != usual.fingerprint


def test_the_augmentation_is_part_of_the_problem(miniature):
    plain, jitter = (problem("cub", miniature, augment=a) for a in ("plain", "jitter"))
    assert plain.fingerprint != jitter.fingerprint


def test_sources_build_problems_without_torch(miniature):
    code = (
        "import sys\n"
        "from gcdbench.core import registry\n"
        "from pathlib import Path\n"
        "for name in ('cub', 'cars', 'aircraft', 'drawshift', 'drawshift_c'):\n"
        "    cls = registry.load('dataset', name)\n"
        f"    cls(cls.Config(), Path({str(miniature)!r})).problem(name).fingerprint\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
