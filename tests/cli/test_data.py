from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.data_verbs import call, problem
from helpers.paths import ROOT, TESTS
from PIL import Image

from gcdbench.cli.data import make_ssb_c
from gcdbench.cli.main import main
from gcdbench.core import registry
from gcdbench.errors import UserError

FEW = ["--corruptions", "fog", "shot_noise", "--severities", "2", "5", "--size", "32"]


# --- info and stats


def test_info_says_where_to_get_every_dataset_and_whether_it_is_there(miniature, capsys):
    assert call("info", "--data-root", miniature) == 0
    text = capsys.readouterr().out
    for plugin in registry.available("dataset"):
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


def test_stats_say_once_what_several_datasets_share(trees, caplog):
    trees.domainnet()
    assert call("stats", "--suite", "domainnet", "--data-root", trees.root) == 0
    assert caplog.text.count("80 images in sketch instead of 69128") == 1


def test_info_says_how_large_the_corrupted_images_are(miniature, capsys):
    call("info", "cub", "--data-root", miniature)
    assert "(make-ssb-c writes about 10 GB at 256 px)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ("make-ssb-c", "cub", "--size", "-3"),
        ("make-ssb-c", "cub", "--workers", "-2"),
        ("make-ssb-c", "cub", "--quality", "0"),
        ("make-ssb-c", "cub", "--quality", "many"),
        ("verify", "cub", "--workers", "-1"),
        ("sheet", "a.jpg", "--out", "b.png", "--size", "0"),
    ],
)
def test_a_number_out_of_range_is_answered_with_a_sentence(arguments, capsys):
    assert main(["data", *arguments]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert f"argument {arguments[-2]}: expected a whole number from" in message


# --- verify


def test_a_valid_dataset_differs_from_the_real_one_by_its_size_only(miniature, capsys):
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
    for name in ("ant/1", "ant/2", "bee/1", "bee/2"):
        trees.image(f"mine/photo/{name}.png")
    suite = tmp_path / "mine.yaml"
    suite.write_text("datasets: {own: {source: folder, config: {path: mine, source: photo}}}\n")
    assert call("verify", "--suite", suite, "--workers", 1, "--data-root", trees.root) == 0
    assert capsys.readouterr().out == "own photo: 4 images\nown: valid\n"


def test_images_that_belong_to_no_class_are_counted(trees, tmp_path, capsys):
    for name in ("photo/ant/1", "photo/bee/1", "photo/1", "photo/2"):
        trees.image(f"mine/{name}.png")
    suite = tmp_path / "mine.yaml"
    suite.write_text("datasets: {own: {source: folder, config: {path: mine, source: photo}}}\n")
    assert call("verify", "--suite", suite, "--workers", 1, "--data-root", trees.root) == 1
    expected = "mine: 2 images not in <domain>/<class>/, the first is photo/1.png"
    assert expected in capsys.readouterr().out


def test_a_class_without_images_is_reported(trees, capsys):
    folder = trees.imagenet100(each=1) / "train"
    synset = min(folder.iterdir()).name
    (folder / synset / f"{synset}_0.JPEG").unlink()
    assert call("verify", "imagenet100", "--no-decode", "--data-root", trees.root) == 1
    assert f"strange: no images of {synset}\n" in capsys.readouterr().out


def test_a_folder_that_is_no_class_is_reported(trees, capsys):
    folder = trees.domainnet() / "sketch"
    trees.image("domainnet/sketch/zebras/1.png")
    call("verify", "domainnet", "--no-decode", "--data-root", trees.root)
    assert f"strange: {folder}/zebras: no class of DomainNet" in capsys.readouterr().out


def test_verify_needs_to_know_what(miniature):
    with pytest.raises(UserError, match="name the datasets to verify"):
        call("verify", "--data-root", miniature)


# --- make-ssb-c


def test_a_tree_that_was_made_holds_what_would_be_computed(trees, capsys):
    trees.aircraft()
    settings = {"corruptions": ["fog", "shot_noise"], "severities": [2, 5], "corruption_size": 32}
    computed = problem("aircraft", trees.root, **settings)
    assert call("make-ssb-c", "aircraft", *FEW, "--workers", 2, "--data-root", trees.root) == 0
    stored = problem("aircraft", trees.root, **settings)
    assert stored.notes["corrupted"] == "made at 32 px, JPEG quality 85"
    assert stored.images.parts[1].root == trees.root / "SSB-C/fgvc-c"
    assert stored.fingerprint == computed.fingerprint
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
        problem("aircraft", trees.root, corruptions=["fog"], severities=[2], corruption_size=32)
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
    assert manifest["finished"] == []


def test_corruptions_can_be_made_one_after_the_other(trees):
    trees.aircraft()
    few = ["--severities", 2, "--size", 32, "--workers", 1, "--data-root", trees.root]
    for corruption in ("fog", "frost"):
        assert call("make-ssb-c", "aircraft", "--corruptions", corruption, *few) == 0
    manifest = json.loads((trees.root / "SSB-C/fgvc-c/gcdbench.json").read_text())
    assert manifest["finished"] == ["fog/2", "frost/2"]
    asked = {"severities": [2], "corruption_size": 32}
    problem("aircraft", trees.root, corruptions=["fog", "frost"], **asked)
    with pytest.raises(UserError, match="snow/2 is not finished"):
        problem("aircraft", trees.root, corruptions=["fog", "snow"], **asked)


def test_an_empty_file_is_made_again(trees):
    trees.aircraft()
    arguments = ("make-ssb-c", "aircraft", *FEW, "--workers", 1, "--data-root", trees.root)
    call(*arguments)
    path = min((trees.root / "SSB-C/fgvc-c/fog/5").iterdir())
    before = path.read_bytes()
    path.write_bytes(b"")
    call(*arguments)
    assert path.read_bytes() == before


def test_images_of_unknown_making_are_not_added_to(trees):
    trees.aircraft()
    trees.image("SSB-C/fgvc-c/fog/2/0000001.jpg")
    with pytest.raises(UserError, match="fgvc-c holds files of unknown making"):
        call("make-ssb-c", "aircraft", *FEW, "--workers", 1, "--data-root", trees.root)


def test_a_tree_cannot_be_made_in_a_file(trees):
    trees.aircraft()
    trees.text("note", "here")
    arguments = ("--out", trees.root / "note", "--workers", 1, "--data-root", trees.root)
    with pytest.raises(UserError, match=r"note/fgvc-c: cannot be written \(Not a directory\)"):
        call("make-ssb-c", "aircraft", *FEW, *arguments)


def test_a_full_disk_is_said_in_a_sentence(trees, monkeypatch):
    trees.aircraft()

    def fail(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(make_ssb_c, "_write_whole", fail)
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\); run"):
        call("make-ssb-c", "aircraft", *FEW, "--workers", 1, "--data-root", trees.root)


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_one_that_began_them(tmp_path, kind):
    code = (
        "from pathlib import Path\n"
        "from gcdbench.cli.data._common import in_parallel\n"
        "from helpers.processes import nothing, pid_for_ever\n"
        f"items = [Path({str(tmp_path)!r})] * 2\n"
        "list(in_parallel(pid_for_ever, items, workers=2, prepare=nothing, given=()))\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(TESTS)])}
    parent = subprocess.Popen([sys.executable, "-c", code], env=env)
    begun = _until(lambda: len(list(tmp_path.iterdir())) == 2)
    parent.send_signal(kind)
    parent.wait()
    assert begun
    children = [Path("/proc") / path.name for path in tmp_path.iterdir()]
    assert _until(lambda: not any(map(_runs, children)))


def _until(true, seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return true()


def _runs(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_arguments_alone_import_nothing_heavy():
    heavy = {"torch", "scipy", "numpy", "PIL"}
    code = (
        "import argparse, sys\n"
        "from gcdbench.cli import data as commands\n"
        "commands.add_parser(argparse.ArgumentParser().add_subparsers())\n"
        "print(*sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
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


def test_a_broken_picture_of_ice_is_named(tmp_path, trees):
    trees.image("bird.jpg", (80, 60))
    trees.text("ice/ice.jpg", "<html>")
    arguments = ("--out", tmp_path / "a.png", "--size", 32, "--frost", trees.root / "ice")
    with pytest.raises(UserError, match=r"frost: cannot identify image file .*ice/ice.jpg"):
        call("sheet", trees.root / "bird.jpg", *arguments)
