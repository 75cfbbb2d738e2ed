"""CLEVR-4: one set of rendered scenes with four taxonomies of ten classes (Vaze et al., 2023)."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from gcdbench.data.class_splits import class_order
from gcdbench.data.datasets._assemble import Labelled, corrupted_problem
from gcdbench.data.images import FileImages, Images
from gcdbench.data.problem import CHANGES, Dataset, Problem
from gcdbench.data.splits import class_ids
from gcdbench.errors import UserError

ANNOTATIONS = "clevr_4_annots.json"
TAXONOMIES = {  # in the order of the released loader, which numbers the classes
    "texture": (
        *("rubber", "metal", "checkered", "emojis", "wave"),
        *("brick", "star", "circles", "zigzag", "chessboard"),
    ),
    "color": (
        *("gray", "red", "blue", "green", "brown"),
        *("purple", "cyan", "yellow", "pink", "orange"),
    ),
    "shape": (
        *("cube", "sphere", "monkey", "cone", "torus"),
        *("star", "teapot", "diamond", "gear", "cylinder"),
    ),
    "count": ("1", "2", "3", "4", "5", "6", "7", "8", "9", "10"),
}
NUM_OLD = 5


class Clevr4(Dataset):
    """See the module."""

    title: ClassVar[str] = "CLEVR-4"
    homepage: ClassVar[str] = "https://www.robots.ox.ac.uk/~vgg/data/clevr4/"
    disk: ClassVar[str] = "3.8 GB"
    folders: ClassVar[tuple[str, ...]] = (
        "clevr_4_10k",
        "clevr_4_10k_v1",
        "clevr4",
        "clevr_4",
        "CLEVR4",
        "clevr_4_100k",
        "clevr_4_100k_v1",
    )
    layout: ClassVar[str] = """\
clevr_4_annots.json
images/<name>.png"""
    archives: ClassVar[tuple[tuple[str, str], ...]] = (
        (
            "https://thor.robots.ox.ac.uk/clevr4/clevr_4_10k_v1.zip",
            "sha512:769465d90b6550a242f6d5940b52f2e0944c65af09e17e6f3f2cb65701af66057"
            "ab06485b2194fa9d8932e03a03e87b3fadece43049e1af1ddd9f8e4990ed19a",
        ),
    )
    unpack: ClassVar[str] = "clevr_4_10k"

    @dataclass(frozen=True)
    class Config:
        taxonomy: Literal["texture", "color", "shape", "count"] = "texture"
        class_split: Literal[0, 1, 2, 3, 4] = 0  # which classes are old; 0: the loader's first five
        labelled_share: float = 0.5  # of the pooled images of old classes, GCD
        validation: float = 0.0  # share of each class's labelled images held out
        augment: Literal["plain"] = "plain"  # other colours would be other classes

    def problem(self, name: str) -> Problem:
        """Read the annotations of the training images; no image is opened."""
        config = self.config
        folder, chosen = self._annotated()
        values = TAXONOMIES[config.taxonomy]
        benchmark = f"clevr4_{config.taxonomy}"
        order, note = class_order(benchmark, config.class_split, NUM_OLD, range(len(values)))
        names = []
        for image, facts in chosen.items():
            names.append(str(facts.get(config.taxonomy)))
            if names[-1] not in values:
                raise UserError(
                    f"{folder / ANNOTATIONS}: image {image} has {config.taxonomy} {names[-1]!r}, "
                    f"which is none of {', '.join(values)}"
                )
        classes = [values[number] for number in order]
        found = corrupted_problem(
            name,
            config,
            classes=classes,
            num_old=NUM_OLD,
            train=Labelled(_images(folder, chosen), class_ids(names, classes)),
            shifted=None,
            variants=[],
            notes={"split": f"clevr4 {config.taxonomy}, {NUM_OLD} old{note}"},
        )
        by_colour = config.taxonomy == "color"
        return replace(found, changes=CHANGES - {"colour"}) if by_colour else found

    def parts(self) -> dict[str, Images]:
        """Return the training images."""
        return {"train": _images(*self._annotated())}

    def _annotated(self) -> tuple[Path, dict[str, dict[str, Any]]]:
        """Return the folder and the annotations of the training images, by sorted name."""
        folder = self.locate(ANNOTATIONS, "images")
        path = folder / ANNOTATIONS
        try:
            read = json.loads(path.read_text(encoding="utf-8-sig"))
            listed = sorted(read.items())
        except (OSError, ValueError, AttributeError) as error:
            raise UserError(f"{path}: not the annotations of CLEVR-4 ({error})") from error
        for image, facts in listed:
            if not isinstance(facts, dict):
                raise UserError(f"{path}: image {image} has {facts!r} instead of its annotations")
        chosen = {name: facts for name, facts in listed if facts.get("split", "train") == "train"}
        if not chosen:
            raise UserError(f"{path}: no image of the part 'train' is annotated; fetch it again")
        return folder, chosen


def _images(folder: Path, annotated: dict[str, dict[str, Any]]) -> FileImages:
    paths = [name if name.endswith(".png") else f"{name}.png" for name in annotated]
    return FileImages(folder / "images", [f"clevr4/{path}" for path in paths], paths)
