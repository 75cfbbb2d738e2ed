from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gcdbench import registry
from gcdbench.data.corruptions import CORRUPTIONS, corrupt
from gcdbench.data.images import resize_shorter
from gcdbench.data.problem import Problem
from gcdbench.data.sources import make_source
from gcdbench.data.splits import class_file, labelled_half
from gcdbench.errors import UserError

ON_DISK = ["cub", "cars", "aircraft", "domainnet", "imagenet100", "cifar10"]


def problem(plugin: str, root: Path | None, **config) -> Problem:
    return make_source(plugin, root, config).problem("test")


def raw_label(benchmark: str, raw: int) -> int:
    split = class_file("ssb")[benchmark]
    return [*split["old"], *(c for part in split["new"].values() for c in part)].index(raw)


# --- SSB and SSB-C


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
    found = problem("cub", miniature, corruption_size=32)
    row = found.sets["speckle_noise/3"].rows[5]
    path = found.images.ids[row].partition("@")[0].removeprefix("speckle_noise/3/cub/")
    clean = resize_shorter(_pil(miniature / "CUB_200_2011/images" / path), 32)
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
    assert computed.notes["corrupted"] == "computed at 256 px"
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
    with pytest.raises(UserError, match="name different images"):
        problem("cub", trees.root)


def test_a_line_that_is_no_list_entry_is_named(trees):
    folder = trees.cub()
    (folder / "images.txt").write_text("<html>moved</html>\n")
    with pytest.raises(UserError, match=r"images.txt, line 1: expected '<number> <value>'"):
        problem("cub", trees.root)


def test_another_number_of_images_is_said_aloud(miniature, caplog):
    problem("cub", miniature)
    assert "CUB-200-2011: 400 images in train instead of 5994" in caplog.text


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
    (folder / "real_test.txt").write_text("real/zebra/real_344_000001.jpg 12\n")
    registry.load("source", "domainnet")
    sys.modules["gcdbench.data.sources.domainnet"]._from_lists.cache_clear()
    with pytest.raises(UserError, match=r"real_test.txt, line 1: not an image of a known class"):
        problem("domainnet", trees.root, listing="lists")


def test_a_class_without_a_folder_shifts_no_label(trees):
    folder = trees.domainnet()
    before = problem("domainnet", trees.root)
    shutil.rmtree(folder / "real" / "The_Eiffel_Tower")
    sys.modules["gcdbench.data.sources.domainnet"]._from_folders.cache_clear()
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
    assert 0.28 < len(shifted) / (len(clean) + len(shifted)) < 0.3  # whole images of each class


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
    title = registry.face("source", source).constants["title"]
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
        problem("cub", miniature, jpeg_quality=85).images.ids[400:],
        problem("folder", trees.root, path="mine", source="photo").images.ids,
        problem("folder", trees.root, path="yours", source="photo").images.ids,
    ]
    assert sum(map(len, names)) == len(set().union(*names))


def test_the_augmentation_is_part_of_the_problem(miniature):
    plain, jitter = (problem("cub", miniature, augment=a) for a in ("plain", "jitter"))
    assert plain.fingerprint != jitter.fingerprint


def test_sources_build_problems_without_torch(miniature):
    code = (
        "import sys\n"
        "from gcdbench import registry\n"
        "from pathlib import Path\n"
        "for name in ('cub', 'cars', 'aircraft', 'drawshift', 'drawshift_c'):\n"
        "    cls = registry.load('source', name)\n"
        f"    cls(cls.Config(), Path({str(miniature)!r})).problem(name).fingerprint\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


def _pil(path: Path):
    from PIL import Image

    return Image.open(path).convert("RGB")
