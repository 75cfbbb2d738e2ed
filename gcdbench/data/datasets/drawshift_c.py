"""The line drawings of drawshift under nine corruptions: a miniature of SSB-C that ships with it.

A fixed part of each class plays SSB-C's test images: its 45 variants are the shifted domain. The
rest are the clean images, labelled and unlabelled by the rule of GCD. Of each class 45 % are
test images: with 1149 in a set, random clusters are right for 11 % of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from gcdbench.data.corrupted import CorruptedImages, Recipe
from gcdbench.data.datasets._assemble import Labelled, corrupted_problem
from gcdbench.data.datasets.drawshift import class_split, drawings, ordered_classes
from gcdbench.data.images import ZipImages
from gcdbench.data.problem import Dataset, Problem
from gcdbench.data.splits import per_class_sample

VERSION = 2  # of the choice of test images; 1 had a tenth of them


class DrawshiftC(Dataset):
    """See the module."""

    title: ClassVar[str] = "drawshift-c"
    homepage: ClassVar[str] = "ships with gcdbench"
    disk: ClassVar[str] = "11 MB"

    @dataclass(frozen=True)
    class Config:
        domain: Literal["line", "solid", "color", "quickdraw"] = "line"
        test_share: float = 0.45  # of each class: the images that are corrupted, never seen clean
        class_split: Literal[0, 1, 2, 3, 4] = 0  # which classes are old; 0: those of drawshift
        labelled_share: float = 0.5  # of the pooled other images of old classes, as in GCD
        shifted_share: float = 1.0  # of the test images of each class: 45 variants are many
        validation: float = 0.0  # share of each class's labelled images held out
        corruptions: tuple[str, ...] = ()  # of the nine of SSB-C; all of them if none is named
        severities: tuple[int, ...] = (1, 2, 3, 4, 5)  # all of SSB-C
        corruption_size: int = 0  # as stored, 64 px
        jpeg_quality: int = 0  # no round trip
        frost: str = ""  # folder of ice photographs below the data root; else a procedural texture
        augment: Literal["plain", "jitter"] = "plain"  # crop and flip

    def problem(self, name: str) -> Problem:
        """Read the archive's index and split it; no image is opened."""
        config, recipe = self.config, Recipe.of(self.config, self.root)
        classes, note = ordered_classes(config.class_split)
        split, everything = class_split(), drawings(config.domain, classes)
        test = np.sort(per_class_sample(everything.labels, config.test_share))
        train = np.setdiff1d(np.arange(len(everything)), test)
        test = test[np.sort(per_class_sample(everything.labels[test], config.shifted_share))]
        shifted = CorruptedImages(_chosen(everything, test).images, recipe)
        return corrupted_problem(
            name,
            config,
            classes=classes,
            num_old=len(split["old"]),
            train=_chosen(everything, train),
            shifted=Labelled(shifted, np.tile(everything.labels[test], len(recipe.variants))),
            variants=recipe.variants,
            notes={
                "split": f"drawshift-c {VERSION}, drawshift {split['version']}{note}",
                "corrupted": f"computed {recipe.describe()}",
            },
        )


def _chosen(drawn: Labelled, rows: np.ndarray) -> Labelled:
    assert isinstance(drawn.images, ZipImages)
    ids = [drawn.images.ids[row] for row in rows]
    return Labelled(ZipImages(drawn.images.archive, ids), drawn.labels[rows])
