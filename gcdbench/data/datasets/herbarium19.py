"""Herbarium-19: 683 species of melastomes on herbarium sheets (Tan et al., 2019), long-tailed."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from gcdbench.data.class_splits import class_order
from gcdbench.data.datasets._assemble import Labelled, corrupted_problem
from gcdbench.data.folders import image_files, subfolders
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
herbarium_19_class_splits.pkl, if you have GCD's list of old classes"""
    expected: ClassVar[dict[str, int]] = {"train": 34225}

    @dataclass(frozen=True)
    class Config:
        class_split: Literal[0, 1, 2, 3, 4] = 0  # which classes are old; 0: the published ones
        labelled_share: float = 0.5  # of the pooled training images of old classes, GCD
        validation: float = 0.0  # share of each class's labelled images held out
        augment: Literal["plain", "jitter"] = "plain"  # released codes

    def problem(self, name: str) -> Problem:
        """List the training images; none is opened."""
        folder = self.locate("small-train")
        names = subfolders(folder / "small-train")
        if len(names) != NUM_CLASSES:
            raise UserError(
                f"{folder / 'small-train'}: {len(names)} classes instead of {NUM_CLASSES} (unpack "
                "it again)"
            )
        old, note = self._old(folder)
        published = [*old, *(c for c in range(NUM_CLASSES) if c not in set(old))]
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
        folder = self.locate("small-train") / "small-train"
        listed = image_files(folder)
        return {"train": FileImages(folder, [f"herbarium19/{path}" for path in listed], listed)}

    def _old(self, folder: Path) -> tuple[list[int], str]:
        """Return the old classes, of the released list if it is there, and what to note."""
        own = class_file("herbarium19")
        for path in (folder / RELEASED, folder / "ssb_splits" / RELEASED):
            if path.is_file():
                old = _released(path)
                if sorted(old) != sorted(own["old"]):
                    digest = hashlib.sha256(str(old).encode()).hexdigest()[:8]
                    return old, f"herbarium19, {RELEASED} ({digest})"
        return own["old"], f"herbarium19 {own['version']}"


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


def _released(path: Path) -> list[int]:
    try:
        with path.open("rb") as file:
            old = [int(number) for number in _Plain(file).load()["Old"]]
    except Exception as error:  # a damaged pickle can raise anything
        raise UserError(f"{path}: not GCD's list of old classes ({error}); remove it") from error
    if not old or len(set(old)) < len(old) or not set(old) < set(range(NUM_CLASSES)):
        raise UserError(f"{path}: old classes must be some of 0..{NUM_CLASSES - 1}, each once")
    return old
