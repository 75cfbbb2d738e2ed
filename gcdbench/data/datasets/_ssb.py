"""What CUB, Stanford Cars and FGVC-Aircraft share: the splits of SSB and the corruptions of SSB-C.

Unlabelled images of the shifted domain are the official test images under every corruption and
severity: severity outermost, then corruption, then image, as in the released code.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gcdbench.data.class_splits import class_order
from gcdbench.data.corrupted import CorruptedImages, Recipe
from gcdbench.data.corruptions import CORRUPTIONS
from gcdbench.data.datasets._assemble import Labelled, corrupted_problem
from gcdbench.data.images import FileImages, Images, decoding
from gcdbench.data.lists import check_once, missing_files
from gcdbench.data.pixel_store import pixel_code_hash
from gcdbench.data.problem import Dataset, Problem
from gcdbench.data.splits import class_file, positions
from gcdbench.errors import UserError

MANIFEST = "gcdbench.json"  # next to the corruptions' folders: how a tree was made


@dataclass(frozen=True)
class Part:
    """The official training or test part."""

    images: FileImages
    labels: np.ndarray  # 0-based class numbers of the dataset itself
    listed_in: Path  # for messages


@dataclass(frozen=True)
class Listing:
    """A dataset as its own annotations describe it."""

    benchmark: str  # its name in the list of class splits
    tree: str  # its folder in SSB-C
    classes: tuple[str, ...]
    train: Part
    test: Part
    stored: list[str]  # path of each test image below <corruption>/<severity>/ in SSB-C
    note: str = ""  # what a record says about images in another order than the official one

    def __post_init__(self) -> None:
        known = len(self.classes)
        for name, part in (("training", self.train), ("test", self.test)):
            if not len(part.labels):
                raise UserError(f"{part.listed_in}: no {name} images; unpack the dataset again")
            strange = np.flatnonzero((part.labels < 0) | (part.labels >= known))
            if len(strange):
                raise UserError(
                    f"{part.listed_in}: there is a class {part.labels[strange[0]] + 1}, of {known} "
                    f"(of image {part.images.paths[strange[0]]}); unpack the dataset again"
                )
        listed = f"{self.train.listed_in} and {self.test.listed_in}"
        check_once([*self.train.images.ids, *self.test.images.ids], listed)


@dataclass(frozen=True)
class Manifest:
    """How a tree of corrupted images was made, read from the file next to them."""

    made: str  # in one line, for a record
    settings: dict[str, Any]  # by their names in a dataset's Config
    code: str
    gcdbench: str
    finished: list[str]  # <corruption>/<severity> of the variants that have all their images


def published_size(dataset: Dataset) -> int:
    """Return the number of training images, and of corrupted test images if there are any."""
    config, expected = dataset.config, dataset.expected
    variants = len(config.corruptions or CORRUPTIONS) * len(config.severities)
    return expected["train"] + (variants * expected["test"]) * (config.shift == "corrupted")


def build(dataset: Dataset, name: str, listing: Listing) -> Problem:
    """Return the problem of a dataset by SSB's protocol, with or without corrupted test images."""
    split = class_file("ssb")
    num_old = len(split[listing.benchmark]["old"])
    published = [*split[listing.benchmark]["old"]]
    published += [c for members in split[listing.benchmark]["new"].values() for c in members]
    order, note = class_order(listing.benchmark, dataset.config.class_split, num_old, published)
    label = positions(order[:num_old], order[num_old:])
    if len(listing.classes) != len(label):
        raise UserError(
            f"{dataset.title}: {len(listing.classes)} classes instead of {len(label)} "
            f"(found in {listing.train.images.root})"
        )
    dataset.compare(train=len(listing.train.labels), test=len(listing.test.labels))
    recipe = Recipe.of(dataset.config, dataset.root)
    notes = {"split": f"ssb {split['version']}{listing.note}{note}"}
    shifted = None
    if dataset.config.shift == "corrupted":
        images, notes["corrupted"] = _shifted(dataset, listing, recipe)
        shifted = Labelled(images, np.tile(label[listing.test.labels], len(recipe.variants)))
    return corrupted_problem(
        name,
        dataset.config,
        classes=[listing.classes[c] for c in order],
        num_old=num_old,
        train=Labelled(listing.train.images, label[listing.train.labels]),
        shifted=shifted,
        variants=recipe.variants,
        notes=notes,
    )


def parts(dataset: Dataset, listing: Listing) -> dict[str, Images]:
    """Return the official parts, and the corrupted images if they are on disk."""
    found: dict[str, Images] = {"train": listing.train.images, "test": listing.test.images}
    folder = stored_tree(dataset, listing.tree)
    if folder is not None:
        found["corrupted"] = stored_images(
            folder, listing, Recipe.of(dataset.config, None).variants
        )
    return found


def stored_tree(dataset: Dataset, tree: str) -> Path | None:
    """Return the folder of a dataset's corrupted images, if there is one."""
    if dataset.root is None:
        return None
    for folder in (f"SSB-C/{tree}", f"ssb-c/{tree}", tree):
        if (dataset.root / folder).is_dir():
            return dataset.root / folder
    return None


def stored_images(
    folder: Path, listing: Listing, variants: list[tuple[str, int]], tag: str = "stored"
) -> FileImages:
    """Return the images of an SSB-C tree."""
    prefixes = [f"{corruption}/{severity}/" for corruption, severity in variants]
    return FileImages(
        folder,
        ids=[f"{prefix}{name}@{tag}" for prefix in prefixes for name in listing.test.images.ids],
        paths=[prefix + path for prefix in prefixes for path in listing.stored],
    )


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a tree, or None if it has none."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        return Manifest(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{path}: cut off, or of another version of gcdbench; remove it (then the images are "
            f"of unknown making), or remove {folder} and make it again"
        ) from error


def _shifted(dataset: Dataset, listing: Listing, recipe: Recipe) -> tuple[Images, str]:
    wanted = dataset.config.corrupted
    folder = stored_tree(dataset, listing.tree) if wanted != "computed" else None
    if folder is not None:
        manifest = read_manifest(folder)
        if wanted == "auto":
            _check_settings(dataset, folder, recipe, manifest)
        equal = manifest is not None and _holds(manifest, recipe)
        tag = recipe.tag if equal else "stored"
        images = stored_images(folder, listing, recipe.variants, tag)
        _check_tree(images, recipe.variants, manifest)
        if equal:  # the bytes that computing gives, and so the same names and the same cell
            return images, f"made {recipe.describe()}"
        return images, f"stored, {_making(images, len(listing.stored), manifest)}"
    if wanted == "stored":
        raise UserError(
            f"{dataset.title}: there are no corrupted images in "
            f"{dataset.root}/SSB-C/{listing.tree} "
            "(make them with gcdbench data make-ssb-c, or set corrupted: computed)"
        )
    return CorruptedImages(listing.test.images, recipe), f"made {recipe.describe()}"


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that determine a recipe's pixels, by their names in Config."""
    return {
        "corruption_size": recipe.size,
        "jpeg_quality": recipe.jpeg_quality,
        "frost": recipe.frost_textures.describe() if recipe.frost else "procedural",
    }


def _holds(manifest: Manifest, recipe: Recipe) -> bool:
    """Tell whether a tree holds the very images that would be computed."""
    return manifest.code == pixel_code_hash() and not _other_settings(manifest, recipe)


def _other_settings(manifest: Manifest, recipe: Recipe) -> list[str]:
    """Return the names of the settings that a tree was made with otherwise than asked."""
    asked = settings_of(recipe)
    if "frost" not in recipe.corruptions:
        del asked["frost"]
    return [key for key, value in asked.items() if manifest.settings.get(key) != value]


def _check_settings(
    dataset: Dataset, folder: Path, recipe: Recipe, manifest: Manifest | None
) -> None:
    """Refuse a tree that was made otherwise than asked; of an unknown one only the usual is asked.

    What lies on disk must not choose the pixels of a suite.
    """
    asked = settings_of(recipe)
    if manifest is not None:
        other = _other_settings(manifest, recipe)
    else:
        usual = settings_of(Recipe.of(type(dataset.config)(), dataset.root))
        other = [key for key, value in asked.items() if value != usual[key]]
    for key in other:
        stored = manifest.settings.get(key) if manifest else "unknown"
        raise UserError(
            f"{dataset.title}: {key} is {asked[key]}, but that of the images in {folder} is "
            f"{stored} (set corrupted: computed to make others, or corrupted: stored to take these)"
        )


def _check_tree(
    images: FileImages, variants: list[tuple[str, int]], manifest: Manifest | None
) -> None:
    """Raise a UserError if a tree lacks images: unfinished, or only partly unpacked."""
    remedy = "unpack them again" if manifest is None else "continue with gcdbench data make-ssb-c"
    names = [f"{corruption}/{severity}" for corruption, severity in variants]
    undone = [n for n in names if manifest is not None and n not in manifest.finished]
    if undone:
        raise UserError(
            f"{images.root}: the corrupted images are not complete: {undone[0]} is not finished "
            f"({remedy}, or set corrupted: computed)"
        )
    missing = missing_files(images)
    if missing:
        raise UserError(
            f"{images.root}: the corrupted images are not complete: {len(missing):,} of "
            f"{len(images):,} are missing, the first is {images.place(missing[0])} "
            f"({remedy}, or set corrupted: computed)"
        )


def _making(images: FileImages, each: int, manifest: Manifest | None) -> str:
    """Return how a tree was made, or a hash of file sizes to distinguish it if that is unknown."""
    if manifest is not None:
        return f"made {manifest.made}, code {manifest.code[:8]}"
    ends = [row for first in range(0, len(images), each) for row in (first, first + each - 1)]
    with decoding(str(images.root)):
        sizes = [images.path(row).stat().st_size for row in ends]
    return f"of unknown making, sizes {hashlib.sha256(str(sizes).encode()).hexdigest()[:8]}"
