"""Reads a user's own features from an ``.npz`` file and says what is wrong with it.

Nothing in such a file is trusted: it is never unpickled, and every array is checked before it is
computed with.
"""

from __future__ import annotations

import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gcdbench.errors import UserError

KNOWN = ("features", "labels", "labelled", "domains", "predictions")
NEEDS = (
    "it needs features (n, d), labels (n,) and labelled (n,), and may have domains (n,) and "
    "predictions (n,)"
)


@dataclass(frozen=True)
class FeatureFile:
    """The arrays of a file, checked."""

    features: np.ndarray  # (n, d), finite
    labels: np.ndarray  # (n,) whole numbers or words
    labelled: np.ndarray | None = None  # (n,) booleans
    domains: np.ndarray | None = None  # (n,) whole numbers or words
    predictions: np.ndarray | None = None  # (n,) whole numbers


def read(path: Path, *, needed: tuple[str, ...]) -> FeatureFile:
    """Read and check a file that must hold some arrays."""
    arrays = _load(path)
    if missing := [name for name in sorted(needed) if name not in arrays]:
        raise UserError(f"{path}: the array {missing[0]!r} is missing; {NEEDS}")
    try:
        features = _features(arrays["features"])
        rows = {name: _row(name, arrays[name], features) for name in KNOWN[1:] if name in arrays}
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error
    return FeatureFile(features, **rows)


def _load(path: Path) -> dict[str, np.ndarray]:
    if not _is_file(path):
        raise UserError(f"{path}: no such file, or no ordinary one; --features takes an .npz file")
    if not zipfile.is_zipfile(path):
        raise UserError(f"{path}: is not an .npz file; write one with numpy.savez")
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > (memory := _free_memory()):
            raise ValueError(f"it holds {size / 1e9:.0f} GB, and {memory / 1e9:.0f} GB are free")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in KNOWN if name in file.files}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):  # numpy hands on what is no array of its own
                raise ValueError(f"{name} is no array")
        return arrays
    except Exception as error:  # a damaged archive makes its reader fail in many ways
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if "allow_pickle" in reason:
            reason = "it holds Python objects, which are not read; store numbers or words"
        raise UserError(f"{path}: cannot be read as an .npz file ({reason})") from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long
        return False


def _free_memory() -> float:
    """Return the bytes of memory that are free, where the system tells."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(1024.0 * int(x.split()[1]) for x in lines if x.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        pages = getattr(os, "sysconf", lambda name: -1)("SC_PHYS_PAGES")
        return pages * 4096.0 if pages > 0 else float("inf")


def _features(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "fiub":
        raise ValueError(f"features must be numbers, not {array.dtype}")
    if array.ndim != 2 or not array.size:
        raise ValueError(f"features must be (n, d), one row per image, not {array.shape}")
    with np.errstate(over="ignore"):  # what overflows is not finite, which is said below
        if array.dtype.kind != "f" or array.dtype.itemsize > 8:
            array = array.astype(np.float64)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        # k-means computes in float32
        finite = np.isfinite(array.astype(np.float32)).all(axis=1)
    if not finite.all():
        raise ValueError(f"features: row {int(np.argmin(finite))} has NaN or infinite values")
    return array


def _row(name: str, array: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Check one of the arrays that have an entry per image."""
    if array.ndim != 1:
        raise ValueError(f"{name} must be one row of {len(features)} entries, not {array.shape}")
    if len(array) != len(features) and not _looks_like_indices(name, array, features):
        raise ValueError(f"{name} has {len(array)} entries, features has {len(features)} rows")
    if name == "labelled":
        return _flags(array)
    if array.dtype.kind in "US" and name != "predictions":
        return array
    return _whole(name, array)


def _looks_like_indices(name: str, array: np.ndarray, features: np.ndarray) -> bool:
    return name == "labelled" and array.dtype.kind in "iu" and len(array) < len(features)


def _flags(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind == "b":
        return array
    if array.dtype.kind in "iuf" and np.isin(array, (0, 1)).all():
        return array.astype(bool)
    found = f"holds {array.flat[0]!s}" if array.size else "is empty"
    for value in array.tolist():
        if value not in (0, 1):
            found = f"holds {value!r}"
            break
    raise ValueError(
        f"labelled must be True or False for each image, but {found}; of indices, make flags with "
        "np.isin(np.arange(n), indices)"
    )


def _whole(name: str, array: np.ndarray) -> np.ndarray:
    words = "whole numbers" if name == "predictions" else "whole numbers or words"
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{name} must be {words}, not {array.dtype}")
    if array.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            whole = np.isfinite(array) & (array == np.floor(array)) & (abs(array) < 2**62)
        if not whole.all():
            row = int(np.argmin(whole))
            raise ValueError(f"{name} must be {words}, but row {row} is {array[row]}")
    if array.size and array.dtype.kind == "u" and int(array.max()) > 2**62:
        raise ValueError(f"{name} must be {words} below 2**62, but one is {int(array.max())}")
    return array.astype(np.int64)
