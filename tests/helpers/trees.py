"""Miniature datasets in the exact layouts of the real ones, for tests that need data on disk."""

from __future__ import annotations

import io
import pickle
import zlib
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from gcdbench.data.splits import class_file

DOMAINNET = ("real", "painting", "quickdraw", "sketch", "clipart", "infograph")


@cache
def encoded(seed: int, size: tuple[int, int], suffix: str) -> bytes:
    """Return a picture of a few blurred patches of colour as a file."""
    coarse = np.random.RandomState(seed).randint(0, 256, (4, 6, 3), dtype=np.uint8)
    file = io.BytesIO()
    picture = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
    picture.save(file, Image.registered_extensions()[suffix.lower()])
    return file.getvalue()


class Trees:
    """Writes miniature datasets below a data root."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def image(self, path: str, size: tuple[int, int] = (48, 36)) -> None:
        """Write a small picture that is a function of the file's name."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encoded(zlib.crc32(file.name.encode()) % 50, size, file.suffix))

    def text(self, path: str, *lines: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def cub(self, train: int = 2, test: int = 1) -> Path:
        """CUB-200-2011: ids from 1, test and training images interleaved."""
        folder, number = "CUB_200_2011", 0
        images, labels, flags, classes = [], [], [], []
        for c in range(1, 201):
            classes.append(f"{c} {c:03d}.Bird_{c}")
            for i in range(test + train):
                number += 1
                path = f"{c:03d}.Bird_{c}/Bird_{c}_{i:04d}_{number}.jpg"
                images.append(f"{number} {path}")
                labels.append(f"{number} {c}")
                flags.append(f"{number} {int(i >= test)}")
                self.image(f"{folder}/images/{path}")
        self.text(f"{folder}/images.txt", *images)
        self.text(f"{folder}/image_class_labels.txt", *labels)
        self.text(f"{folder}/train_test_split.txt", *flags)
        self.text(f"{folder}/classes.txt", *classes)
        return self.root / folder

    def car_classes(self, train: int = 2, test: int = 1) -> dict[str, list[tuple[str, int]]]:
        """(file name, class from 1) of both parts, in an order that mixes the classes."""
        rng = np.random.RandomState(7)
        return {
            part: [
                (f"{i + 1:05d}.jpg", int(c))
                for i, c in enumerate(rng.permutation(np.repeat(np.arange(1, 197), count)))
            ]
            for part, count in (("train", train), ("test", test))
        }

    def cars(self, nested: bool = False) -> Path:
        """Stanford Cars with its devkit; mirrors nest the image folders."""
        folder = self.root / "stanford_cars"
        for part, rows in self.car_classes().items():
            inside = f"cars_{part}/cars_{part}" if nested else f"cars_{part}"
            for name, _ in rows:
                self.image(f"stanford_cars/{inside}/{name}")
        self.car_annotations()
        return folder

    def car_annotations(self) -> None:
        folder = self.root / "stanford_cars"
        (folder / "devkit").mkdir(parents=True, exist_ok=True)
        box = ["bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2"]
        parts = self.car_classes()

        def annotate(path: str, part: str, *fields: str) -> None:
            rows = [dict(zip(("fname", "class"), row, strict=True)) for row in parts[part]]
            table = np.empty((1, len(rows)), dtype=[(name, "O") for name in (*box, *fields)])
            for i, row in enumerate(rows):
                table[0, i] = (1, 1, 40, 30, *(row[name] for name in fields))
            savemat(folder / path, {"annotations": table})

        annotate("devkit/cars_train_annos.mat", "train", "class", "fname")
        annotate("devkit/cars_test_annos.mat", "test", "fname")
        annotate("cars_test_annos_withlabels.mat", "test", "class", "fname")
        names = np.array(class_file("cars")["classes"], dtype=object)
        savemat(folder / "devkit/cars_meta.mat", {"class_names": names[None]})

    def car_folders(self) -> Path:
        """Stanford Cars as mirrors ship it: one folder per class."""
        classes = class_file("cars")["classes"]
        for part, rows in self.car_classes().items():
            for name, c in rows:
                inside = classes[c - 1].replace("/", "-")
                self.image(f"car_data/car_data/{part}/{inside}/{name}")
        return self.root / "car_data/car_data"

    def aircraft(self, train: int = 2, test: int = 1) -> Path:
        """FGVC-Aircraft: variants with spaces and slashes, not in sorted order in the lists."""
        variants = [f"{c // 3}-{c} Type/{c}" for c in range(100)]
        lists: dict[str, list[str]] = {"trainval": [], "test": []}
        number = 34958
        for i in range(train + test):
            for variant in reversed(variants):
                number += 1
                lists["test" if i < test else "trainval"].append(f"{number:07d} {variant}")
                self.image(f"fgvc-aircraft-2013b/data/images/{number:07d}.jpg")
        for part, lines in lists.items():
            self.text(f"fgvc-aircraft-2013b/data/images_variant_{part}.txt", *lines)
        self.text("fgvc-aircraft-2013b/data/variants.txt", *variants)
        return self.root / "fgvc-aircraft-2013b"

    def domainnet(self, classes: int = 8, each: int = 10) -> Path:
        """DomainNet: some classes in six domains, with the official lists."""
        lists = class_file("domainnet")
        names = [*lists["folders"][:4], *lists["folders"][173 : 169 + classes]]
        for domain in DOMAINNET:
            lines: dict[str, list[str]] = {"train": [], "test": []}
            for name in names:
                label = lists["official"].index(name)
                for i in range(each):
                    path = f"{domain}/{name}/{domain}_{label + 1:03d}_{i + 1:06d}.jpg"
                    self.image(f"domainnet/{path}")
                    lines["test" if i % 3 == 0 else "train"].append(f"{path} {label}")
            for part, rows in lines.items():
                self.text(f"domainnet/{domain}_{part}.txt", *rows)
        return self.root / "domainnet"

    def imagenet100(self, each: int = 4) -> Path:
        for synset in [*class_file("imagenet100")["synsets"], "n99999999"]:
            for i in range(each):
                self.image(f"imagenet/train/{synset}/{synset}_{i}.JPEG")
        return self.root / "imagenet"

    def cifar10(self, each: int = 20) -> Path:
        """CIFAR-10's Python version: planes of 32 x 32 in rows of 3072 bytes."""
        folder = self.root / "cifar-10-batches-py"
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.RandomState(3)
        for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
            batch = {
                "batch_label": name,
                "labels": rng.permutation(np.repeat(np.arange(10), each // 10)).tolist(),
                "data": rng.randint(0, 256, (each, 3072), dtype=np.uint8),
                "filenames": [f"{name}_{i}.png" for i in range(each)],
            }
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
        return folder
