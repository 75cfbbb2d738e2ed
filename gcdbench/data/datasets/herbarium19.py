"""Herbarium-19: 683 species of melastomes on herbarium sheets (Tan et al., 2019), long-tailed."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from gcdbench.data.class_splits import class_order
from gcdbench.data.datasets._assemble import Labelled, corrupted_problem
from gcdbench.data.folders import class_images, empty_folders, stray_images, subfolders
from gcdbench.data.images import FileImages, Images
from gcdbench.data.problem import Dataset, Problem
from gcdbench.data.splits import class_file, class_ids
from gcdbench.errors import UserError

NUM_CLASSES = 683
RELEASED = "herbarium_19_class_splits.pkl"  # GCD's own list of old and new classes


class Herbarium19(Dataset):
    """See the module."""

    title: ClassVar[str] = "Herbarium-19"
    homepage: ClassVar[str] = "https://www.kaggle.com/c/herbarium-2019-fgvc6 (registration)"
    disk: ClassVar[str] = "4 GB"
    folders: ClassVar[tuple[str, ...]] = (
        "herbarium_19",
        "herbarium-19",
        "herbarium19",
        "Herbarium19",
        "herbarium-2019-fgvc6",
    )
    layout: ClassVar[str] = """\
small-train/<class>/<image>.jpg
herbarium_19_class_splits.pkl, if you have GCD's list of old classes (here or in the data root);
without it they are the draw of GCD's code, which was not checked against that list"""
    expected: ClassVar[dict[str, int]] = {"train": 34225}

    @dataclass(frozen=True)
    class Config:
        class_split: Literal[0, 1, 2, 3, 4] = 0  # which classes are old; 0: the published ones
        labelled_share: float = 0.5  # of the pooled training images of old classes, GCD
        validation: float = 0.0  # share of each class's labelled images held out
        augment: Literal["plain", "jitter"] = "plain"  # released codes

    def problem(self, name: str) -> Problem:
        """List the training images; none is opened."""
        folder = self._train()
        names = subfolders(folder)
        if len(names) != NUM_CLASSES:
            raise UserError(
                f"{folder}: {len(names)} classes instead of {NUM_CLASSES} (unpack it again)"
            )
        old, new, note = self._published(self.locate("small-train"))
        published = [*old, *new]
        number = self.config.class_split
        order, other = class_order("herbarium19", number, len(old), published)
        classes = [names[c] for c in order]  # a class number is the rank of the folder's name
        images = self.parts()["train"]
        self.compare(train=len(images))
        labels = class_ids([image.split("/")[1] for image in images.ids], classes)
        return corrupted_problem(
            name,
            self.config,
            classes=classes,
            num_old=len(old),
            train=Labelled(images, labels),
            shifted=None,
            variants=[],
            notes={"split": f"{note}{other}"},
        )

    def published_size(self) -> int:
        """Return the size of the published dataset."""
        return self.expected["train"]

    def parts(self) -> dict[str, Images]:
        """Return the training images."""
        folder = self._train()
        listed = class_images(folder)
        return {"train": FileImages(folder, [f"herbarium19/{path}" for path in listed], listed)}

    def remarks(self) -> list[str]:
        """Return sentences about classes without images and images without a class."""
        folder = self._train()
        found = [f"{folder / name}: no image of this class" for name in empty_folders(folder)]
        if stray := stray_images(folder):
            found += [f"{folder}: {len(stray)} images of no class, the first is {stray[0]}"]
        return found

    def _train(self) -> Path:
        """Return the folder of the classes; archives may nest it in one of the same name."""
        folder = self.locate("small-train") / "small-train"
        return folder / "small-train" if (folder / "small-train").is_dir() else folder

    def _published(self, folder: Path) -> tuple[list[int], list[int], str]:
        """Return old and new classes, of the released list if it is there, and what to note."""
        own = class_file("herbarium19")
        places = (folder, self.root or folder)
        for path in (p / inside / RELEASED for p in places for inside in (".", "ssb_splits")):
            if path.is_file():
                old, new = _released(path)
                if sorted(old) == sorted(own["old"]):
                    break
                digest = hashlib.sha256(str(old).encode()).hexdigest()[:8]
                return old, new, f"herbarium19, {RELEASED} ({digest})"
        return own["old"], _others(own["old"]), f"herbarium19 {own['version']}"


class _Plain(pickle.Unpickler):
    """Reads numbers, lists and numpy integers, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        import numpy as np

        if module.startswith("numpy") and name in ("scalar", "dtype", "ndarray", "_reconstruct"):
            makers = {
                "scalar": np.int64(0).__reduce__()[0],
                "_reconstruct": np.empty(0).__reduce__()[0],
            }
            return makers.get(name) or getattr(np, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _released(path: Path) -> tuple[list[int], list[int]]:
    try:
        with path.open("rb") as file:
            read = _Plain(file).load()
        old = [int(number) for number in read["Old"]]
        new = [int(number) for number in read.get("New", _others(old))]
    except Exception as error:  # a damaged pickle can raise anything
        raise UserError(f"{path}: not GCD's list of old classes ({error}); remove it") from error
    if not old or not new or sorted([*old, *new]) != list(range(NUM_CLASSES)):
        raise UserError(f"{path}: old and new classes must be 0..{NUM_CLASSES - 1}, each once")
    return old, new


def _others(old: list[int]) -> list[int]:
    return [number for number in range(NUM_CLASSES) if number not in set(old)]
