from __future__ import annotations

import argparse
import hashlib
import http.server
import io
import json
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gcdbench import registry
from gcdbench.config import build
from gcdbench.data import commands
from gcdbench.data.commands import download, make_ssb_c, verify
from gcdbench.errors import UserError

FEW = ["--corruptions", "fog", "shot_noise", "--severities", "2", "5", "--size", "32"]


def call(*arguments: object) -> int:
    """Run ``gcdbench data`` as the command line does."""
    parser = argparse.ArgumentParser()
    commands.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["data", *map(str, arguments)])
    return parsed.verb(parsed)


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


# --- download


class Server(http.server.BaseHTTPRequestHandler):
    """Serves bytes from a table; knows ranges, and can break off or send a web page."""

    files: dict[str, bytes]
    asked: list[tuple[str, str | None]]
    cut: int | None

    def do_GET(self) -> None:
        name, wanted = self.path.lstrip("/"), self.headers.get("Range")
        self.asked.append((name, wanted))
        if name == "page.tgz":
            return self._send(b"<!DOCTYPE html><html>log in</html>", kind="text/html")
        if name not in self.files:
            return self.send_error(404)
        data = self.files[name]
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        if start and start >= len(data):
            return self.send_error(416)
        return self._send(data[start:], 206 if start else 200)

    def _send(self, data: bytes, status: int = 200, kind: str = "application/x-tar") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", kind)
        self.end_headers()
        if type(self).cut is not None:
            data, type(self).cut = data[: type(self).cut], None
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(download, "PAUSE", 0.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    Server.files, Server.asked, Server.cut = {}, [], None
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{running.server_address[1]}"
    running.shutdown()
    running.server_close()
    thread.join()


def packed(**files: bytes) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name.replace("__", "/"))
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return data.getvalue()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_an_archive_is_fetched_checked_and_unpacked(server, tmp_path, capsys):
    data = Server.files["cars.tgz"] = packed(devkit__README=b"hello")
    arguments = ("cars", "--url", f"{server}/cars.tgz", "--data-root", tmp_path)
    assert call("download", *arguments, "--sha256", sha256(data)) == 0
    assert (tmp_path / "stanford_cars/devkit/README").read_bytes() == b"hello"
    assert not list((tmp_path / "downloads").iterdir())


def test_a_zip_archive_is_unpacked_too(server, tmp_path):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("real/zebra/1.jpg", b"x")
    Server.files["real.zip"] = data.getvalue()
    url = f"{server}/real.zip"
    call("download", "domainnet", "--url", url, "--keep", "--data-root", tmp_path)
    assert (tmp_path / "domainnet/real/zebra/1.jpg").exists()
    assert (tmp_path / "downloads/real.zip").exists()


def test_a_download_that_breaks_off_is_resumed(server, tmp_path):
    data = Server.files["a.tgz"] = packed(a=np.random.RandomState(0).bytes(50000))
    Server.cut = 20000
    path = download.fetch(f"{server}/a.tgz", tmp_path, f"sha256:{sha256(data)}")
    assert path.read_bytes() == data
    assert Server.asked == [("a.tgz", None), ("a.tgz", "bytes=20000-")]


def test_what_an_earlier_run_brought_is_not_fetched_again(server, tmp_path):
    data = Server.files["a.tgz"] = packed(a=np.random.RandomState(0).bytes(50000))
    (tmp_path / "a.tgz.part").write_bytes(data[:30000])
    assert download.fetch(f"{server}/a.tgz", tmp_path).read_bytes() == data
    assert Server.asked == [("a.tgz", "bytes=30000-")]
    (tmp_path / "a.tgz").rename(tmp_path / "a.tgz.part")
    assert download.fetch(f"{server}/a.tgz", tmp_path).read_bytes() == data  # nothing is left


def test_a_wrong_checksum_removes_what_came(server, tmp_path):
    Server.files["a.tgz"] = packed(a=b"1")
    with pytest.raises(UserError, match="another checksum than sha256:0000"):
        download.fetch(f"{server}/a.tgz", tmp_path, "sha256:0000")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["page.tgz", "fake.tgz", "fake.zip"])
def test_a_web_page_is_not_taken_for_an_archive(server, tmp_path, name):
    Server.files |= dict.fromkeys(("fake.tgz", "fake.zip"), b"  <html>moved</html>")
    with pytest.raises(UserError, match=r"web page and not a file|something else than an archive"):
        download.fetch(f"{server}/{name}", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_server_that_has_no_such_file_is_quoted(server, tmp_path):
    with pytest.raises(UserError, match="the server answers 404"):
        download.fetch(f"{server}/none.tgz", tmp_path)


def test_a_server_that_is_not_there_is_reported_in_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(download, "PAUSE", 0.0)
    with pytest.raises(UserError, match=r"could not be fetched .*run the same command again"):
        download.fetch("http://127.0.0.1:9/a.tgz", tmp_path)


def test_an_archive_cannot_write_outside_of_its_folder(tmp_path):
    archive = tmp_path / "evil.tgz"
    archive.write_bytes(packed(**{"..__evil": b"x"}))
    with pytest.raises(UserError, match="cannot be unpacked"):
        download.unpack(archive, tmp_path / "inside")
    assert not (tmp_path / "evil").exists()


def test_a_dataset_without_an_address_asks_for_one(tmp_path):
    with pytest.raises(
        UserError, match=r"no public address that gcdbench knows: give one with --url"
    ):
        call("download", "cars", "--data-root", tmp_path)


def test_a_download_needs_a_place(monkeypatch):
    monkeypatch.delenv("GCDBENCH_DATA", raising=False)
    with pytest.raises(UserError, match="Name a folder with --data-root"):
        call("download", "cub")


def test_checksums_of_either_kind_are_compared(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"hello")
    assert verify.checksum_fits(path, "md5:5d41402abc4b2a76b9719d911017c592")
    assert verify.checksum_fits(path, f"sha256:{sha256(b'hello').upper()}")
    assert not verify.checksum_fits(path, "md5:0")


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
