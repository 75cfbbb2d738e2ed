"""Stanford Cars: 196 models of cars (Krause et al., 2013); with shift: Scars-C.

The devkit's annotations are read where they are there. Mirrors that ship one folder per class
instead keep the file names, so the order of the images, and with it the split, is the same; their
class names are numbered by the devkit's list, which is not alphabetical. The release of all images
in car_ims/ has other file names in another order: the same images are in both parts, but others of
them are drawn to be labelled, which a record notes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from gcdbench.data.datasets import _ssb
from gcdbench.data.folders import image_files, subfolders
from gcdbench.data.images import FileImages, Images
from gcdbench.data.problem import Dataset, Problem
from gcdbench.data.splits import class_file
from gcdbench.errors import UserError

DEVKITS = ("devkit", "car_devkit/devkit", "car_devkit", ".")
TRAIN = "cars_train_annos.mat"
TEST = "cars_test_annos_withlabels.mat"  # the devkit's own list of the test images has no labels
ALL = "cars_annos.mat"  # of both parts


class Cars(Dataset):
    """See the module."""

    title: ClassVar[str] = "Stanford Cars"
    homepage: ClassVar[str] = (
        "https://ai.stanford.edu/~jkrause/cars/ is gone; re-packs that are read as they are: "
        "kaggle.com/datasets/jessicali9530/stanford-cars-dataset (lacks the test labels: add "
        "cars_test_annos_withlabels.mat), kaggle.com/datasets/rickyyyyyyy/torchvision-stanford-cars"
        ", kaggle.com/datasets/jutrera/stanford-car-dataset-by-classes-folder"
    )
    disk: ClassVar[str] = "1.9 GB"
    folders: ClassVar[tuple[str, ...]] = (
        "stanford_cars",
        "stanford_car",
        "stanford-cars",
        "StanfordCars",
        "cars",
        "car_data",
        "cars196",
    )
    layout: ClassVar[str] = """\
devkit/cars_train_annos.mat (also in car_devkit/devkit/)
cars_test_annos_withlabels.mat (here or in the devkit)
cars_train/<number>.jpg (also cars_train/cars_train/)
cars_test/<number>.jpg
or cars_annos.mat with car_ims/<number>.jpg
or train/<class>/<number>.jpg and test/<class>/<number>.jpg
(any of these up to two folders further down)"""
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
        """Read the devkit's annotations, those of all images, or the class folders."""
        classes = tuple(class_file("cars")["classes"])
        note = ""
        kind, folder = self._find()
        if kind == "devkit":
            train, test = (_from_devkit(folder, part) for part in ("train", "test"))
        elif kind == "all":
            train, test = (_from_all(folder, is_test) for is_test in (False, True))
            note = ", in the order of cars_annos.mat"
        else:
            train, test = (_from_folders(folder, part, classes) for part in ("train", "test"))
        names = [name.rpartition("/")[2] for name in test.images.ids]
        return _ssb.Listing("cars", "scars-c", classes, train, test, stored=names, note=note)

    def _find(self) -> tuple[str, Path]:
        """Return which layout there is, and its folder; the devkit's is preferred."""
        found = [(kind, f) for f in self._places() for kind in [_kind(f)] if kind]
        for kind in ("devkit", "classes", "all"):
            for one, folder in found:
                if one == kind:
                    return kind, folder
        folder = self.locate(f"devkit/{TRAIN}", "cars_train", "cars_test")
        raise UserError(f"{self.title}: {folder} has no layout that is known")

    def _places(self) -> Iterator[Path]:
        """Yield the folders where the dataset may be: re-packs nest it once or twice."""
        if self.root is None:
            return
        for folder in (*(self.root / name for name in self.folders), self.root):
            if not folder.is_dir():
                continue
            yield folder
            inner = [folder / name for name in subfolders(folder)]
            yield from inner
            for one in inner:
                if one.name not in ("train", "test", "cars_train", "cars_test", "car_ims"):
                    yield from (one / name for name in subfolders(one))


def _kind(folder: Path) -> str:
    """Return which layout a folder has, if any."""
    images = all((folder / f"cars_{part}").is_dir() for part in ("train", "test"))
    if images and _annotations(folder, TRAIN) is not None:
        return "devkit"
    if (folder / ALL).is_file() and (folder / "car_ims").is_dir():
        return "all"
    if (folder / "train").is_dir() and (folder / "test").is_dir():
        known = {_bare(name) for name in class_file("cars")["classes"]}
        if known & {_bare(name) for name in subfolders(folder / "train")}:
            return "classes"
    return ""


def _annotations(folder: Path, name: str) -> Path | None:
    """Return a file of the devkit, wherever a re-pack put it; browsers add (1) to its name."""
    for place in DEVKITS:
        if (folder / place / name).is_file():
            return folder / place / name
        found = sorted((folder / place).glob(f"{name.removesuffix('.mat')} (*).mat"))
        if found:
            return found[0]
    return None


def _table(path: Path, *fields: str) -> list[tuple[Any, ...]]:
    from scipy.io import loadmat

    try:
        table = np.atleast_1d(loadmat(str(path), squeeze_me=True)["annotations"])
        return [tuple(row[name] for name in fields) for row in table]
    except Exception as error:  # whatever scipy raises on files that are cut or of another kind
        names = " and ".join(fields)
        raise UserError(f"{path}: not the devkit's annotations with {names} ({error})") from error


def _from_devkit(folder: Path, part: str) -> _ssb.Part:
    path = _annotations(folder, TRAIN if part == "train" else TEST)
    if path is None:
        raise UserError(
            f"Stanford Cars: {folder / TEST} is missing; the devkit lists the test images without "
            "their classes, which are in this separate file"
        )
    rows = _table(path, "fname", "class")
    names = [str(name) for name, _ in rows]
    files = FileImages(_inner(folder, f"cars_{part}"), [f"cars/{part}/{n}" for n in names], names)
    return _ssb.Part(files, _numbers(path, [number for _, number in rows]), path)


def _from_all(folder: Path, is_test: bool) -> _ssb.Part:
    path = folder / ALL
    rows = _table(path, "relative_im_path", "class", "test")
    rows = [row for row in rows if bool(row[2]) == is_test]
    names = [str(name).rpartition("/")[2] for name, _, _ in rows]
    files = FileImages(_inner(folder, "car_ims"), [f"cars/car_ims/{n}" for n in names], names)
    return _ssb.Part(files, _numbers(path, [number for _, number, _ in rows]), path)


def _inner(folder: Path, name: str) -> Path:
    """Return a folder of images; mirrors nest it in one of the same name."""
    nested = folder / name / name
    return nested if nested.is_dir() else folder / name


def _numbers(path: Path, values: list[Any]) -> np.ndarray:
    try:
        return np.array([int(value) - 1 for value in values], dtype=np.int64)
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: a class is no number ({error}); fetch it again") from error


def _from_folders(folder: Path, part: str, classes: tuple[str, ...]) -> _ssb.Part:
    number = {_bare(name): i for i, name in enumerate(classes)}
    paths = sorted(image_files(folder / part), key=lambda path: path.rpartition("/")[2])
    folders = [path.partition("/")[0] for path in paths]
    strange = sorted(name for name in set(folders) if _bare(name) not in number)
    if strange:
        raise UserError(f"{folder / part / strange[0]}: no class of Stanford Cars has this name")
    names = [path.rpartition("/")[2] for path in paths]
    return _ssb.Part(
        FileImages(folder / part, [f"cars/{part}/{n}" for n in names], paths),
        np.array([number[_bare(name)] for name in folders], dtype=np.int64),
        folder / part,
    )


def _bare(name: str) -> str:
    """Return a class name without what re-packs change: 'Ram C/V ...' is also 'Ram C-V ...'."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
