"""Stanford Cars: 196 models of cars (Krause et al., 2013); with shift: Scars-C.

The devkit's annotations are read where they are there. Mirrors that ship one folder per class
instead keep the file names, so the order of the images, and with it the split, is the same; their
class names are numbered by the devkit's list, which is not alphabetical.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from gcdbench.data.datasets import _ssb
from gcdbench.data.folders import image_files
from gcdbench.data.images import FileImages, Images
from gcdbench.data.problem import Dataset, Problem
from gcdbench.data.splits import class_file
from gcdbench.errors import UserError

TRAIN = "devkit/cars_train_annos.mat"
TEST = "cars_test_annos_withlabels.mat"  # the devkit's own list of the test images has no labels


class Cars(Dataset):
    """See the module."""

    title: ClassVar[str] = "Stanford Cars"
    homepage: ClassVar[str] = "https://ai.stanford.edu/~jkrause/cars/ (gone; mirrors have it)"
    disk: ClassVar[str] = "1.9 GB"
    folders: ClassVar[tuple[str, ...]] = (
        "stanford_cars",
        "stanford_car",
        "StanfordCars",
        "cars",
        "car_data",
        "car_data/car_data",
        "stanford_cars/car_data",
        "stanford_cars/car_data/car_data",
    )
    layout: ClassVar[str] = """\
devkit/cars_train_annos.mat
cars_test_annos_withlabels.mat (here or in devkit/)
cars_train/<number>.jpg
cars_test/<number>.jpg
or, without the devkit: train/<class>/<number>.jpg and test/<class>/<number>.jpg"""
    unpack: ClassVar[str] = "stanford_cars"
    expected: ClassVar[dict[str, int]] = {"train": 8144, "test": 8041}

    @dataclass(frozen=True)
    class Config:
        shift: Literal["corrupted", "none"] = "corrupted"  # none: SSB, without domain shift
        class_split: Literal[0, 1, 2, 3, 4] = 0  # which classes are old; 0: the published ones
        labelled_share: float = 0.5  # of the pooled training images of old classes, GCD
        validation: float = 0.0  # share of each class's labelled images held out; 0.2 in GCD's code
        corrupted: Literal["auto", "stored", "computed"] = "auto"  # auto: stored if it is on disk
        corruptions: tuple[str, ...] = ()  # of the nine of SSB-C; all of them if none is named
        severities: tuple[int, ...] = (1, 2, 3, 4, 5)  # all of SSB-C
        corruption_size: int = 256  # shorter side, if computed: as in ImageNet-C; 0: as stored
        jpeg_quality: int = 85  # as make-ssb-c and ImageNet-C store them; 0: no JPEG
        frost: str = ""  # folder of ice photographs below the data root; else a procedural texture
        augment: Literal["plain", "jitter"] = "plain"  # released codes, all but DomainNet

    def problem(self, name: str) -> Problem:
        """Read the annotations; no image is opened."""
        return _ssb.build(self, name, self.listing())

    def published_size(self) -> int:
        """Return the size of the published dataset."""
        return _ssb.published_size(self)

    def parts(self) -> dict[str, Images]:
        """Return the official parts, and the corrupted images if they are on disk."""
        return _ssb.parts(self, self.listing())

    def listing(self) -> _ssb.Listing:
        """Read the devkit's annotations or the class folders."""
        classes = tuple(class_file("cars")["classes"])
        by_class = self._class_folders()
        if by_class is not None:
            train, test = (_from_folders(by_class, part, classes) for part in ("train", "test"))
        else:
            folder = self.locate(TRAIN, "cars_train", "cars_test")
            train = _from_devkit(folder, "train", folder / TRAIN)
            test = _from_devkit(folder, "test", _test_annotations(folder))
        names = [name.rpartition("/")[2] for name in test.images.ids]
        return _ssb.Listing("cars", "scars-c", classes, train, test, stored=names)

    def _class_folders(self) -> Path | None:
        if self.root is None:
            return None
        for folder in (*(self.root / name for name in self.folders), self.root):
            if (folder / TRAIN).exists():
                return None
            if (folder / "train").is_dir() and (folder / "test").is_dir():
                names = {path.name for path in (folder / "train").iterdir()}
                if names & {_folder_name(name) for name in class_file("cars")["classes"]}:
                    return folder
        return None


def _from_devkit(folder: Path, part: str, annotations: Path) -> _ssb.Part:
    from scipy.io import loadmat

    try:
        table = np.atleast_1d(loadmat(str(annotations), squeeze_me=True)["annotations"])
        names = [str(row["fname"]) for row in table]
        labels = np.array([int(row["class"]) - 1 for row in table], dtype=np.int64)
    except Exception as error:  # whatever scipy raises on files that are cut or of another kind
        message = f"{annotations}: not the devkit's annotations with fname and class ({error})"
        raise UserError(message) from error
    images = folder / f"cars_{part}"
    if (images / f"cars_{part}").is_dir():  # a mirror nests the folder in one of the same name
        images = images / f"cars_{part}"
    files = FileImages(images, [f"cars/{part}/{n}" for n in names], names)
    return _ssb.Part(files, labels, annotations)


def _test_annotations(folder: Path) -> Path:
    for path in (folder / TEST, folder / "devkit" / TEST):
        if path.exists():
            return path
    raise UserError(
        f"Stanford Cars: {folder / TEST} is missing; the devkit lists the test images without "
        "their classes, which are in this separate file"
    )


def _from_folders(folder: Path, part: str, classes: tuple[str, ...]) -> _ssb.Part:
    number = {_folder_name(name): i for i, name in enumerate(classes)}
    paths = sorted(image_files(folder / part), key=lambda path: path.rpartition("/")[2])
    folders = [path.partition("/")[0] for path in paths]
    strange = sorted(set(folders) - number.keys())
    if strange:
        raise UserError(f"{folder / part / strange[0]}: no class of Stanford Cars has this name")
    names = [path.rpartition("/")[2] for path in paths]
    return _ssb.Part(
        FileImages(folder / part, [f"cars/{part}/{n}" for n in names], paths),
        np.array([number[name] for name in folders], dtype=np.int64),
        folder / part,
    )


def _folder_name(name: str) -> str:
    return name.replace("/", "-")
