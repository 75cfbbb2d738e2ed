"""Planted duplicates are found, and their effect on the split is said."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import more_trees
from helpers.data_verbs import call, problem
from PIL import Image, ImageOps

from gcdbench.data.near_duplicates import candidates, describe, exact_pairs, groups, is_confirmed
from gcdbench.errors import UserError
from gcdbench.experiment.plan import Request, make_cells

SUITE = """
datasets:
  photo:
    source: folder
    config: {path: PACS, classes: pacs, source: photo, shifted: [sketch, cartoon, art_painting]}
"""


def plant(root: Path, kind: str) -> tuple[Path, Path]:
    """Copy a picture of the photographs into the sketches, changed in some way."""
    first = root / "PACS/photo/dog/000.jpg"
    Image.open(first).resize((240, 180)).save(first, quality=95)
    second = root / f"PACS/sketch/dog/{kind}.jpg"
    with Image.open(first) as image:
        if kind == "exact":
            shutil.copy(first, second)
        elif kind == "resized":
            image.resize((133, 100)).save(second, quality=95)
        elif kind == "recompressed":
            image.save(second, quality=30)
        else:
            ImageOps.mirror(image).save(second, quality=95)
    return first, second


@pytest.mark.parametrize(
    ("kind", "pairs"),
    [
        ("exact", "1 exact, 0 near, 0 mirrored"),
        ("resized", "0 exact, 1 near, 0 mirrored"),
        ("recompressed", "0 exact, 1 near, 0 mirrored"),
        ("flipped", "0 exact, 0 near, 1 mirrored"),
    ],
)
def test_a_planted_duplicate_is_found_and_no_other(tmp_path, capsys, kind, pairs):
    more_trees.domain_folders(tmp_path, "pacs")
    first, second = plant(tmp_path, kind)
    (tmp_path / "own.yaml").write_text(SUITE)
    arguments = ("--suite", tmp_path / "own.yaml", "--workers", 1, "--data-root", tmp_path)
    call("verify", *arguments, "--near-duplicates", "--exclusions", tmp_path / "lists")
    text = capsys.readouterr().out
    assert f"photo: 113 images, 1 group of duplicates with 2 images (pairs: {pairs})" in text
    assert f"duplicates: {first}  {second}" in text
    left_out = (tmp_path / "lists/photo.txt").read_text().splitlines()[2:]
    assert left_out == [f"PACS/sketch/dog/{kind}.jpg"]


def test_a_suite_leaves_out_what_its_list_names(tmp_path, capsys):
    more_trees.domain_folders(tmp_path, "pacs")
    plant(tmp_path, "exact")
    suite = tmp_path / "own.yaml"
    suite.write_text(SUITE)
    before = make_cells(Request(str(suite), ("simgcd",), data_root=tmp_path))[0]
    arguments = ("--suite", suite, "--workers", 1, "--data-root", tmp_path)
    call("verify", *arguments, "--near-duplicates", "--exclusions", tmp_path)
    suite.write_text(SUITE + "    exclude: photo.txt\n")
    after = make_cells(Request(str(suite), ("simgcd",), data_root=tmp_path))[0]
    one, other = before.problem(), after.problem()
    assert len(other.unlabelled) == len(one.unlabelled) - 1
    assert len(other.sets["sketch"].rows) == len(one.sets["sketch"].rows) - 1
    assert np.array_equal(other.labelled, one.labelled)
    assert other.notes["excluded"].startswith("1 images of photo.txt (")
    assert before.key != after.key


def test_of_a_group_with_two_classes_nothing_is_kept(tmp_path, capsys):
    folder = more_trees.domain_folders(tmp_path, "pacs")
    shutil.copy(folder / "photo/dog/001.jpg", folder / "photo/house/copy.jpg")
    (tmp_path / "own.yaml").write_text(SUITE)
    arguments = ("--suite", tmp_path / "own.yaml", "--workers", 1, "--data-root", tmp_path)
    call("verify", *arguments, "--near-duplicates", "--exclusions", tmp_path)
    assert "groups with several classes 1, labelled twice 0" in capsys.readouterr().out
    left_out = (tmp_path / "photo.txt").read_text().splitlines()[2:]
    assert left_out == ["PACS/photo/dog/001.jpg", "PACS/photo/house/copy.jpg"]


def test_variants_of_an_image_are_no_duplicates_and_go_with_it(trees, tmp_path, capsys):
    folder = trees.aircraft() / "data/images"
    for i, path in enumerate(sorted(folder.iterdir())):
        more_trees.picture(path.with_name(f"{i}x").with_suffix(".jpg"))
        path.with_name(f"{i}x").with_suffix(".jpg").replace(path)
    test, train = min(folder.iterdir()), max(folder.iterdir())
    shutil.copy(train, test)
    suite = tmp_path / "c.yaml"
    entry = "config: {corruptions: [fog], severities: [1, 2]}"
    suite.write_text(f"datasets: {{c: {{source: aircraft, {entry}}}}}\n")
    arguments = ("--suite", suite, "--workers", 1, "--data-root", trees.root)
    call("verify", *arguments, "--near-duplicates", "--exclusions", tmp_path)
    assert "c: 300 images, 1 group of duplicates with 2 images" in capsys.readouterr().out
    suite.write_text(
        f"datasets: {{c: {{source: aircraft, {entry}, exclude: {tmp_path / 'c.txt'}}}}}\n"
    )
    left = make_cells(Request(str(suite), ("simgcd",), data_root=trees.root))[0].problem()
    whole = problem("aircraft", trees.root, corruptions=["fog"], severities=[1, 2])
    gone = set(whole.pool.tolist()) - set(left.pool.tolist())
    # of two classes: the clean training image, and both variants of the test image
    assert gone == {199, 200, 300}


def test_blank_images_are_no_neighbours(tmp_path):
    white = [Image.new("RGB", (40, 30), (250 + i, 250, 250)) for i in range(3)]
    described = [describe(image) for image in white]
    assert exact_pairs(described) == []
    assert candidates(described) == []


def test_images_of_one_layout_and_other_content_are_kept_apart():
    rng = np.random.RandomState(0)
    base = rng.randint(0, 255, (64, 64, 3)).astype(np.uint8)
    changed = base.copy()
    changed[20:44, 20:44] = 255 - changed[20:44, 20:44]
    assert not is_confirmed(Image.fromarray(base), Image.fromarray(changed), "near")
    assert is_confirmed(Image.fromarray(base), Image.fromarray(base), "near")


def test_pairs_that_share_an_image_are_one_group():
    from gcdbench.data.near_duplicates import Pair

    pairs = [Pair(4, 7, "near"), Pair(1, 2, "exact"), Pair(2, 4, "near"), Pair(8, 9, "near")]
    assert groups(pairs) == [[1, 2, 4, 7], [8, 9]]


def test_an_exclusion_list_of_other_data_is_refused(tmp_path):
    more_trees.domain_folders(tmp_path, "pacs")
    (tmp_path / "list.txt").write_text("# mine\nelsewhere/1.jpg\n")
    suite = tmp_path / "own.yaml"
    suite.write_text(SUITE + "    exclude: list.txt\n")
    cell = make_cells(Request(str(suite), ("simgcd",), data_root=tmp_path))[0]
    with pytest.raises(UserError, match="no image of the exclusion list"):
        cell.problem()


def test_a_list_may_name_images_without_the_dataset_as_domainbed_does(trees, tmp_path):
    trees.domainnet()
    whole = problem("domainnet", trees.root)
    name = whole.images.ids[int(whole.unlabelled[-1])]
    left = whole.without([name.removeprefix("domainnet/")], "a list")
    assert len(left.unlabelled) == len(whole.unlabelled) - 1


def test_exclusions_need_near_duplicates(tmp_path):
    with pytest.raises(UserError, match="add that, too"):
        call("verify", "drawshift", "--exclusions", tmp_path)
