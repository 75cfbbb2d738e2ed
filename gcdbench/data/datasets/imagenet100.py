"""ImageNet-100: the 100 classes of ImageNet that GCD drew (Vaze et al., CVPR 2022), no shift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from gcdbench.data.class_splits import class_order
from gcdbench.data.datasets._assemble import Labelled, check_num_old, corrupted_problem
from gcdbench.data.folders import image_files
from gcdbench.data.images import FileImages, Images
from gcdbench.data.problem import Dataset, Problem
from gcdbench.data.splits import class_file, class_ids


class ImageNet100(Dataset):
    """See the module."""

    title: ClassVar[str] = "ImageNet-100"
    homepage: ClassVar[str] = "https://image-net.org/ (registration)"
    disk: ClassVar[str] = "16 GB of ImageNet's 138 GB"
    folders: ClassVar[tuple[str, ...]] = (
        "imagenet",
        "ImageNet",
        "imagenet100",
        "imagenet-100",
        "ILSVRC2012",
        "ILSVRC/Data/CLS-LOC",
    )
    layout: ClassVar[str] = """\
train/<synset>/<image>.JPEG
(all 1000 synsets, or at least the 100 of gcdbench/data/classes/imagenet100.json)"""

    @dataclass(frozen=True)
    class Config:
        num_old: int = 50  # GCD: the first 50 of the 100 in the order of their synsets
        class_split: Literal[0, 1, 2, 3, 4] = 0  # which classes are old; 0: the first num_old
        labelled_share: float = 0.5  # of the pooled images of old classes, GCD
        validation: float = 0.0  # share of each class's labelled images held out
        augment: Literal["plain", "jitter"] = "plain"  # released codes

    def problem(self, name: str) -> Problem:
        """List the training images; none is opened."""
        images = self.parts()["train"]
        synsets, config = class_file("imagenet100"), self.config
        check_num_old(name, config.num_old, len(synsets["synsets"]))
        order, note = class_order("imagenet100", config.class_split, config.num_old, range(100))
        classes = [synsets["synsets"][number] for number in order]
        labels = class_ids([name.split("/")[1] for name in images.ids], classes)
        return corrupted_problem(
            name,
            self.config,
            classes=classes,
            num_old=self.config.num_old,
            train=Labelled(images, labels),
            shifted=None,
            variants=[],
            notes={"split": f"imagenet100 {synsets['version']}{note}"},
        )

    def published_size(self) -> int:
        """Return the most that 100 classes can have: none of ImageNet's has more than 1300."""
        return 130_000

    def parts(self) -> dict[str, Images]:
        """Return the training images of the 100 classes."""
        synsets = class_file("imagenet100")["synsets"]
        folder = self.locate(*(f"train/{synset}" for synset in synsets)) / "train"
        listed = [f"{synset}/{p}" for synset in synsets for p in image_files(folder / synset)]
        return {"train": FileImages(folder, [f"imagenet/{path}" for path in listed], listed)}

    def remarks(self) -> list[str]:
        """Return a sentence for each class without images."""
        images = self.parts()["train"]
        there = {name.split("/")[1] for name in images.ids}
        synsets = class_file("imagenet100")["synsets"]
        return [f"no images of {synset}" for synset in synsets if synset not in there]
