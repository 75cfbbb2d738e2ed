"""An optional store of resized images on disk: one memory-mapped file for each list of images.

A store is two files that only grow. ``.frames`` holds the pixels of one image after the other, and
``.index`` an entry of 40 bytes for each: key, place, height, width and checksums. Writers take
turns by a lock and write the pixels before the entry, so a process that is killed leaves at most
pixels without an entry, which the next writer overwrites. Readers take no lock: all processes map
the same file, and the operating system keeps its pages in memory once for all of them. A process
checks a frame when it reads it for the first time; a damaged one is made again.

The key of a frame is a hash of the image's id and of its file's size and modification time. The
file's name has a hash of the size of the frames, of the code that makes pixels and of the versions
of Pillow and torch. If any of them changes, old frames are no longer found.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import re
import shutil
import zlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
from filelock import FileLock
from PIL import Image

from gcdbench.core.paths import PACKAGE
from gcdbench.data.images import Images

FORMAT = 1
RESERVE = 10**9  # bytes of the disk that are left free
PATIENCE = 60.0  # seconds to wait for another writer; one takes milliseconds
PIXEL_CODE = (*Images.pixel_code, "corrupted.py", "corruptions/*.py")  # of corrupted images
ENTRY = np.dtype(
    [
        ("key", "<u8", (2,)),
        ("offset", "<u8"),
        ("height", "<u4"),
        ("width", "<u4"),
        ("pixels", "<u4"),  # checksum of the frame
        ("check", "<u4"),  # checksum of the entry
    ]
)
log = logging.getLogger(__name__)

Key = tuple[int, int]


class PixelStore:
    """Frames (h, w, 3) of bytes by their keys, in one file; safe for several processes."""

    def __init__(self, path: Path) -> None:
        self.frames = path.with_name(f"{path.name}.frames")
        self.index = path.with_name(f"{path.name}.index")
        self.lock = path.with_name(f"{path.name}.lock")
        self._entries = _Entries()
        self._map: mmap.mmap | None = None

    def find(self, key: Key) -> tuple[int, int, int] | None:
        """Return offset, height and width of a valid frame, or None."""
        entry = self._entries.find(key)
        if entry is None:
            self._read_index()
            entry = self._entries.find(key)
        if entry is None:
            return None
        place = int(entry["offset"]), int(entry["height"]), int(entry["width"])
        frame = self.at(*place)
        return place if frame is not None and zlib.crc32(frame.data) == entry["pixels"] else None

    def at(self, offset: int, height: int, width: int) -> np.ndarray | None:
        """Return the frame at a place, without a copy; None if the file is shorter."""
        end = offset + 3 * height * width
        if self._map is None or end > len(self._map):
            self._map = _mapped(self.frames)
        if self._map is None or end > len(self._map):
            return None
        flat = np.frombuffer(self._map, np.uint8, 3 * height * width, offset)
        return flat.reshape(height, width, 3)

    def add(self, key: Key, pixels: np.ndarray) -> None:
        """Append a frame, unless another process was faster; raise OSError if it cannot."""
        self.frames.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(self.frames.parent).free < RESERVE:
            raise OSError(f"less than {RESERVE / 1e9:.0f} GB of the disk is free")
        with FileLock(self.lock, timeout=PATIENCE):
            self._read_index()  # where the last frame ends
            if self.find(key) is not None:
                return
            entry = np.zeros((), ENTRY)
            entry["key"], entry["offset"] = key, self._entries.end
            entry["height"], entry["width"] = pixels.shape[:2]
            pixels = np.ascontiguousarray(pixels)
            entry["pixels"] = zlib.crc32(pixels.data)
            entry["check"] = _checks(entry[None])[0]
            _write(self.frames, self._entries.end, pixels.data)
            _write(self.index, self._entries.number * ENTRY.itemsize, entry.tobytes())

    def _read_index(self) -> None:
        """Read the entries that were added since the last time."""
        try:
            with self.index.open("rb") as file:
                file.seek(self._entries.number * ENTRY.itemsize)
                data = file.read()
        except OSError:  # not there yet; what else is wrong, the next writer says
            return
        if number := len(data) // ENTRY.itemsize:
            self._entries.add(np.frombuffer(data, ENTRY, number))


class _Entries:
    """Entries by key: a sorted table, and a dictionary of those that came later."""

    def __init__(self) -> None:
        self.number = 0  # in the file, valid or not
        self.end = 0  # of the last frame, in bytes
        self._table = np.zeros(0, ENTRY)
        self._first = np.zeros(0, "<u8")  # first words of the table's keys
        self._late: dict[Key, np.void] = {}

    def find(self, key: Key) -> np.void | None:
        if key in self._late:
            return self._late[key]
        place = int(np.searchsorted(self._first, np.uint64(key[0]), "right")) - 1
        if place >= 0 and tuple(self._table["key"][place].tolist()) == key:
            return self._table[place]
        return None

    def add(self, entries: np.ndarray) -> None:
        """Add entries in the order of the file; the last one of a key counts."""
        valid = _checks(entries) == entries["check"]
        if len(valid) and not valid[-1]:  # it may still be in the making
            entries, valid = entries[:-1], valid[:-1]
        self.number += len(entries)
        entries = entries[valid]
        if not len(entries):
            return
        sizes = 3 * entries["height"].astype(np.int64) * entries["width"]
        self.end = max(self.end, int((entries["offset"].astype(np.int64) + sizes).max()))
        if len(entries) + len(self._late) < 1000 + len(self._table):
            self._late |= {tuple(entry["key"].tolist()): entry for entry in entries}
            return
        late = [np.array([entry]) for entry in self._late.values()]
        together = np.concatenate([self._table, *late, entries])
        self._table = together[np.argsort(together["key"][:, 0], kind="stable")]
        self._first, self._late = self._table["key"][:, 0].copy(), {}


def _checks(entries: np.ndarray) -> np.ndarray:
    """Return the checksums (n,) of some entries; that of an empty entry is not zero."""
    words = np.ascontiguousarray(entries).view("<u4").reshape(-1, ENTRY.itemsize // 4)[:, :-1]
    factors = 2654435761 * (2 * np.arange(words.shape[1], dtype=np.uint64) + 1)
    mixed = (words * factors[None]) ^ (words.astype(np.uint64) << np.uint64(17))
    return (mixed.sum(1) + np.uint64(FORMAT)).astype("<u4")


def _mapped(path: Path) -> mmap.mmap | None:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError):  # not there, or empty
        return None


def _write(path: Path, offset: int, data: bytes | memoryview) -> None:
    """Write at a place of a file, which may not be there yet."""
    path.touch()
    with path.open("r+b", buffering=0) as file:
        file.seek(offset)
        left = memoryview(data).cast("B")
        while len(left):
            left = left[file.write(left) :]


class StoredImages(Images):
    """The same images, with resized ones read from a store and added to it where they are missing.

    What is known of a row is kept, so that further reads neither ask the file system nor search.
    """

    def __init__(self, images: Images, folder: Path) -> None:
        self.images = images
        self.ids = images.ids
        self.folder = folder.expanduser()
        self._known: dict[int, tuple[PixelStore, np.ndarray]] = {}  # size -> places (n, 3)

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_known": {}}

    @property
    def origin(self) -> str:
        return self.images.origin

    def open(self, row: int) -> Image.Image:
        return self.images.open(row)

    def resized(self, row: int, size: int) -> np.ndarray:
        store, places = self._store(size)
        offset, height, width = places[row].tolist()
        if height:
            frame = store.at(offset, height, width)
            if frame is not None:
                return frame
        key = self._key(row)
        place = store.find(key)
        if place is not None:
            places[row] = place
            return self.resized(row, size)
        pixels = self.images.resized(row, size)
        try:
            store.add(key, pixels)
        except OSError as error:
            _warn_once(self.folder, getattr(error, "strerror", None) or str(error))
        return pixels

    def place(self, row: int) -> str:
        return self.images.place(row)

    def stamp(self, row: int) -> str:
        return self.images.stamp(row)

    def _key(self, row: int) -> Key:
        words = f"{self.ids[row]}\0{self.images.stamp(row)}"
        first, second = np.frombuffer(hashlib.sha256(words.encode()).digest()[:16], "<u8").tolist()
        return first, second

    def _store(self, size: int) -> tuple[PixelStore, np.ndarray]:
        if size not in self._known:
            store = PixelStore(self.folder / "pixels" / store_name(self.images, size))
            self._known[size] = store, np.zeros((len(self.ids), 3), np.int64)
        return self._known[size]


def store_name(images: Images, size: int) -> str:
    """Return the name of the store of a list of images: readable, and a hash of its making."""
    facts = (FORMAT, images.origin, size, code_hash(images.pixel_code), *_versions())
    digest = hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()[:12]
    words = re.sub(r"[^A-Za-z0-9]+", "-", "-".join(Path(images.origin).parts[-2:])).strip("-")
    return f"{words[-60:]}-{size}-{digest}"


@cache
def _versions() -> tuple[str, ...]:
    return version("pillow"), version("torch")


@cache
def _warn_once(folder: Path, reason: str) -> None:
    log.warning("images are not stored, %s cannot be written: %s", folder, reason)


@cache
def code_hash(patterns: tuple[str, ...]) -> str:
    """Return a hash of some modules of this folder, which are named by patterns."""
    folder = PACKAGE / "data"
    files = sorted(path for pattern in patterns for path in folder.glob(pattern))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def pixel_code_hash() -> str:
    """Return a hash of the code that makes the pixels of clean and corrupted images."""
    return code_hash(PIXEL_CODE)
