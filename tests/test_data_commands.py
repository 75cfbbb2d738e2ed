from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from data_verbs import call
from PIL import Image

from gcdbench import registry
from gcdbench.config import build
from gcdbench.data.commands import make_ssb_c
from gcdbench.errors import UserError

FEW = ["--corruptions", "fog", "shot_noise", "--severities", "2", "5", "--size", "32"]


def problem(plugin: str, root: Path, **config):
    cls = registry.load("source", plugin)
    return cls(build(cls.Config, config, plugin), root).problem("test")


# --- info and stats


def test_info_says_where_to_get_every_dataset_and_whether_it_is_there(miniature, capsys):
    assert call("info", "--data-root", miniature) == 0
    text = capsys.readouterr().out
    for plugin in registry.faces("source"):
        assert f"{plugin}: " in text
    assert "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz" in text
    assert "on disk   train 400, test 200" in text
    assert "on disk   no: DomainNet (cleaned) is not there: expected" in text


def test_info_can_be_read_by_a_program(miniature, capsys):
    call("info", "cub", "--json", "--data-root", miniature)
    (row,) = json.loads(capsys.readouterr().out)
    assert row["images"] == {"train": 5994, "test": 5794}
    assert row["found"] == {"train": 400, "test": 200}


def test_stats_prints_the_table_of_the_paper(miniature, capsys):
    assert call("stats", "--suite", "ssb-c", "--data-root", miniature) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][0] == "dataset"
    # labelled images, classes, domains; unlabelled images, classes; scored images, domains
    found = problem("cub", miniature)
    classes = str(len(np.unique(found.labels[found.labelled])))
    assert lines[1] == ["cub-c", "100", classes, "1", "9,300", "200", "9,300", "10"]
    assert [line[0] for line in lines[1:]] == ["cub-c", "scars-c", "fgvc-c"]
    assert [line[-1] for line in lines[1:]] == ["10", "10", "10"]


def test_stats_can_name_the_size_of_every_set(miniature, capsys):
    call("stats", "--suite", "ssb-c", "--datasets", "fgvc-c", "--json", "--data-root", miniature)
    (row,) = json.loads(capsys.readouterr().out)
    assert len(row["sets"]) == 46
    assert row["sets"]["fog/5"] == 100
    assert row["notes"]["split"] == "ssb 1"


def test_stats_of_an_unknown_dataset_are_refused(miniature):
    with pytest.raises(UserError, match="unknown dataset 'cub' in suite ssb-c"):
        call("stats", "--suite", "ssb-c", "--datasets", "cub", "--data-root", miniature)


# --- verify


def test_a_sound_dataset_differs_from_the_real_one_by_its_size_only(miniature, capsys):
    assert call("verify", "cub", "--workers", 1, "--data-root", miniature) == 1
    assert capsys.readouterr().out.splitlines() == [
        "cub train: 400 images instead of 5,994",
        "cub test: 200 images instead of 5,794",
        "cub: 0 missing, 0 unreadable, 0 altered, 2 parts of another size",
    ]


@pytest.mark.parametrize("workers", [1, 2])
def test_everything_that_is_wrong_is_listed_at_once(trees, capsys, workers):
    folder = trees.aircraft() / "data" / "images"
    cut, page, gone = sorted(folder.iterdir())[3:6]
    cut.write_bytes(cut.read_bytes()[:300])
    page.write_text("<html>404</html>")
    gone.unlink()
    assert call("verify", "aircraft", "--workers", workers, "--data-root", trees.root) == 1
    text = capsys.readouterr().out
    assert f"missing: {gone}\n" in text
    assert f"unreadable: {cut} (" in text
    assert f"unreadable: {page} (cannot identify image file" in text
    assert "1 missing, 2 unreadable" in text


def test_files_can_be_counted_without_opening_them(trees, capsys):
    folder = trees.aircraft() / "data" / "images"
    first, second, *_ = sorted(folder.iterdir())
    first.write_bytes(b"")
    second.unlink()
    call("verify", "aircraft", "--no-decode", "--data-root", trees.root)
    assert "1 missing, 0 unreadable" in capsys.readouterr().out


def test_a_wrong_layout_is_a_finding_and_not_an_error(trees, capsys):
    folder = trees.cub()
    shutil.move(folder / "images.txt", folder / "list.txt")
    assert call("verify", "cub", "--data-root", trees.root) == 1
    expected = f"cub: CUB-200-2011 is not there: {folder} lacks images.txt"
    assert capsys.readouterr().out.startswith(expected)


def test_an_altered_file_is_told_by_its_checksum(trees, capsys):
    trees.cifar10()
    assert call("verify", "cifar10", "--workers", 1, "--data-root", trees.root) == 1
    assert "altered: " in capsys.readouterr().out


def test_an_archive_that_was_kept_is_compared_too(trees, capsys):
    trees.cub()
    trees.text("downloads/CUB_200_2011.tgz", "not what the server has")
    call("verify", "cub", "--no-decode", "--data-root", trees.root)
    assert f"altered: {trees.root}/downloads/CUB_200_2011.tgz" in capsys.readouterr().out


def test_the_datasets_of_a_suite_are_verified_with_their_settings(trees, tmp_path, capsys):
    trees.image("mine/photo/ant/1.png")
    trees.image("mine/photo/bee/1.png")
    suite = tmp_path / "mine.yaml"
    suite.write_text("datasets: {own: {source: folder, config: {path: mine, source: photo}}}\n")
    assert call("verify", "--suite", suite, "--workers", 1, "--data-root", trees.root) == 0
    assert capsys.readouterr().out == "own photo: 2 images\nown: sound\n"


def test_verify_needs_to_know_what(miniature):
    with pytest.raises(UserError, match="name the sources to verify"):
        call("verify", "--data-root", miniature)


# --- make-ssb-c


def test_a_tree_that_was_made_holds_what_would_be_computed(trees, capsys):
    trees.aircraft()
    assert call("make-ssb-c", "aircraft", *FEW, "--workers", 2, "--data-root", trees.root) == 0
    settings = {"corruptions": ["fog", "shot_noise"], "severities": [2, 5], "corruption_size": 32}
    stored = problem("aircraft", trees.root, **settings, corrupted="stored")
    computed = problem("aircraft", trees.root, **settings, corrupted="computed", jpeg_quality=85)
    assert stored.notes["corrupted"].startswith("stored, made at 32 px, JPEG quality 85, code ")
    assert len(stored.images) == len(computed.images) == 200 + 400
    for row in (200, 399, 450, 599):
        assert np.array_equal(stored.images.open(row), computed.images.open(row))
    path = trees.root / "SSB-C/fgvc-c/shot_noise/5"
    assert len(list(path.iterdir())) == 100
    assert not list(trees.root.rglob("*.part"))


def test_an_interrupted_making_goes_on_where_it_was(trees, monkeypatch):
    trees.aircraft()
    arguments = ("make-ssb-c", "aircraft", *FEW, "--workers", 1, "--data-root", trees.root)
    written = []
    write = make_ssb_c._write_whole

    def write_some(path: Path, data: bytes) -> None:
        if len(written) > 60:
            raise KeyboardInterrupt
        written.append(path)
        write(path, data)

    monkeypatch.setattr(make_ssb_c, "_write_whole", write_some)
    with pytest.raises(KeyboardInterrupt):
        call(*arguments)
    with pytest.raises(UserError, match="not complete"):
        problem("aircraft", trees.root, corruptions=["fog"], severities=[2])
    first = written[5]
    before = (first.stat().st_mtime_ns, first.read_bytes())
    monkeypatch.setattr(make_ssb_c, "_write_whole", write)
    assert call(*arguments) == 0
    assert (first.stat().st_mtime_ns, first.read_bytes()) == before
    assert len(list((trees.root / "SSB-C/fgvc-c").rglob("*.jpg"))) == 400


def test_two_ways_of_making_are_not_mixed(trees):
    trees.aircraft()
    arguments = ["make-ssb-c", "aircraft", *FEW, "--workers", 1, "--data-root", trees.root]
    call(*arguments)
    with pytest.raises(UserError, match=r"fgvc-c was begun in another way \(at 32 px"):
        call(*arguments, "--size", 40)


def test_a_clean_image_that_cannot_be_read_is_named_and_the_tree_is_not_complete(trees, capsys):
    folder = trees.aircraft() / "data" / "images"
    broken = min(folder.iterdir())
    broken.write_bytes(b"")
    assert call("make-ssb-c", "aircraft", *FEW, "--workers", 1, "--data-root", trees.root) == 1
    assert f"unreadable: {broken}" in capsys.readouterr().out
    manifest = json.loads((trees.root / "SSB-C/fgvc-c/gcdbench.json").read_text())
    assert manifest["complete"] is False


def test_the_arguments_alone_import_nothing_heavy():
    heavy = {"torch", "scipy", "numpy", "PIL"}
    code = (
        "import argparse, sys\n"
        "from gcdbench.data import commands\n"
        "commands.add_parser(argparse.ArgumentParser().add_subparsers())\n"
        "print(*sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
    ).stdout
    assert not heavy & set(shown.split())


# --- sheet


def test_the_sheet_of_a_picture_is_written_as_a_picture(tmp_path, trees):
    trees.image("bird.jpg", (80, 60))
    assert call("sheet", trees.root / "bird.jpg", "--out", tmp_path / "all.png", "--size", 32) == 0
    with Image.open(tmp_path / "all.png") as sheet:
        assert sheet.width == 5 * 32


@pytest.mark.parametrize(("image", "out"), [("none.jpg", "a.png"), ("bird.jpg", "a.none")])
def test_a_sheet_that_cannot_be_made_is_refused_by_name(tmp_path, trees, image, out):
    trees.image("bird.jpg", (80, 60))
    with pytest.raises(UserError, match=r"none.*cannot be"):
        call("sheet", trees.root / image, "--out", tmp_path / out, "--size", 32)
