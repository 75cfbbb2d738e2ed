"""Packs: one zip file of records and predictions, for others to verify and to merge.

A pack comes from anybody. It is unpacked by a list of what may be in it: every name must be that of
a cell's file, every member an ordinary file of a limited size. Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcdbench import __version__
from gcdbench.core import registry
from gcdbench.core.files import write_atomically
from gcdbench.core.method_spec import MethodSpec
from gcdbench.core.names import OWN, check_name
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.experiment.key import file_hash
from gcdbench.experiment.record import Record
from gcdbench.runner.merge import valid_records
from gcdbench.runner.provenance import provenance

FORMAT = 1
MANIFEST = "pack.json"
RECORDS = "records"  # the folder in a pack that is laid out as a results folder
MOST_MEMBERS = 200_000
MOST_TOTAL = 1 << 32  # bytes of a pack when it is unpacked
MOST_MANIFEST = 1 << 26
WHEN = (1980, 1, 1, 0, 0, 0)  # of all members, so that the same records give the same pack
_MEMBER = re.compile(
    rf"{RECORDS}/([^/]+)/([^/]+)/(seed-?[0-9]+-[0-9a-f]{{16}})/"
    rf"({re.escape(records.RECORD)}|{re.escape(records.PREDICTIONS)})"
)


@dataclass(frozen=True)
class Packed:
    """What was put into a pack."""

    cells: list[str]  # their places in a results folder
    refused: list[tuple[Path, str]]  # records that are not in it, and why


def pack(
    results: Path,
    out: Path,
    *,
    methods: Collection[str] = (),
    datasets: Collection[str] = (),
) -> Packed:
    """Write the valid records of a results folder with their predictions into a zip file."""
    refused: list[tuple[Path, str]] = []
    cells: list[dict[str, str]] = []
    plugins: dict[str, dict[str, Any]] = {}
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.part")
    try:
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
            for path, record in valid_records(results, refused):
                wanted = not methods or record.method in methods
                if wanted and (not datasets or record.dataset in datasets):
                    place = path.parent.relative_to(results).as_posix()
                    cells.append({"place": place, "code": record.fingerprints.get("code", "")})
                    plugins |= _plugins_of(record)
                    for name in (records.RECORD, records.PREDICTIONS):
                        data = (path.parent / name).read_bytes()
                        cells[-1][name] = hashlib.sha256(data).hexdigest()
                        archive.writestr(_info(f"{RECORDS}/{place}/{name}"), data)
            manifest = {
                "format": FORMAT,
                "gcdbench": __version__,
                "environment": provenance(),
                "plugins": plugins,
                "cells": cells,
            }
            archive.writestr(_info(MANIFEST), json.dumps(manifest, indent=1, sort_keys=True))
        if cells:
            partial.replace(out)
    finally:
        partial.unlink(missing_ok=True)
    if not cells:
        raise UserError(f"results pack: {results} has no valid record of what was asked for")
    return Packed([cell["place"] for cell in cells], refused)


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, WHEN)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    return info


def _plugins_of(record: Record) -> dict[str, dict[str, Any]]:
    """Return the file's hash of a record's method and techniques, as they are here now."""
    try:
        spec = MethodSpec.parse(record.method)
    except UserError:  # not installed any more
        return {}
    named = [("method", spec.method), *(("technique", name) for name in spec.techniques)]
    found = {}
    for kind, name in named:
        path = registry.get(kind, name).path
        found[f"{kind} {name}"] = {"file": path.name, "sha256": file_hash(path)}
    return found


@contextmanager
def opened(path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Unpack a pack into a folder that is removed afterwards; give its records and manifest."""
    with tempfile.TemporaryDirectory(prefix="gcdbench-pack-") as temporary:
        folder = Path(temporary)
        manifest = unpack(path, folder)
        (folder / RECORDS).mkdir(exist_ok=True)
        yield folder / RECORDS, manifest


def unpack(path: Path, folder: Path) -> dict[str, Any]:
    """Write the files of a pack below a folder and return its manifest.

    Raise a UserError for a file that is no pack: with other names, links, more than the limits.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if reason := _refusal(members):
                raise UserError(f"{path} is no pack of gcdbench: {reason}")
            for member in members:
                if member.filename != MANIFEST:
                    write_atomically(folder / member.filename, archive.read(member))
            return _manifest(path, archive)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        # zipfile has a RuntimeError for encrypted members and unknown ways of compression
        text = str(error) or type(error).__name__
        raise UserError(f"{path} cannot be read as a pack ({text})") from error


def _refusal(members: list[zipfile.ZipInfo]) -> str:
    """Say what in a list of members does not belong into a pack; nothing if all does."""
    names = [member.filename for member in members]
    if names.count(MANIFEST) != 1:
        return f"it must have one {MANIFEST}"
    if len(members) > MOST_MEMBERS or sum(member.file_size for member in members) > MOST_TOTAL:
        return f"it has more than {MOST_MEMBERS} files or {MOST_TOTAL >> 30} GB"
    if len({name.casefold() for name in names}) < len(names):
        return "it has two files of one name"
    for member in members:
        shown = repr(member.filename[:80])
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in (0, stat.S_IFREG) or member.is_dir():
            return f"{shown} is not an ordinary file"
        most = MOST_MANIFEST if member.filename == MANIFEST else records.MOST_BYTES
        if member.file_size > most:
            return f"{shown} is larger than {most >> 20} MB"
        if member.filename != MANIFEST and (reason := _misnamed(member.filename)):
            return f"{shown} {reason}"
    return ""


def _misnamed(name: str) -> str:
    found = _MEMBER.fullmatch(name)
    if found is None:
        return "is not the name of a cell's file"
    try:
        check_name(found[1], "dataset", own=OWN)
        check_name(found[2], "method")
    except UserError as error:
        return f"has a name that cannot be used ({error})"
    return ""


def _manifest(path: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    try:
        content = json.loads(archive.read(MANIFEST))
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}, this gcdbench reads {FORMAT}")
        cells = {cell["place"]: cell for cell in content["cells"]}
        plugins = {str(n): str(one["sha256"]) for n, one in content["plugins"].items()}
    except RecursionError as error:
        raise UserError(f"{path}: {MANIFEST} is nested too deeply") from error
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        text = f"{type(error).__name__}: {error}"[:200]
        raise UserError(f"{path}: {MANIFEST} cannot be read ({text})") from error
    return {**content, "cells": cells, "plugins": plugins}


def contradictions(folder: Path, manifest: Mapping[str, Any]) -> list[tuple[Path, str]]:
    """Return the cells that a pack's list and its files do not agree on, with reasons."""
    listed = manifest["cells"]
    found = []
    there = {path.parent.relative_to(folder).as_posix() for path in folder.glob("*/*/*/*")}
    for place in sorted(there | listed.keys()):
        if place not in there:
            found.append((folder / place, "is listed and not there"))
        elif place not in listed:
            found.append((folder / place, "is there and not listed"))
        else:
            for name in (records.RECORD, records.PREDICTIONS):
                file = folder / place / name
                if not file.is_file() or listed[place].get(name) != file_hash(file):
                    found.append((file, "is not the file that was packed"))
    return found


def code_here(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Say of every plug-in of a pack whether its file is the one that is installed here."""
    found = {}
    for title, digest in manifest["plugins"].items():
        kind, _, name = title.partition(" ")
        try:
            same = file_hash(registry.get(kind, name).path) == digest
            found[title] = "the same file as here" if same else "another file than here"
        except (UserError, KeyError):
            found[title] = "not installed here"
    return found
