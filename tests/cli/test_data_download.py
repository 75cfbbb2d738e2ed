from __future__ import annotations

import hashlib
import http.server
import io
import tarfile
import threading
import zipfile

import numpy as np
import pytest
from helpers.data_verbs import call

from gcdbench.cli.data import download, verify
from gcdbench.errors import UserError


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


def test_a_damaged_archive_is_removed_so_that_the_next_run_fetches_it_again(server, tmp_path):
    whole = packed(devkit__README=np.random.RandomState(0).bytes(5000))
    arguments = ("cars", "--url", f"{server}/cars.tgz", "--data-root", tmp_path)
    Server.files["cars.tgz"] = whole[:-300]
    with pytest.raises(UserError, match=r"cannot be unpacked .*it was removed, so run") as caught:
        call("download", *arguments)
    assert "\n" not in str(caught.value)
    Server.files["cars.tgz"] = whole
    assert call("download", *arguments) == 0
    assert (tmp_path / "stanford_cars/devkit/README").exists()


def test_a_file_that_is_no_archive_is_said_in_one_line(tmp_path):
    archive = tmp_path / "a.tar"
    archive.write_bytes(b"<?xml?><Error>AccessDenied</Error>")
    with pytest.raises(UserError) as caught:
        download.unpack(archive, tmp_path / "inside")
    assert "\n" not in str(caught.value)
    assert not archive.exists()


def test_a_disk_that_cannot_be_written_costs_no_archive(tmp_path, monkeypatch):
    archive = tmp_path / "a.tgz"
    archive.write_bytes(packed(a=b"1"))

    def fail(*arguments, **keywords):
        raise OSError("No space left on device")

    monkeypatch.setattr(tarfile.TarFile, "extractall", fail)
    with pytest.raises(UserError, match="No space left"):
        download.unpack(archive, tmp_path / "inside")
    assert archive.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--url", "foo"), "foo: no address; give one that begins with https://"),
        (("--url", "https://a/x.tgz", "--url", "https://b/x.tgz"), "two addresses end in x.tgz"),
        (("--url", "https://a/x.tgz", "--sha256", 0, "--sha256", 1), "2 --sha256 for 1 --url"),
    ],
)
def test_addresses_that_cannot_be_meant_are_refused(tmp_path, arguments, message):
    with pytest.raises(UserError, match=message):
        call("download", "cars", *arguments, "--data-root", tmp_path)


def test_a_data_root_that_is_a_file_is_refused(tmp_path):
    root = tmp_path / "note"
    root.write_text("here")
    with pytest.raises(UserError, match=f"{root}: no folder; name another"):
        call("download", "cars", "--url", "https://a/x.tgz", "--data-root", root)


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
