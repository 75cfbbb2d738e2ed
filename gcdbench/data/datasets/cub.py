"""CUB-200-2011: 200 bird species (Wah et al., 2011); with shift: CUB-C."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from gcdbench.data.datasets import _ssb
from gcdbench.data.images import FileImages, Images
from gcdbench.data.lists import check_once, text_lines
from gcdbench.data.problem import Dataset, Problem
from gcdbench.errors import UserError


class Cub(Dataset):
    """See the module."""

    title: ClassVar[str] = "CUB-200-2011"
    homepage: ClassVar[str] = "https://www.vision.caltech.edu/datasets/cub_200_2011/"
    disk: ClassVar[str] = "1.1 GB"
    folders: ClassVar[tuple[str, ...]] = ("CUB_200_2011", "CUB/CUB_200_2011", "cub/CUB_200_2011")
    layout: ClassVar[str] = """\
images.txt
image_class_labels.txt
train_test_split.txt
classes.txt
images/<class>/<image>.jpg"""
    archives: ClassVar[tuple[tuple[str, str], ...]] = (
        (
            "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
            "md5:97eceeb196236b17998738112f37df78",
        ),
    )
    expected: ClassVar[dict[str, int]] = {"train": 5994, "test": 5794}

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
        """Read the lists; no image is opened."""
        return _ssb.build(self, name, self.listing())

    def published_size(self) -> int:
        """Return the size of the published dataset."""
        return _ssb.published_size(self)

    def parts(self) -> dict[str, Images]:
        """Return the official parts, and the corrupted images if they are on disk."""
        return _ssb.parts(self, self.listing())

    def listing(self) -> _ssb.Listing:
        """Read images.txt and the other lists in its folder."""
        lists = ("images.txt", "image_class_labels.txt", "train_test_split.txt")
        folder = self.locate(*lists, "images")
        paths, numbers, flags = (_column(folder / name) for name in lists)
        for name, column in zip(lists[1:], (numbers, flags), strict=True):
            if column.keys() != paths.keys():
                image = min(column.keys() ^ paths.keys(), key=int)
                lacking, other = (name, lists[0]) if image in paths else (lists[0], name)
                raise UserError(f"{folder / lacking}: image {image} of {other} is not in this list")
        classes = folder / "classes.txt"
        named = _column(classes) if classes.is_file() else {}
        _check(folder / lists[1], numbers, lambda value: value.isdecimal(), "a class number")
        _check(folder / lists[2], flags, lambda value: value in ("0", "1"), "0 (test) or 1")
        check_once(list(paths.values()), str(folder / lists[0]))
        keys = list(paths)  # in the order of images.txt, as released codes read it
        names = [paths[key] for key in keys]
        labels = np.array([int(numbers[key]) - 1 for key in keys], dtype=np.int64)
        train = np.array([flags[key] == "1" for key in keys], dtype=bool)

        def part(chosen: np.ndarray) -> _ssb.Part:
            inside = [names[row] for row in np.flatnonzero(chosen)]
            images = FileImages(folder / "images", [f"cub/{path}" for path in inside], inside)
            listed = folder / lists[1 if chosen.any() else 2]
            return _ssb.Part(images, labels[chosen], listed)

        test = part(~train)
        return _ssb.Listing(
            benchmark="cub",
            tree="cub-c",
            classes=tuple(named.get(str(number), str(number)) for number in range(1, 201)),
            train=part(train),
            test=test,
            stored=list(test.images.paths),
        )


def _column(path: Path) -> dict[str, str]:
    """Return the values of lines ``<id> <value>``."""
    rows = {}
    for number, line in enumerate(text_lines(path), start=1):
        key, space, value = line.strip().partition(" ")
        if key and not (space and key.isdecimal()):
            raise UserError(f"{path}, line {number}: expected '<number> <value>', got {line!r}")
        if key in rows:
            raise UserError(f"{path}, line {number}: image {key} is listed twice")
        if key:
            rows[key] = value.strip()
    return rows


def _check(
    path: Path, column: dict[str, str], is_valid: Callable[[str], bool], expected: str
) -> None:
    for key, value in column.items():
        if not is_valid(value):
            raise UserError(f"{path}: image {key} has {value!r} instead of {expected}")
