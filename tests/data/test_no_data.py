"""What is no data is passed over by every reader; odd files are read right or reported."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest
from helpers.data_verbs import call, problem
from PIL import Image

from gcdbench.data.datasets import domainnet
from gcdbench.data.folders import class_images, image_files, passed_over
from gcdbench.data.images import FileImages, Unreadable
from gcdbench.data.lists import missing_files
from gcdbench.errors import UserError

TRAPS = (".thumbs/cat/1.jpg", "__MACOSX/cat/1.jpg", ".ipynb_checkpoints/1.jpg", "._1.jpg", ".x.png")


def litter(trees, folder: str) -> None:
    """Put hidden and system entries, and pictures of other kinds, into a folder."""
    for name in TRAPS:
        trees.image(f"{folder}/{name}")
    trees.text(f"{folder}/Thumbs.db", "x")
    trees.text(f"{folder}/1.gif", "x")


def test_hidden_and_system_entries_are_no_images(trees):
    trees.image("mine/a/1.jpg")
    litter(trees, "mine")
    litter(trees, "mine/a")
    assert image_files(trees.root / "mine") == ["a/1.jpg"]
    found = passed_over(trees.root / "mine")
    assert {"__MACOSX/", ".thumbs/", "a/.ipynb_checkpoints/", "a/._1.jpg"} <= set(found)
    assert {"a/1.gif", "a/Thumbs.db"} <= set(found)


def test_a_name_that_is_not_utf_8_is_refused_in_a_sentence(trees):
    trees.image("mine/photo/ant/1.jpg")
    folder = trees.root / "mine/photo/ant"
    try:
        (folder / os.fsdecode(b"x\xe9.jpg")).write_bytes((folder / "1.jpg").read_bytes())
    except OSError:
        pytest.skip("this file system has UTF-8 names only")
    with pytest.raises(UserError, match=r"photo/ant: the name b'x\\xe9.jpg' is not UTF-8"):
        problem("folder", trees.root, path="mine", source="photo")


def test_links_are_followed_but_not_in_loops(trees):
    for name in ("a/1.jpg", "b/2.jpg", "c/3.jpg"):
        trees.image(f"mine/{name}")
    mine = trees.root / "mine"
    (mine / "a/up").symlink_to(mine)
    (mine / "a/other").symlink_to(mine / "b")
    (mine / "b/back").symlink_to(mine / "a")
    (mine / "c/nowhere.jpg").symlink_to(mine / "gone.jpg")
    assert image_files(mine / "a") == ["1.jpg", "other/2.jpg"]
    assert class_images(mine) == [
        *("a/1.jpg", "a/other/2.jpg", "b/2.jpg", "b/back/1.jpg"),
        *("c/3.jpg", "c/nowhere.jpg"),
    ]
    assert missing_files(FileImages(mine, class_images(mine))) == [5]


@pytest.mark.parametrize(
    ("dataset", "folder", "config"),
    [
        ("cub", "CUB_200_2011/images/001.Bird_1", {"shift": "none"}),
        ("cars", "car_data/car_data/train/Acura TL Sedan 2012", {"shift": "none"}),
        ("aircraft", "fgvc-aircraft-2013b/data/images", {"shift": "none"}),
        ("domainnet", "domainnet/real/The_Mona_Lisa", {}),
        ("domainnet", "domainnet/real", {"listing": "folders"}),
        ("imagenet100", "imagenet/train", {}),
        ("imagenet100", "imagenet/train/n01443537", {}),
    ],
)
def test_no_reader_takes_litter_for_data(trees, dataset, folder, config):
    getattr(trees, {"cars": "car_folders"}.get(dataset, dataset))()
    assert (trees.root / folder).is_dir()
    before = problem(dataset, trees.root, **config).fingerprint
    litter(trees, folder)
    domainnet._from_folders.cache_clear()
    assert problem(dataset, trees.root, **config).fingerprint == before


def test_hidden_folders_are_neither_domains_nor_classes(trees):
    for name in ("photo/ant", "photo/bee", "sketch/ant", "sketch/bee"):
        for i in range(4):
            trees.image(f"mine/{name}/{i}.png")
    asked = {"path": "mine", "source": "photo", "shifted": ["sketch"]}
    before = problem("folder", trees.root, **asked)
    litter(trees, "mine")
    for i in range(3):
        trees.image(f"mine/.cache/ant/{i}.png")
        trees.image(f"mine/photo/.cache/{i}.png")
    assert problem("folder", trees.root, **asked).fingerprint == before.fingerprint


def test_verify_names_what_it_passed_over_and_finds_no_fault_in_it(trees, tmp_path, capsys):
    for name in ("photo/ant", "photo/bee"):
        for i in range(4):
            trees.image(f"mine/{name}/{i}.png")
    trees.text("mine/photo/ant/Thumbs.db", "x")
    trees.text("mine/photo/ant/move.gif", "x")
    suite = tmp_path / "mine.yaml"
    suite.write_text("datasets: {own: {source: folder, config: {path: mine, source: photo}}}\n")
    assert call("verify", "--suite", suite, "--workers", 1, "--data-root", trees.root) == 0
    text = capsys.readouterr().out
    assert f"passed over: {trees.root}/mine/photo/ant/Thumbs.db" in text
    assert f"passed over: {trees.root}/mine/photo/ant/move.gif" in text


def test_verify_finds_what_stats_refuses(trees, tmp_path, capsys):
    trees.image("mine/photo/ant/1.png")
    suite = tmp_path / "mine.yaml"
    suite.write_text("datasets: {own: {source: folder, config: {path: mine, source: film}}}\n")
    arguments = ("--suite", suite, "--data-root", trees.root)
    with pytest.raises(UserError) as refused:
        call("stats", *arguments)
    assert call("verify", *arguments, "--workers", 1) == 1
    assert f"strange: {refused.value}" in capsys.readouterr().out


def test_stats_and_verify_name_the_same_stray_images(trees, tmp_path, caplog, capsys):
    for name in ("photo/ant/1", "photo/ant/2", "photo/bee/1", "photo/bee/2", "photo/stray"):
        trees.image(f"mine/{name}.png")
    suite = tmp_path / "mine.yaml"
    suite.write_text("datasets: {own: {source: folder, config: {path: mine, source: photo}}}\n")
    asked = ("--suite", suite, "--data-root", trees.root)
    call("stats", *asked)
    call("verify", *asked, "--workers", 1)
    stray = "1 images not in <domain>/<class>/, the first is photo/stray.png"
    assert stray in caplog.text
    assert stray in capsys.readouterr().out


# --- bits and bytes


def grey(values: np.ndarray, path, mode: str) -> np.ndarray:
    Image.fromarray(values.astype({"I;16": np.uint16, "F": np.float32, "I": np.int32}[mode])).save(
        path
    )
    return np.asarray(FileImages(path.parent, [path.name]).open(0))


@pytest.mark.parametrize(
    ("mode", "suffix", "most"),
    [("I;16", "png", 65535), ("I;16", "tif", 65535), ("F", "tif", 1), ("F", "tiff", 255)],
)
def test_images_of_more_than_8_bits_are_scaled(tmp_path, mode, suffix, most):
    ramp = np.linspace(0, most, 256).reshape(16, 16)
    found = grey(ramp, tmp_path / f"ramp.{suffix}", mode)
    expected = np.rint(ramp * (255 / most)).astype(int)
    assert found.shape == (16, 16, 3)
    assert np.abs(found[..., 0].astype(int) - expected).max() <= 1
    assert len(np.unique(found)) > 200


@pytest.mark.parametrize("values", [(-3.0, 2.0), (0.0, 4000.0), (0.0, np.nan)])
def test_an_unknown_range_of_values_is_reported(tmp_path, values):
    with pytest.raises(Unreadable, match=r"bad.tif.*floating-point values from .* to 8 bits"):
        grey(np.array([values] * 4), tmp_path / "bad.tif", "F")


# --- lists


def test_a_byte_order_mark_and_trailing_blanks_change_nothing(trees):
    cub, aircraft, dn = trees.cub(), trees.aircraft(), trees.domainnet()
    names = {"cub": cub, "aircraft": aircraft / "data", "domainnet": dn}
    before = {name: problem(name, trees.root).fingerprint for name in names}
    for folder in names.values():
        for path in folder.glob("*.txt"):
            text = path.read_text().replace("\n", " \t\r\n") + "\r\n"
            path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    domainnet._from_lists.cache_clear()
    assert {name: problem(name, trees.root).fingerprint for name in names} == before


def test_two_ids_with_one_path_are_refused(trees):
    path = trees.cub() / "images.txt"
    first, _, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first, f"2 {first.split()[1]}", *rest]))
    with pytest.raises(UserError, match=r"images.txt: 001.Bird_1/.* is listed twice"):
        problem("cub", trees.root)


def test_one_id_with_two_paths_is_refused_by_its_line(trees):
    path = trees.cub() / "images.txt"
    first, second, *rest = path.read_text().splitlines()
    path.write_text("\n".join([first, f"1 {second.split()[1]}", *rest]))
    with pytest.raises(UserError, match=r"images.txt, line 2: image 1 is listed twice"):
        problem("cub", trees.root)


def test_an_image_in_two_lists_is_refused(trees):
    folder = trees.aircraft() / "data"
    first = (folder / "images_variant_test.txt").read_text().splitlines()[0]
    with (folder / "images_variant_trainval.txt").open("a") as file:
        file.write(f"{first}\n")
    with pytest.raises(UserError, match=rf"aircraft/{first.split()[0]}.jpg is listed twice"):
        problem("aircraft", trees.root)
    folder = trees.domainnet()
    shutil.copy(folder / "real_train.txt", folder / "real_test.txt")
    domainnet._from_lists.cache_clear()
    with pytest.raises(UserError, match=r"real_train.txt and real_test.txt: real/.* listed twice"):
        problem("domainnet", trees.root, listing="lists")
