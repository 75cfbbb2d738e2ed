"""Wrong feature files of evaluate and estimate-k: one sentence, exit code 2, nothing executed."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gcdbench.cli.main import main

pytestmark = pytest.mark.faults
N = 12


class Trap:
    """An object that leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def good() -> dict[str, Any]:
    """Return arrays that are right."""
    rng = np.random.RandomState(0)
    labels = np.arange(N) % 3
    return {
        "features": rng.randn(N, 4),
        "labels": labels,
        "labelled": (labels < 2) & (np.arange(N) < 6),
        "domains": np.where(np.arange(N) % 2, "a", "b"),
        "predictions": labels.copy(),
    }


def npy(header: bytes, body: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """Return a file of numpy with any header."""
    size = (
        struct.pack("<H", len(header)) if version == b"\x01\x00" else struct.pack("<I", len(header))
    )
    return b"\x93NUMPY" + version + size + header + body


def zipped(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return buffer.getvalue()


def saved(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def with_features(data: bytes) -> bytes:
    """Return an archive whose features are these bytes."""
    rest = {name: array for name, array in good().items() if name != "features"}
    members = {"features": data}
    for name, array in rest.items():
        buffer = io.BytesIO()
        np.save(buffer, array)
        members[name] = buffer.getvalue()
    return zipped(**members)


def flipped(data: bytes, position: float) -> bytes:
    place = int(len(data) * position)
    return data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]


def huge(shape: str, order: str = "False") -> bytes:
    text = f"{{'descr': '<f8', 'fortran_order': {order}, 'shape': {shape}, }}"
    return with_features(npy(text.encode() + b"\n", b"\0" * 64))


HEADER = b"{'descr': '%s', 'fortran_order': False, 'shape': (1,), }\n"
WHOLE = saved(**good())
FILES: dict[str, bytes] = {
    "empty": b"",
    "junk": b"\x00\x01junk" * 100,
    "text": b"features, labels\n1, 2\n",
    "a pickle": pickle.dumps(good()),
    "a single array": npy(HEADER % b"<f8", b"\0" * 8),
    "an empty archive": zipped(),
    "an archive of something else": zipped(readme=b"hello"),
    "only the magic of a zip": b"PK\x03\x04",
    "only the end of a zip": b"PK\x05\x06" + b"\0" * 18,
    "an array of no bytes": with_features(b""),
    "an array of junk": with_features(b"junk" * 50),
    "an unknown version": with_features(npy(b"{}", version=b"\x09\x00")),
    "an empty header": with_features(npy(b"")),
    "a header that is code": with_features(npy(b"__import__('os').system('touch executed')\n")),
    "a header that is no dictionary": with_features(npy(b"[1, 2]\n")),
    "a header without a shape": with_features(npy(b"{'descr': '<f8', 'fortran_order': False}\n")),
    "a deep header": with_features(npy(b"(" * 9000)),
    "a header of 60,000 bytes": with_features(npy(b" " * 60_000)),
    "a header of 3 MB": with_features(npy(b" " * 3_000_000, version=b"\x02\x00")),
    "a shape of petabytes": huge("(1000000000000, 768)"),
    "a shape of many digits": huge("(" + "9" * 400 + ", 2)"),
    "a negative shape": huge("(-12, 4)"),
    "a shape of words": huge("('a', 'b')"),
    "a shape that is a number": huge("5"),
    "a shape of fractions": huge("(1.5, 2)"),
    "an order that is no order": huge("(12, 4)", "'yes'"),
    "fewer bytes than its shape": huge("(12, 4)"),
    "an unknown type": with_features(npy(HEADER % b"zz")),
    **{
        f"cut at {share} %": WHOLE[: len(WHOLE) * share // 100]
        for share in (10, 30, 50, 70, 90, 99)
    },
    **{f"a bit flipped at {share:.0%}": flipped(WHOLE, share) for share in (0.02, 0.1)},
}

WRONG: dict[str, Callable[[np.ndarray], Any]] = {
    "a number": lambda array: np.array(1.0),
    "empty": lambda array: array[:0],
    "one too few": lambda array: array[:-1],
    "one too many": lambda array: np.concatenate([array, array[:1]]),
    "three dimensions": lambda array: np.zeros((N, 2, 2)),
    "complex": lambda array: np.full(array.shape, 1j),
    "dates": lambda array: np.full(array.shape, "2020-01-01", dtype="M8[D]"),
    "NaN": lambda array: np.full(array.shape, np.nan),
    "infinite": lambda array: np.full(array.shape, np.inf),
    "one NaN": lambda array: _one(array.shape, np.nan),
    "a NaN of a long double": lambda array: _one(array.shape, np.nan).astype(np.longdouble),
    "records": lambda array: np.zeros(array.shape, dtype=[("x", "f8")]),
    "bytes without a type": lambda array: np.zeros(array.shape, dtype="V8"),
}
EVERY = ("features", "labels", "labelled", "domains", "predictions")
ALSO = {
    ("features", "words"): np.full((N, 4), "a"),
    ("features", "one dimension"): np.zeros(N),
    ("features", "no columns"): np.zeros((N, 0)),
    ("features", "too large for float32"): np.full((N, 4), 1e300),
    ("features", "too large for a double"): np.full((N, 4), np.longdouble("1e4000")),
    ("labels", "fractions"): np.arange(N) / 2,
    ("labels", "two columns"): np.zeros((N, 2)),
    ("labelled", "indices"): np.array([0, 1, 5]),
    ("labelled", "as many indices as images"): np.arange(N),
    ("labelled", "words"): np.where(np.arange(N) < 6, "True", "False"),
    ("labelled", "fractions"): np.full(N, 0.5),
    ("labelled", "minus one"): np.full(N, -1),
    ("labelled", "all of them"): np.ones(N, bool),
    ("predictions", "fractions"): np.arange(N) / 2,
    ("predictions", "words"): np.full(N, "a"),
    ("predictions", "negative"): np.full(N, -1),
    ("predictions", "huge"): np.full(N, 2**61),
    ("predictions", "unsigned and huge"): np.full(N, 2**64 - 1, dtype=np.uint64),
}


def _one(shape: tuple[int, ...], value: float) -> np.ndarray:
    array = np.zeros(shape)
    array.flat[5] = value
    return array


def refused(path: Path, capsys, verb: str) -> str:
    """Ask for the scores of a file that is refused and return the sentence."""
    more = ["--out", str(path.parent / "k")] if verb == "estimate-k" else []
    assert main([verb, "--features", str(path), *more]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"gcdbench: {path}: ")
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    assert len(said.err) < 600
    return said.err


@pytest.mark.parametrize("verb", ["evaluate", "estimate-k"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_archive_of_arrays(tmp_path, monkeypatch, capsys, name, verb):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "f.npz"
    path.write_bytes(FILES[name])
    refused(path, capsys, verb)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f.npz"]


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("array", EVERY)
def test_an_array_that_is_wrong(tmp_path, capsys, array, name):
    arrays = good()
    arrays[array] = WRONG[name](arrays[array])
    np.savez(tmp_path / "f.npz", **arrays)
    assert array in refused(tmp_path / "f.npz", capsys, "evaluate")


@pytest.mark.parametrize(("array", "name"), ALSO, ids=str)
def test_an_array_that_is_wrong_in_its_own_way(tmp_path, capsys, array, name):
    np.savez(tmp_path / "f.npz", **{**good(), array: ALSO[array, name]})
    said = refused(tmp_path / "f.npz", capsys, "evaluate")
    assert array.replace("predictions", "pred") in said


@pytest.mark.parametrize("array", EVERY)
def test_objects_are_refused_and_not_unpickled(tmp_path, capsys, array):
    trap = np.empty(N, dtype=object)
    trap[:] = [Trap(tmp_path / "executed")] * N
    np.savez(tmp_path / "f.npz", **{**good(), array: trap})
    assert "Python objects" in refused(tmp_path / "f.npz", capsys, "evaluate")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("array", ["features", "labels", "labelled"])
def test_an_array_that_is_missing(tmp_path, capsys, array):
    arrays = good()
    del arrays[array]
    np.savez(tmp_path / "f.npz", **arrays)
    assert f"the array {array!r} is missing" in refused(tmp_path / "f.npz", capsys, "evaluate")


@pytest.mark.parametrize("verb", ["evaluate", "estimate-k"])
def test_a_place_that_is_no_file(tmp_path, capsys, verb):
    (tmp_path / "folder.npz").mkdir()
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "loop.npz").symlink_to(tmp_path / "loop.npz")
    for name in ("folder.npz", "pipe.npz", "loop.npz", "gone.npz", "x" * 300):
        refused(tmp_path / name, capsys, verb)


def test_an_archive_larger_than_the_memory_is_refused_before_it_is_read(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("gcdbench.data.feature_file._free_memory", lambda: 100.0)
    np.savez(tmp_path / "f.npz", **good())
    assert "0 GB are free" in refused(tmp_path / "f.npz", capsys, "evaluate")


def test_other_types_of_right_arrays_give_the_same_scores(tmp_path, capsys):
    def scores(**change: Any) -> str:
        np.savez(tmp_path / "f.npz", **{**good(), **change})
        assert main(["evaluate", "--features", str(tmp_path / "f.npz"), "--json"]) == 0
        return capsys.readouterr().out

    expected = scores()
    arrays = good()
    assert scores(features=arrays["features"].astype(np.longdouble)) == expected
    assert scores(features=arrays["features"].astype(">f8")) == expected
    assert scores(labels=arrays["labels"].astype(float)) == expected
    assert scores(labels=arrays["labels"].astype(np.uint8)) == expected
    assert scores(labelled=arrays["labelled"].astype(int)) == expected
    assert scores(labelled=arrays["labelled"].astype(float)) == expected
    assert scores(predictions=arrays["predictions"].astype(float)) == expected


def test_the_table_is_large_enough():
    assert 2 * len(FILES) + len(WRONG) * len(EVERY) + len(ALSO) >= 90


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["evaluate", "--classes", "0"], "--classes: expected at least 1"),
        (["evaluate", "--classes", "1"], "below the 2 labelled classes"),
        (["estimate-k", "--max-k", "2"], "--max-k 2: 2 classes are labelled"),
        (["estimate-k", "--out", "/dev/null/x"], "--out /dev/null/x: cannot be written to"),
    ],
)
def test_the_message_blames_the_right_thing(tmp_path, capsys, flags, sentence):
    arrays = good()
    del arrays["predictions"]
    np.savez(tmp_path / "f.npz", **arrays)
    assert main([*flags, "--features", str(tmp_path / "f.npz")]) == 2
    assert sentence in capsys.readouterr().err
