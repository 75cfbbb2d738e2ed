"""The attacks of the campaign: names, links, pickles, archives, addresses, text in reports."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import pickle
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from faults.campaign import Case, Place
from helpers.toy import Toy

from gcdbench.cli.data import download
from gcdbench.cli.main import main
from gcdbench.core.config import parse_assignments
from gcdbench.core.suites import Suite
from gcdbench.data.feature_file import read as read_features
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.report.formats.data import no_formula
from gcdbench.report.formats.latex import escape
from gcdbench.report.formats.markdown import as_text
from gcdbench.runner import checkpoint
from gcdbench.runner.merge import merge


class Trap:
    """An object that leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def attack(group: str, name: str, inject: Callable[[Place], None]) -> Case:
    return Case("attack", group, name, inject)


def work(place: Place) -> Path:
    """Return a folder for what an attacker sends."""
    folder = place.folder / "work"
    folder.mkdir(exist_ok=True)
    return folder


def suite_name(place: Place, name: str) -> None:
    """Ask for a run of a suite whose dataset has a name that leads elsewhere."""
    data = yaml.safe_load(place.toy.suite.read_text())
    data["datasets"] = {name: data["datasets"]["toy"]}
    path = work(place) / "suite.yaml"
    path.write_text(yaml.safe_dump(data))
    before = {p.name for p in place.toy.results.iterdir()}
    command = Toy(path, place.toy.results).command("run", "--methods", "simgcd")[3:]
    assert place.call(lambda: exit_with(2, command)) == 0
    assert {p.name for p in place.toy.results.iterdir()} == before


def exit_with(code: int, command: list[str]) -> None:
    assert main(command) == code


def linked(place: Place, name: str, *, of: str) -> None:
    """Put a link into a results folder that is merged, or into the one it is merged into."""
    source, into = place.folder / "source", place.folder / "into"
    shutil.copytree(place.toy.results, source)
    folder = records.cell_folder(source if of == "source" else into, place.bystander)
    folder.parent.mkdir(parents=True, exist_ok=True)
    target = folder if name == "." else folder / name
    if of == "source":
        target.unlink() if target.is_file() else shutil.rmtree(target, ignore_errors=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
    victim = place.outside if name in (".", "previous-1") else place.outside / "precious"
    target.symlink_to(victim)
    if of == "source" and name == ".":  # what is found through the link is a whole record
        target.unlink()
        target.symlink_to(records.cell_folder(place.toy.results, place.bystander))
    merged = merge([source], into)
    assert len(merged.refused) == 1, merged
    assert merged.copied == []


def pipe(place: Place, make: Callable[[Path], object]) -> None:
    """Put a pipe or a device in the place of a record."""
    source = place.folder / "source"
    shutil.copytree(place.toy.results, source)
    path = records.cell_folder(source, place.bystander) / records.RECORD
    path.unlink()
    make(path)
    assert len(merge([source], place.folder / "into").refused) == 1


def trapped_checkpoint(place: Place) -> None:
    """Leave a checkpoint with the right checksum that runs code when it is unpickled."""
    payload = pickle.dumps({"key": place.cell.key, "x": Trap(place.executed)})
    digest = hashlib.sha256(payload).hexdigest().encode()
    place.cell_folder.mkdir(parents=True)
    path = place.cell_folder / "checkpoint-00000003.pt"
    path.write_bytes(checkpoint.MAGIC + digest + b"\n" + payload)
    place.check_finished()


def trapped_weights(place: Place, suffix: str) -> None:
    """Give the backbone weights that run code when they are unpickled."""
    path = work(place) / f"weights.{suffix}"
    path.write_bytes(pickle.dumps({"x": Trap(place.executed)}))
    given = ("--methods", "simgcd", "--set", f"backbone.weights={path}")
    assert place.call(lambda: exit_with(1, place.toy.command("run", *given)[3:])) == 0


def trapped_predictions(place: Place) -> None:
    """Put predictions next to a record that run code when they are unpickled."""
    place.check_finished()
    path = place.cell_folder / records.PREDICTIONS
    buffer = io.BytesIO()
    np.savez(buffer, ink=np.array([Trap(place.executed)], dtype=object))
    path.write_bytes(buffer.getvalue())
    record = json.loads((place.cell_folder / records.RECORD).read_text())
    record["predictions_sha256"] = hashlib.sha256(buffer.getvalue()).hexdigest()
    content = {key: value for key, value in record.items() if key != "sha256"}
    text = json.dumps(content, sort_keys=True)
    record["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (place.cell_folder / records.RECORD).write_text(json.dumps(record))
    command = place.toy.command("report", "--methods", "simgcd", "gcd")[3:]
    place.call(lambda: main(command))  # whatever it says, nothing may be executed


def trapped_features(place: Place, name: str) -> None:
    """Offer features that run code when they are unpickled."""
    arrays = {"features": np.eye(3), "labels": np.arange(3), "labelled": np.eye(3)[0] > 0}
    arrays[name] = np.array([Trap(place.executed)] * 3, dtype=object)
    np.savez(work(place) / "f.npz", **arrays)
    with pytest.raises(UserError):
        read_features(work(place) / "f.npz", needed=("features", "labels", "labelled"))


def trapped_yaml(place: Place, text: str) -> None:
    """Offer a suite and a setting with a tag of Python."""
    tag = text.format(path=place.executed)
    (work(place) / "suite.yaml").write_text(f"datasets: {tag}\n")
    with pytest.raises(UserError):
        Suite.load(str(work(place) / "suite.yaml"))
    with pytest.raises(UserError):
        parse_assignments([f"train.lr={tag}"])


def archive(place: Place, make: Callable[[Path, Place], None]) -> None:
    """Unpack an archive that wants to write outside of its folder."""
    path, folder = work(place) / "a.bin", work(place) / "data" / "inner"
    make(path, place)
    with contextlib.suppress(UserError):
        download.unpack(path, folder)
    found = {p for p in work(place).rglob("*") if p.is_file() or p.is_symlink()}
    assert all(p == path or folder in p.parents for p in found), found
    assert not any(p.is_symlink() and place.outside in p.resolve().parents for p in found)


def slipping_zip(path: Path, place: Place, *, name: str) -> None:
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr(name.format(outside=place.outside), "owned")


def slipping_tar(path: Path, place: Place, *, name: str, kind: bytes, link: str) -> None:
    member = tarfile.TarInfo(name.format(outside=place.outside))
    member.type, member.linkname = kind, link.format(outside=place.outside)
    data = b"owned" if kind == tarfile.REGTYPE else b""
    member.size = len(data)
    with tarfile.open(path, "w") as packed:
        packed.addfile(member, io.BytesIO(data))
        if link:  # write through the link
            through = tarfile.TarInfo(f"{member.name}/precious")
            through.size = 5
            packed.addfile(through, io.BytesIO(b"owned"))


def address(place: Place, text: str) -> None:
    with pytest.raises(UserError):
        download.fetch(text, work(place) / "downloads")
    assert not list(work(place).rglob("*.part"))


def shown_as_text(place: Place, function: Callable[[str], str], text: str, wrong: str) -> None:
    assert wrong not in function(text)


def is_quoted(place: Place, text: str) -> None:
    assert no_formula(text) == f"'{text}"


def described(place: Place) -> None:
    """Rank a suite whose description is HTML; neither the page nor Markdown may hold it."""
    place.check_finished()
    data = yaml.safe_load(place.toy.suite.read_text())
    data["description"] = "<script>alert(1)</script>"
    path = work(place) / "toy.yaml"
    path.write_text(yaml.safe_dump(data))
    toy = Toy(path, place.toy.results)
    out = work(place) / "out"
    for verb in ("leaderboard", "report"):
        command = toy.command(verb, "--methods", "simgcd", "--out", str(out))[3:]
        assert place.call(functools.partial(exit_with, 0, command)) == 0
    for suffix in ("md", "html"):
        assert "<script>alert" not in (out / f"toy.{suffix}").read_text()


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


NAMES = (
    *(
        "../../x",
        "../x",
        "..",
        "/tmp/x",
        "a/b",
        "C:\\x",
        "a\\..\\b",
        "x\0y",
        "x\ny",
        ".hidden",
        "nul",
    ),
    *("COM1.txt", "leaderboard", "cache", "x" * 500, "<b>", "x ", "\u2028", "con"),
)
LINKS = {
    "source": ("record.json", "predictions.npz", "log.jsonl", "."),
    "target": ("lock", "record.json", "predictions.npz", "previous-1", "."),
}
TAGS = (
    "!!python/object/apply:pathlib.Path.touch [{path}]",
    "!!python/object/new:os.system ['touch {path}']",
    "!!python/name:os.system",
)
TARS = (
    ("../../x", tarfile.REGTYPE, ""),
    ("{outside}/precious", tarfile.REGTYPE, ""),
    ("link", tarfile.SYMTYPE, "{outside}"),
    ("link", tarfile.LNKTYPE, "{outside}/precious"),
    ("node", tarfile.CHRTYPE, ""),
    ("pipe", tarfile.FIFOTYPE, ""),
)
ADDRESSES = (
    *("https://h/..", "https://h/%2e%2e", "https://h/a%00.zip", "https://h/a%0a.zip"),
    *(f"https://h/{'x' * 400}", "https://h/..%5cx", "javascript:x", "https://h/.bashrc"),
)
TEXTS = (
    (as_text, "<img src=x onerror=alert(1)>", "<img"),
    (as_text, "a\n\n# heading", "\n"),
    (escape, "x\n\n\\input{/etc/passwd}", "\\input"),
    (escape, "a\nb", "\n"),
)


def cases() -> Iterator[Case]:
    """Yield all attacks."""
    bind = functools.partial
    for name in NAMES:
        yield attack("name", repr(name[:40]), bind(suite_name, name=name))
    for of, names in LINKS.items():
        for name in names:
            yield attack("link", f"{name} in the {of}", bind(linked, name=name, of=of))
    yield attack("pipe", "record.json is a pipe", bind(pipe, make=os.mkfifo))
    yield attack("pipe", "record.json is a device", bind(pipe, make=device))
    yield attack("pickle", "a checkpoint", trapped_checkpoint)
    for suffix in ("pt", "pth", "safetensors"):
        yield attack("pickle", f"weights.{suffix}", bind(trapped_weights, suffix=suffix))
    yield attack("pickle", "predictions with a right checksum", trapped_predictions)
    for name in ("features", "labels", "labelled"):
        yield attack("pickle", name, bind(trapped_features, name=name))
    for text in TAGS:
        yield attack("yaml", text, bind(trapped_yaml, text=text))
    for name in ("../../x", "{outside}/precious", "..\\..\\x"):
        yield attack("archive", f"zip: {name}", bind(archive, make=bind(slipping_zip, name=name)))
    for name, kind, link in TARS:
        make = bind(slipping_tar, name=name, kind=kind, link=link)
        yield attack("archive", f"tar: {name} {link}", bind(archive, make=make))
    for text in ADDRESSES:
        yield attack("address", text[:40], bind(address, text=text))
    for function, text, wrong in TEXTS:
        inject = bind(shown_as_text, function=function, text=text, wrong=wrong)
        yield attack("text", f"{function.__name__}: {text}", inject)
    for text in ("=cmd|'/c calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1"):
        yield attack("text", f"a formula: {text}", bind(is_quoted, text=text))
    yield attack("text", "a description that is a script", described)
