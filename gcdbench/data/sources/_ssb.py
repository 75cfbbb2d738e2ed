"""What CUB, Stanford Cars and FGVC-Aircraft share: the splits of SSB and the corruptions of SSB-C.

Unlabelled images of the shifted domain are the official test images under every corruption and
severity: severity outermost, then corruption, then image, as in the released code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gcdbench.data.corrupted import CorruptedImages, Recipe
from gcdbench.data.corruptions import CORRUPTIONS
from gcdbench.data.images import FileImages, Images
from gcdbench.data.problem import Problem, Source
from gcdbench.data.sources._assemble import Labelled, corrupted_problem
from gcdbench.data.splits import class_file, positions
from gcdbench.errors import UserError

MANIFEST = "gcdbench.json"  # beside the corruptions' folders: how a tree was made


@dataclass(frozen=True)
class Part:
    """The official training or test part."""

    images: FileImages
    labels: np.ndarray  # 0-based class numbers of the dataset itself


@dataclass(frozen=True)
class Listing:
    """A dataset as its own annotations describe it."""

    benchmark: str  # its name in the list of class splits
    tree: str  # its folder in SSB-C
    classes: tuple[str, ...]
    train: Part
    test: Part
    stored: list[str]  # path of each test image below <corruption>/<severity>/ in SSB-C


def published_size(source: Source) -> int:
    """Return the number of training images, and of corrupted test images if there are any."""
    config, expected = source.config, source.expected
    variants = len(config.corruptions or CORRUPTIONS) * len(config.severities)
    return expected["train"] + (variants * expected["test"]) * (config.shift == "corrupted")


def build(source: Source, name: str, listing: Listing) -> Problem:
    """Split a dataset by the protocol of SSB, with or without the corrupted test images."""
    split = class_file("ssb")
    old = split[listing.benchmark]["old"]
    new = [c for members in split[listing.benchmark]["new"].values() for c in members]
    label = positions(old, new)
    if len(listing.classes) != len(label):
        raise UserError(
            f"{source.title}: {len(listing.classes)} classes instead of {len(label)} "
            f"(found in {listing.train.images.root})"
        )
    source.compare(train=len(listing.train.labels), test=len(listing.test.labels))
    recipe = Recipe.of(source.config, source.root)
    notes = {"split": f"ssb {split['version']}"}
    shifted = None
    if source.config.shift == "corrupted":
        images, notes["corrupted"] = _shifted(source, listing, recipe)
        shifted = Labelled(images, np.tile(label[listing.test.labels], len(recipe.variants)))
    return corrupted_problem(
        name,
        source.config,
        classes=[listing.classes[c] for c in (*old, *new)],
        num_old=len(old),
        train=Labelled(listing.train.images, label[listing.train.labels]),
        shifted=shifted,
        variants=recipe.variants,
        notes=notes,
    )


def parts(source: Source, listing: Listing) -> dict[str, Images]:
    """Return the official parts, and the corrupted images if they are on disk."""
    found: dict[str, Images] = {"train": listing.train.images, "test": listing.test.images}
    folder = stored_tree(source, listing.tree)
    if folder is not None:
        found["corrupted"] = stored_images(folder, listing, Recipe.of(source.config, None).variants)
    return found


def stored_tree(source: Source, tree: str) -> Path | None:
    """Return the folder of a dataset's corrupted images, if there is one."""
    if source.root is None:
        return None
    for folder in (f"SSB-C/{tree}", f"ssb-c/{tree}", tree):
        if (source.root / folder).is_dir():
            return source.root / folder
    return None


def stored_images(folder: Path, listing: Listing, variants: list[tuple[str, int]]) -> FileImages:
    """Return the images of an SSB-C tree."""
    prefixes = [f"{corruption}/{severity}/" for corruption, severity in variants]
    return FileImages(
        folder,
        ids=[f"{prefix}{name}@stored" for prefix in prefixes for name in listing.test.images.ids],
        paths=[prefix + path for prefix in prefixes for path in listing.stored],
    )


def _shifted(source: Source, listing: Listing, recipe: Recipe) -> tuple[Images, str]:
    wanted = source.config.corrupted
    folder = stored_tree(source, listing.tree) if wanted != "computed" else None
    if folder is not None:
        _check_tree(folder, listing, recipe.variants)
        return stored_images(folder, listing, recipe.variants), f"stored, {_making(folder)}"
    if wanted == "stored":
        raise UserError(
            f"{source.title}: there are no corrupted images in {source.root}/SSB-C/{listing.tree} "
            "(make them with gcdbench data make-ssb-c, or set corrupted: computed)"
        )
    return CorruptedImages(listing.test.images, recipe), f"computed {recipe.describe()}"


def _making(folder: Path) -> str:
    path = folder / MANIFEST
    if not path.is_file():
        return "of unknown making"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    if not manifest["complete"]:
        raise UserError(
            f"{folder}: the corrupted images are not complete (finish them with gcdbench data "
            "make-ssb-c, or set corrupted: computed)"
        )
    return f"made {manifest['made']}, code {manifest['code'][:8]}"


def _check_tree(folder: Path, listing: Listing, variants: list[tuple[str, int]]) -> None:
    """Look for the first and the last image of every variant; ``data verify`` looks for all."""
    for corruption, severity in variants:
        for path in {listing.stored[0], listing.stored[-1]}:
            expected = folder / corruption / str(severity) / path
            if not expected.exists():
                raise UserError(
                    f"{folder}: the corrupted images are not complete: {expected} is missing "
                    "(finish them with gcdbench data make-ssb-c, or set corrupted: computed)"
                )
