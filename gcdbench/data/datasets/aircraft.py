"""FGVC-Aircraft: 100 variants of aircraft (Maji et al., 2013); with shift: FGVC-C."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from gcdbench.data.datasets import _ssb
from gcdbench.data.images import FileImages, Images
from gcdbench.data.lists import text_lines
from gcdbench.data.problem import Dataset, Problem
from gcdbench.errors import UserError

LISTS = ("images_variant_trainval.txt", "images_variant_test.txt")


class Aircraft(Dataset):
    """See the module."""

    title: ClassVar[str] = "FGVC-Aircraft"
    homepage: ClassVar[str] = "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/"
    disk: ClassVar[str] = "2.8 GB"
    folders: ClassVar[tuple[str, ...]] = (
        "fgvc-aircraft-2013b",
        "fgvc-aircraft-2013b/fgvc-aircraft-2013b",
        "aircraft/fgvc-aircraft-2013b",
        "fgvc_aircraft",
        "aircraft",
    )
    layout: ClassVar[str] = """\
data/images_variant_trainval.txt
data/images_variant_test.txt
data/variants.txt
data/images/<number>.jpg"""
    archives: ClassVar[tuple[tuple[str, str], ...]] = (
        (
            "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/archives/"
            "fgvc-aircraft-2013b.tar.gz",
            "",
        ),
    )
    expected: ClassVar[dict[str, int]] = {"train": 6667, "test": 3333}

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
        """Read the lists of variants."""
        folder = self.locate(*(f"data/{name}" for name in LISTS), "data/images") / "data"
        listed = [folder / name for name in LISTS]
        train, test = map(_pairs, listed)
        variants = folder / "variants.txt"
        if variants.is_file():
            named = set(text_lines(variants)) - {""}
        else:
            named = {variant for _, variant in train + test}
        classes = tuple(sorted(named))  # a class number is the rank of the variant's name
        number = {variant: i for i, variant in enumerate(classes)}

        def part(pairs: list[tuple[str, str]], path: Path) -> _ssb.Part:
            for image, variant in pairs:
                if variant not in number:
                    raise UserError(
                        f"{variants}: the variant {variant!r} is not in this list "
                        f"(of image {image} in {path.name})"
                    )
            files = [f"{image}.jpg" for image, _ in pairs]
            images = FileImages(folder / "images", [f"aircraft/{name}" for name in files], files)
            labels = np.array([number[variant] for _, variant in pairs], dtype=np.int64)
            return _ssb.Part(images, labels, path)

        clean, shifted = part(train, listed[0]), part(test, listed[1])
        stored = list(shifted.images.paths)
        return _ssb.Listing("aircraft", "fgvc-c", classes, clean, shifted, stored)


def _pairs(path: Path) -> list[tuple[str, str]]:
    """Return the pairs of lines ``<image> <variant>``; variants may contain spaces."""
    pairs = []
    for number, line in enumerate(text_lines(path), start=1):
        image, _, variant = line.strip().partition(" ")
        if image and not variant:
            raise UserError(f"{path}, line {number}: expected '<image> <variant>', got {line!r}")
        if image:
            pairs.append((image, variant.strip()))
    return pairs
