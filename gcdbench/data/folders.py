"""What in a folder is data: hidden and system entries are never domains, classes or images."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gcdbench.errors import UserError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
# pictures that no reader opens: released codes pass over them as well
OTHER_PICTURES = (
    *(".gif", ".heic", ".heif", ".avif", ".jp2", ".jfif", ".svg", ".psd", ".ico", ".raw"),
    *(".cr2", ".nef", ".dng", ".tga", ".exr", ".hdr", ".npy"),
)
SYSTEM = frozenset(
    {
        *("__MACOSX", "__pycache__", "@eaDir", "#recycle", "$RECYCLE.BIN", "lost+found"),
        *("System Volume Information", "Thumbs.db", "ehthumbs.db", "desktop.ini", "Desktop.ini"),
    }
)


def is_system(name: str) -> bool:
    """Tell whether a file or folder belongs to the system and not to the data.

    >>> [is_system(name) for name in (".thumbs", "._cat.jpg", "__MACOSX", "cat.jpg")]
    [True, True, True, False]
    """
    return name.startswith(".") or name in SYSTEM


def image_files(folder: Path) -> list[str]:
    """List the images below a folder by their relative paths, in the order of an ImageFolder."""
    found = []
    for place, _, names in sorted(_walk(folder)):
        prefix = _prefix(place, folder)
        found += [prefix + name for name in sorted(names) if _is_image(name)]
    return _checked(found, folder)


def class_images(folder: Path) -> list[str]:
    """List the images in the folders of a folder, one class after the other, as an ImageFolder."""
    return [f"{name}/{path}" for name in subfolders(folder) for path in image_files(folder / name)]


def stray_images(folder: Path) -> list[str]:
    """List the images of a folder that are in none of its folders, and so in no class."""
    return sorted(p.name for p in folder.iterdir() if _is_image(p.name) and p.is_file())


def empty_folders(folder: Path) -> list[str]:
    """List the folders of a folder that hold no image: no class can be read from them."""
    return [name for name in subfolders(folder) if not image_files(folder / name)]


def subfolders(folder: Path) -> list[str]:
    """List the names of the folders in a folder."""
    names = sorted(p.name for p in folder.iterdir() if p.is_dir() and not is_system(p.name))
    return _checked(names, folder)


def _checked(names: list[str], folder: Path) -> list[str]:
    """Return the names; raise a UserError if one has bytes that no record could hold."""
    try:
        "".join(names).encode()
    except UnicodeEncodeError as error:
        name = next(name for name in names if not name.isascii() and _is_odd(name))
        raise UserError(
            f"{folder}: the name {os.fsencode(name)!r} is not UTF-8; rename it"
        ) from error
    return names


def _is_odd(name: str) -> bool:
    return any("\udc80" <= character <= "\udcff" for character in name)


def passed_over(folder: Path) -> list[str]:
    """List what is no data below a folder: system entries, and pictures that no reader opens."""
    found = []
    for place, folders, names in _walk(folder):
        prefix = _prefix(place, folder)
        found += [f"{prefix}{name}/" for name in folders if is_system(name)]
        found += [prefix + name for name in names if is_system(name) or _is_other_picture(name)]
    return sorted(found)


def _walk(folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder that is data, with the names in it; links are followed, but not in loops.

    A link that leads back to a folder above it is passed over.
    """
    above: dict[str, tuple[str, ...]] = {str(folder): (os.path.realpath(folder),)}
    for place, folders, names in os.walk(folder, followlinks=True):
        yield place, list(folders), names
        chain = above.pop(place)
        kept = []
        for name in folders:
            path = Path(place, name)
            real = os.path.realpath(path) if path.is_symlink() else f"{chain[-1]}{os.sep}{name}"
            is_loop = real in chain or f"{chain[0]}{os.sep}".startswith(f"{real}{os.sep}")
            if not is_system(name) and not is_loop:
                kept.append(name)
                above[str(path)] = (*chain, real)
        folders[:] = kept


def _prefix(place: str, folder: Path) -> str:
    inside = os.path.relpath(place, folder)
    return "" if inside == "." else f"{Path(inside).as_posix()}/"


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS) and not is_system(name)


def _is_other_picture(name: str) -> bool:
    return name.lower().endswith(OTHER_PICTURES)
