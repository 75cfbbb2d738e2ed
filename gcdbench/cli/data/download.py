"""``gcdbench data download``: download archives, check and unpack them.

Nothing is downloaded unless this action is called. An interrupted download is resumed. A web page
in place of an archive, a wrong checksum or a full disk is reported in one sentence.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import http.client
import logging
import lzma
import shutil
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
import zlib
from pathlib import Path

from tqdm import tqdm

from gcdbench import __version__
from gcdbench.cli.data._common import say
from gcdbench.cli.data.verify import checksum_fits
from gcdbench.core.names import check_name
from gcdbench.data.datasets import make_dataset
from gcdbench.errors import UserError

ATTEMPTS = 4
PAUSE = 2.0  # seconds before the second attempt; doubled before each further one
# what reading a truncated, altered or different file raises
_DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError, zlib.error),
    *(EOFError, RuntimeError),
)
log = logging.getLogger(__name__)


def run(arguments: argparse.Namespace) -> int:
    """Fetch the archives of a dataset into the data root and unpack them."""
    dataset = make_dataset(arguments.dataset, arguments.data_root)
    if dataset.root is None:
        raise UserError("where to? Name a folder with --data-root or GCDBENCH_DATA")
    if dataset.root.exists() and not dataset.root.is_dir():
        raise UserError(f"{dataset.root}: no folder; name another one with --data-root")
    if arguments.url:
        _check_addresses(arguments.url, arguments.sha256)
        checksums = [f"sha256:{value}" for value in arguments.sha256]
        checksums += [""] * (len(arguments.url) - len(checksums))
        archives = list(zip(arguments.url, checksums, strict=False))
    else:
        archives = list(dataset.archives)
    if not archives:
        raise UserError(
            f"{dataset.title} has no public address that gcdbench knows: give one with --url, or "
            f"see 'gcdbench data info {dataset.plugin}'"
        )
    folder = dataset.root / dataset.unpack
    for address, checksum in archives:
        archive = fetch(address, dataset.root / "downloads", checksum)
        unpack(archive, folder)
        if not arguments.keep:
            archive.unlink()
        say(f"{address}: unpacked into {folder}")
    return 0


def fetch(address: str, folder: Path, checksum: str = "") -> Path:
    """Download a file into a folder, compare its checksum and return its path."""
    name = _file_name(address)
    target, part = folder / name, folder / f"{name}.part"
    if not target.exists():
        _make_folder(folder)
        _fetch_all(address, part)
        _check_kind(address, part, name)
    else:
        part = target
    if checksum and not checksum_fits(part, checksum):
        part.unlink()
        raise UserError(
            f"{address}: what came has another checksum than {checksum}; it was removed, so try "
            "again, or name a mirror with --url"
        )
    if not checksum:
        log.info("%s: sha256 %s (none was given to compare)", name, _sha256(part))
    return part.replace(target)


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar or zip archive; nothing can be written outside of the folder."""
    _make_folder(folder)
    try:
        if archive.suffix == ".txt":  # a list and no archive
            shutil.copyfile(archive, folder / archive.name)
            return
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(folder)
            return
        if not hasattr(tarfile, "data_filter"):
            raise UserError("this Python cannot unpack tar files safely: use 3.11.4 or up")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    except _DAMAGED as error:
        archive.unlink()
        raise UserError(
            f"{archive}: cannot be unpacked ({_first_line(error)}); it was removed, so run the "
            "same command again, or name a mirror with --url"
        ) from error
    except OSError as error:  # of the disk
        raise UserError(f"{archive}: cannot be unpacked into {folder} ({error})") from error


def _check_addresses(addresses: list[str], checksums: list[str]) -> None:
    """Raise a UserError for archives of one name and for checksums without an address."""
    names = [_file_name(address) for address in addresses]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two addresses end in {name}: fetch one after the other")
    if len(checksums) > len(addresses):
        raise UserError(f"{len(checksums)} --sha256 for {len(addresses)} --url; give one for each")


def _file_name(address: str) -> str:
    parts = urllib.parse.urlsplit(address)
    if parts.scheme not in ("http", "https", "ftp", "file"):
        raise UserError(f"{address}: no address; give one that begins with https://")
    path = urllib.parse.unquote(parts.path)
    name = path.rpartition("/")[2]
    if not name:
        raise UserError(f"{address}: this address names no file")
    return check_name(name, address if address.isprintable() else repr(address))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(":")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made ({error.strerror})") from error


def _fetch_all(address: str, part: Path) -> None:
    """Try until the file is complete; every attempt continues the one before."""
    for attempt in range(ATTEMPTS):
        try:
            if _fetch_rest(address, part):
                return
            reason = "the connection broke off"
        except urllib.error.HTTPError as error:
            reason = f"the server answers {error.code} {error.reason}"
            if error.code < 500:
                raise UserError(f"{address}: {reason}") from error
        except (OSError, http.client.HTTPException) as error:  # any network error
            reason = str(getattr(error, "reason", error))
        if attempt + 1 < ATTEMPTS:
            log.info("%s: %s; trying again", address, reason)
            time.sleep(PAUSE * 2**attempt)
    raise UserError(
        f"{address}: could not be fetched ({reason}); run the same command again to resume, or "
        "download it elsewhere and unpack it below the data root"
    )


def _fetch_rest(address: str, part: Path) -> bool:
    """Download the missing part of a file and return whether the file is complete."""
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(address, headers={"User-Agent": f"gcdbench/{__version__}"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:  # nothing is left to download
            return True
        raise
    with answer:
        if "text/html" in answer.headers.get("Content-Type", ""):
            raise UserError(f"{address}: gives a web page and not a file; give another with --url")
        resumed = answer.status == 206
        start = start if resumed else 0
        left = int(answer.headers.get("Content-Length") or 0)
        if left > shutil.disk_usage(part.parent).free:
            raise UserError(f"{part.parent}: {left / 1e9:.1f} GB are needed and not free")
        with (
            part.open("ab" if resumed else "wb") as file,
            tqdm(
                total=start + left,
                initial=start,
                desc=part.stem,
                unit="B",
                unit_scale=True,
                disable=None,
                leave=False,
            ) as bar,
        ):
            while chunk := answer.read(1 << 20):
                file.write(chunk)
                bar.update(len(chunk))
    return not left or part.stat().st_size == start + left


def _check_kind(address: str, part: Path, name: str) -> None:
    """Raise a UserError if the server has sent a web page in place of an archive."""
    with part.open("rb") as file:
        head = file.read(512)
    zipped = name.endswith(".zip") and not head.startswith(b"PK")
    gzipped = name.endswith((".tgz", ".gz")) and not head.startswith(b"\x1f\x8b")
    if zipped or gzipped or head.lstrip()[:14].lower().startswith((b"<!doctype html", b"<html")):
        part.unlink()
        raise UserError(f"{address}: gave something else than an archive; give another with --url")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
