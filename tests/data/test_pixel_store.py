"""The store of resized images: the same pixels, whatever happened to those who wrote it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gcdbench.data import pixel_store
from gcdbench.data.corrupted import CorruptedImages, Recipe
from gcdbench.data.images import ArrayImages, FileImages, JoinedImages, Unreadable
from gcdbench.data.pixel_store import ENTRY, PixelStore, StoredImages, store_name

NUMBER, SIZE = 24, 40
WRITER = """
import sys
from pathlib import Path
import numpy as np
from filelock import FileLock
from gcdbench.data.images import FileImages
folder, store, seed, pause = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
images = FileImages(folder, [f"{i}.jpg" for i in range(24)]).stored(store)
print("ready", flush=True)
for row in np.random.RandomState(seed).permutation(24).tolist():
    images.resized(row, 40)
    print(row, flush=True)
    if pause == "wait" and row == 7:
        lock = FileLock(images._store(40)[0].lock)
        lock.acquire()
        print("locked", flush=True)
        sys.stdin.read()
"""


@pytest.fixture
def files(trees) -> FileImages:
    for i in range(NUMBER):
        trees.image(f"images/{i}.jpg", (48 + i, SIZE))  # resized without torch
    return FileImages(trees.root / "images", [f"{i}.jpg" for i in range(NUMBER)])


@pytest.fixture
def store(tmp_path) -> Path:
    return tmp_path / "store"


def fill(files: FileImages, store: Path) -> Path:
    """Store all images and return the file of their pixels."""
    images = files.stored(store)
    for row in range(NUMBER):
        images.resized(row, SIZE)
    (frames,) = store.rglob("*.frames")
    return frames


def entries(frames: Path) -> np.ndarray:
    return np.fromfile(frames.with_suffix(".index"), ENTRY)


def decoded(monkeypatch) -> list[int]:
    """Return a list to which the rows that are decoded from now on are added."""
    rows: list[int] = []
    plain = FileImages.resized

    def watched(self, row, size):
        rows.append(row)
        return plain(self, row, size)

    monkeypatch.setattr(FileImages, "resized", watched)
    return rows


def check(files: FileImages, store: Path) -> None:
    """Compare everything that a new reader of the store gets with the images themselves."""
    images = files.stored(store)
    for row in range(NUMBER):
        assert np.array_equal(images.resized(row, SIZE), files.resized(row, SIZE))


def test_images_are_decoded_once_for_all_readers(files, store, monkeypatch):
    fill(files, store)
    check(files, store)
    rows = decoded(monkeypatch)
    images = files.stored(store)
    for row in [*range(NUMBER), 3, 3]:
        images.resized(row, SIZE)
    assert rows == []


def test_frames_of_a_long_list_are_found_again(store):
    many = PixelStore(store / "many")
    rng = np.random.RandomState(0)
    keys = [tuple(words) for words in rng.randint(0, 2**62, (2500, 2)).tolist()]
    frames = [rng.randint(0, 256, (2, 1 + i % 3, 3), dtype=np.uint8) for i in range(2500)]
    for key, frame in zip(keys, frames, strict=True):
        many.add(key, frame)
    for reader in (many, PixelStore(store / "many")):
        for key, frame in zip(keys, frames, strict=True):
            assert np.array_equal(reader.at(*reader.find(key)), frame)
        assert reader.find((1, 2)) is None
        assert reader.find((keys[5][0], 2)) is None


def test_a_changed_image_is_noticed(files, store):
    fill(files, store)
    Image.new("RGB", (50, 50), "red").save(files.path(7))
    check(files, store)
    assert files.stored(store).resized(7, SIZE).shape == (SIZE, SIZE, 3)


def test_another_size_or_other_code_has_another_file(files, monkeypatch):
    names = {store_name(files, SIZE), store_name(files, SIZE + 1)}
    monkeypatch.setattr(pixel_store, "code_hash", lambda patterns: "other code")
    names.add(store_name(files, SIZE))
    monkeypatch.setattr(pixel_store, "_versions", lambda: ("0.1", "0.1"))
    names.add(store_name(files, SIZE))
    assert len(names) == 4


def test_code_counts_by_what_it_says(tmp_path, monkeypatch):
    monkeypatch.setattr(pixel_store, "PACKAGE", tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/images.py").write_text("x = 1\n")
    before = pixel_store.code_hash.__wrapped__(("images.py",))
    (tmp_path / "data/images.py").write_text("x = 2\n")
    assert pixel_store.code_hash.__wrapped__(("images.py",)) != before


def test_only_corrupted_images_depend_on_the_code_of_corruptions(files):
    variants = CorruptedImages(files, Recipe(("fog",), (1,), size=32))
    assert "corruptions/*.py" in variants.pixel_code
    assert "corruptions/*.py" not in files.pixel_code


@pytest.mark.parametrize("damage", ["pixels", "place", "zeros"])
def test_what_was_damaged_on_disk_is_made_again(files, store, damage, monkeypatch):
    frames = fill(files, store)
    table = entries(frames)
    if damage == "pixels":
        data = bytearray(frames.read_bytes())
        data[int(table["offset"][5]) + 100] ^= 1
        frames.write_bytes(data)
    else:
        table[5] = np.zeros((), ENTRY) if damage == "zeros" else table[5]
        if damage == "place":
            table["offset"][5] += 3
        table.tofile(frames.with_suffix(".index"))
    rows = decoded(monkeypatch)
    images = files.stored(store)
    for row in range(NUMBER):
        images.resized(row, SIZE)
    assert rows == [5]
    check(files, store)


@pytest.mark.parametrize("kept", [0, 13, 40 * 9 + 17, 40 * NUMBER - 1])
def test_an_index_that_was_cut_off_is_continued(files, store, kept):
    frames = fill(files, store)
    index = frames.with_suffix(".index")
    index.write_bytes(index.read_bytes()[:kept])
    fill(files, store)
    check(files, store)
    assert len(entries(frames)) == NUMBER


def test_pixels_that_were_cut_off_are_made_again(files, store):
    frames = fill(files, store)
    with frames.open("r+b") as file:
        file.truncate(frames.stat().st_size // 2)
    check(files, store)
    fill(files, store)
    check(files, store)


def writer(files: FileImages, store: Path, seed: int, pause: str = "no") -> subprocess.Popen:
    arguments = [str(files.root), str(store), str(seed), pause]
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_killed_writer_leaves_what_it_had_and_blocks_nobody(files, store):
    one = writer(files, store, 0, "wait")
    assert one.stdout is not None
    seen = []
    while not seen or seen[-1] != "locked":
        seen.append(one.stdout.readline().strip())
    # it holds the lock, and is killed after the pixels of a frame and before their entry
    (frames,) = store.rglob("*.frames")
    with frames.open("ab") as file:
        file.write(b"half a frame")
    os.kill(one.pid, signal.SIGKILL)
    one.communicate()
    began = time.monotonic()
    assert len(entries(frames)) == len(seen) - 2  # ready, rows, locked
    fill(files, store)
    check(files, store)
    assert len(entries(frames)) == NUMBER
    assert time.monotonic() - began < 30


def test_several_writers_write_every_frame_once(files, store):
    several = [writer(files, store, seed) for seed in range(3)]
    for one in several:
        one.communicate()
        assert one.returncode == 0
    check(files, store)
    (frames,) = store.rglob("*.frames")
    assert len(entries(frames)) == NUMBER
    assert frames.stat().st_size == sum(files.resized(r, SIZE).size for r in range(NUMBER))


def test_variants_are_corrupted_once(files, store, monkeypatch):
    variants = CorruptedImages(files, Recipe(("fog", "shot_noise"), (1, 4), size=32))
    first = variants.stored(store)
    expected = [variants.resized(row, SIZE) for row in (3, 27, 51, 75)]
    for row, pixels in zip((3, 27, 51, 75), expected, strict=True):
        assert np.array_equal(first.resized(row, SIZE), pixels)
    monkeypatch.setattr(Recipe, "apply", None)
    again = variants.stored(store)
    assert list(again.ids) == list(variants.ids)
    for row, pixels in zip((3, 27, 51, 75), expected, strict=True):
        assert np.array_equal(again.resized(row, SIZE), pixels)


def test_lists_of_a_joined_one_have_their_own_stores(files, store):
    arrays = ArrayImages(np.random.RandomState(0).randint(0, 256, (3, 50, 60, 3), np.uint8), "abc")
    joined = JoinedImages(files, arrays).stored(store)
    for row, other in ((2, files.resized(2, SIZE)), (NUMBER + 1, arrays.resized(1, SIZE))):
        assert np.array_equal(joined.resized(row, SIZE), other)
    assert len(list(store.rglob("*.frames"))) == 2
    assert joined.place(2) == files.place(2)


def test_an_unreadable_image_is_not_stored(files, store):
    files.path(3).write_bytes(b"<html>not found</html>")
    with pytest.raises(Unreadable, match=r"3.jpg: cannot be read"):
        files.stored(store).resized(3, SIZE)
    assert not list(store.rglob("*.index"))


def test_a_folder_that_cannot_be_written_costs_speed_only(files, tmp_path, caplog):
    (tmp_path / "store").write_text("a file, not a folder")
    images = StoredImages(files, tmp_path / "store")
    for row in (1, 2):
        assert np.array_equal(images.resized(row, SIZE), files.resized(row, SIZE))
    assert caplog.text.count("cannot be written") == 1


def test_a_disk_is_not_filled_to_the_brim(files, store, monkeypatch, caplog):
    monkeypatch.setattr(pixel_store, "RESERVE", 10**18)
    assert np.array_equal(files.stored(store).resized(1, SIZE), files.resized(1, SIZE))
    assert "of the disk is free" in caplog.text
    assert not list(store.rglob("*.frames"))
