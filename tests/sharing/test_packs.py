"""Packs of records: what goes in comes out, forged ones are found, hostile ones are refused."""

from __future__ import annotations

import json
import stat
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from gcdbench.cli.main import main
from gcdbench.errors import UserError
from gcdbench.experiment import records
from gcdbench.sharing import packs


@pytest.fixture
def pack(toy, tmp_path):
    """Return a pack of the toy's record."""
    out = tmp_path / "pack.zip"
    packs.pack(toy.results, out)
    return out


def content(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def rewrite(path, files):
    """Write a zip file as a program other than ours might."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def verify(path, capsys):
    code = main(["results", "verify", str(path)])
    return code, capsys.readouterr()


def test_a_pack_holds_records_predictions_environment_and_the_codes_hash(toy, cell, pack):
    files = content(pack)
    place = records.cell_folder(toy.results, cell).relative_to(toy.results).as_posix()
    names = [f"records/{place}/{name}" for name in (records.RECORD, records.PREDICTIONS)]
    assert set(files) == {*names, packs.MANIFEST}
    for name in names:
        assert files[name] == (toy.results / name.removeprefix("records/")).read_bytes()
    manifest = json.loads(files[packs.MANIFEST])
    assert manifest["cells"][0]["code"] == cell.fingerprints()["code"]
    assert manifest["plugins"]["method simgcd"]["file"] == "simgcd.py"
    assert "torch" in manifest["environment"]["versions"]


def test_the_same_records_give_the_same_pack(toy, pack, tmp_path):
    packs.pack(toy.results, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == pack.read_bytes()


def test_an_honest_pack_is_verified_and_can_be_merged(toy, cell, pack, tmp_path, capsys):
    code, said = verify(pack, capsys)
    assert code == 0
    assert "1 valid record (1 recomputed, 0 only internally consistent), 0 invalid" in said.out
    assert "'method simgcd': the same file as here" in said.err
    assert main(["results", "merge", str(pack), "--into", str(tmp_path / "merged")]) == 0
    assert records.is_done(tmp_path / "merged", cell)


def test_the_command_packs_what_was_asked_for(toy, tmp_path, capsys):
    out = tmp_path / "some.zip"
    words = ["results", "pack", str(toy.results), "--out", str(out)]
    assert main([*words, "--methods", "gcd"]) == 2
    assert "has no valid record of what was asked for" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main([*words, "--methods", "simgcd", "--datasets", "toy"]) == 0
    assert capsys.readouterr().out == f"{out}: 1 record\n"


def forged(toy, cell, tmp_path, **changes):
    """Return a pack whose record was changed, with checksums computed again."""
    results = tmp_path / "forged"
    folder = records.cell_folder(results, cell)
    source = records.cell_folder(toy.results, cell)
    record = records.read_record(source / records.RECORD)
    records.put(
        folder,
        records.as_bytes(replace(record, **changes)),
        (source / records.PREDICTIONS).read_bytes(),
    )
    packs.pack(results, tmp_path / "forged.zip")
    return tmp_path / "forged.zip"


def test_forged_scores_with_right_checksums_are_found(toy, cell, tmp_path, capsys):
    record = records.read_record(records.cell_folder(toy.results, cell) / records.RECORD)
    best = {n: replace(s, all=1.0, old=1.0, new=1.0) for n, s in record.sets.items()}
    code, said = verify(forged(toy, cell, tmp_path, sets=best), capsys)
    assert code == 1
    assert "has scores that its predictions do not give" in said.err
    assert "0 valid records" in said.out
    assert str(tmp_path / "forged.zip") in said.err  # and not a folder that is gone


def test_predictions_that_were_exchanged_after_packing_are_found(pack, capsys):
    files = content(pack)
    name = next(n for n in files if n.endswith(records.PREDICTIONS))
    files[name] = files[name.replace(records.PREDICTIONS, records.RECORD)]
    rewrite(pack, files)
    code, said = verify(pack, capsys)
    assert code == 1
    assert "is not the file that was packed" in said.err
    assert main(["results", "merge", str(pack), "--into", str(pack.parent / "merged")]) == 2
    assert not (pack.parent / "merged").exists()


def test_a_list_that_names_other_cells_than_there_are_is_found(pack, capsys):
    files = content(pack)
    manifest = json.loads(files[packs.MANIFEST])
    manifest["cells"][0]["place"] = "toy/simgcd/seed1-0123456789abcdef"
    rewrite(pack, {**files, packs.MANIFEST: json.dumps(manifest)})
    code, said = verify(pack, capsys)
    assert code == 1
    assert "is listed and not there" in said.err
    assert "is there and not listed" in said.err


PLACE = "records/toy/simgcd/seed0-0123456789abcdef"


@pytest.mark.parametrize(
    "name",
    [
        "../outside.txt",
        "/tmp/outside.txt",
        "records/../../outside/record.json",
        "records/../x/seed0-0123456789abcdef/record.json",
        "records/toy/../seed0-0123456789abcdef/record.json",
        "records/cache/simgcd/seed0-0123456789abcdef/record.json",
        "records\\toy\\simgcd\\seed0-0123456789abcdef\\record.json",
        f"{PLACE}/weights.safetensors",
        f"{PLACE}/record.json/predictions.npz",
        "records/a\nb/simgcd/seed0-0123456789abcdef/record.json",
        "surprise.py",
    ],
)
def test_a_name_that_is_not_that_of_a_cells_file_is_refused(pack, name, capsys, tmp_path):
    rewrite(pack, {**content(pack), name: b"x"})
    before = sorted(tmp_path.rglob("*"))
    code, said = verify(pack, capsys)
    assert code == 2
    assert "is no pack of gcdbench" in said.err
    assert len(said.err.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFDIR, stat.S_IFBLK])
def test_links_and_devices_are_refused(pack, kind, tmp_path):
    info = zipfile.ZipInfo(f"{PLACE}/record.json")
    info.external_attr = (kind | 0o777) << 16
    with zipfile.ZipFile(pack, "a") as archive:
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(UserError, match="is not an ordinary file"):
        packs.unpack(pack, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_files_of_one_name_are_refused(pack, tmp_path):
    name = next(iter(content(pack)))
    with zipfile.ZipFile(pack, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(name, "x")
    with pytest.raises(UserError, match="two files of one name"):
        packs.unpack(pack, tmp_path / "out")


def test_a_file_that_grows_when_it_is_unpacked_is_refused_before_that(pack, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MOST_BYTES", 1 << 20)
    rewrite(pack, {**content(pack), f"{PLACE}/record.json": bytes(2 << 20)})
    assert pack.stat().st_size < 1 << 16
    with pytest.raises(UserError, match="is larger than 1 MB"):
        packs.unpack(pack, tmp_path / "out")
    monkeypatch.setattr(packs, "MOST_TOTAL", 1 << 20)
    with pytest.raises(UserError, match="it has more than"):
        packs.unpack(pack, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_member_that_is_larger_than_it_says_is_not_written_whole(pack, tmp_path):
    """The size in the list is changed; what is unpacked ends there and misses its checksum."""
    files = content(pack)
    rewrite(pack, {**files, f"{PLACE}/record.json": bytes(1 << 20)})
    data = bytearray(pack.read_bytes())
    size = (1 << 20).to_bytes(4, "little")
    while (at := data.find(size)) >= 0:
        data[at : at + 4] = (16).to_bytes(4, "little")
    pack.write_bytes(bytes(data))
    with pytest.raises(UserError, match="cannot be read as a pack"):
        packs.unpack(pack, tmp_path / "out")
    assert not (tmp_path / "out" / PLACE / "record.json").exists()


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (b"[]", "cannot be read"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"format": 2, "cells": [], "plugins": {}}', "this gcdbench reads 1"),
        (b'{"format": 1, "cells": {"a": 1}, "plugins": {}}', "cannot be read"),
        (b'{"format": 1, "cells": [], "plugins": []}', "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_list_of_anything_else_is_one_sentence(pack, manifest, reason, capsys):
    rewrite(pack, {**content(pack), packs.MANIFEST: manifest})
    code, said = verify(pack, capsys)
    assert code == 2
    assert reason in said.err
    assert len(said.err.splitlines()) == 1


def test_random_bytes_are_no_pack(pack, capsys):
    rng = np.random.RandomState(0)
    whole = pack.read_bytes()
    for damaged in (b"", b"PK\x05\x06" + bytes(18), whole[: len(whole) // 2], rng.bytes(4000)):
        pack.write_bytes(damaged)
        code, said = verify(pack, capsys)
        assert code == 2
        assert len(said.err.splitlines()) == 1
    for _ in range(30):  # some byte is another one
        data = bytearray(whole)
        data[rng.randint(len(data))] ^= 1 << rng.randint(8)
        pack.write_bytes(bytes(data))
        code, said = verify(pack, capsys)
        assert code in (0, 1, 2)
        assert "Traceback" not in said.err
