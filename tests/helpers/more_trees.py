"""Writes miniature datasets of further readers in the exact layouts of the real ones."""

from __future__ import annotations

import io
import json
import pickle
import zlib
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from gcdbench.data.datasets.clevr4 import TAXONOMIES
from gcdbench.data.splits import class_file

DOMAINS = {
    "pacs": ("PACS", ("art_painting", "cartoon", "photo", "sketch")),
    "office_home": ("OfficeHome", ("Art", "Clipart", "Product", "Real World")),
    "terra_incognita": (
        "terra_incognita",
        ("location_38", "location_43", "location_46", "location_100"),
    ),
    "vlcs": ("VLCS", ("Caltech101", "LabelMe", "SUN09", "VOC2007")),
}


def picture(path: Path, size: tuple[int, int] = (48, 36)) -> None:
    """Write a small picture of patches of colour that is a function of the file's path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    seed = zlib.crc32("/".join(path.parts[-3:]).encode())
    coarse = np.random.RandomState(seed).randint(0, 256, (4, 6, 3), dtype=np.uint8)
    file = io.BytesIO()
    kind = Image.registered_extensions()[path.suffix.lower()]
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(file, kind)
    path.write_bytes(file.getvalue())


def domain_folders(root: Path, name: str, each: int = 4) -> Path:
    """PACS and its like: one folder per domain, with one folder per class."""
    folder, domains = DOMAINS[name]
    for domain in domains:
        for label in class_file("domains")[name]["classes"]:
            for i in range(each):
                picture(root / folder / domain / label / f"{i:03d}.jpg")
    return root / folder


def cifar100(root: Path, each: int = 2, *, corrupted: bool = False) -> Path:
    """CIFAR-100's Python version, and the published CIFAR-100-C."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    rng = np.random.RandomState(4)
    for name, number in (("train", 2 * each), ("test", each)):
        labels = rng.permutation(np.repeat(np.arange(100), number))
        batch = {
            "filenames": [f"{i}.png" for i in range(len(labels))],
            "batch_label": name,
            "fine_labels": labels.tolist(),
            "coarse_labels": (labels // 5).tolist(),
            "data": rng.randint(0, 256, (len(labels), 3072), dtype=np.uint8),
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    names = {"fine_label_names": [f"class {i}" for i in range(100)], "coarse_label_names": []}
    (folder / "meta").write_bytes(pickle.dumps(names, protocol=2))
    if corrupted:
        (root / "CIFAR-100-C").mkdir()
        for name in ("fog", "snow"):
            pixels = rng.randint(0, 256, (5 * 100 * each, 32, 32, 3), dtype=np.uint8)
            np.save(root / "CIFAR-100-C" / f"{name}.npy", pixels)
    return folder


def herbarium19(root: Path, each: int = 2) -> Path:
    """Herbarium-19: folders of classes that are numbers, whose order as text counts."""
    for number in range(683):
        for i in range(each):
            picture(root / "herbarium_19" / "small-train" / str(number) / f"{number}_{i}.jpg")
    return root / "herbarium_19"


def clevr4(root: Path, number: int = 200) -> Path:
    """CLEVR-4: annotations of all images by name, most of them of the part train."""
    folder, rng = root / "clevr_4_10k", np.random.RandomState(5)
    annotated = {}
    for i in rng.permutation(number):
        name = f"CLEVR_new_{i:06d}"
        facts = {key: values[rng.randint(10)] for key, values in TAXONOMIES.items()}
        split = "val" if i % 10 == 0 else "train"
        annotated[name] = {**facts, "count": int(facts["count"]), "split": split}
        picture(folder / "images" / f"{name}.png")
    (folder / "clevr_4_annots.json").write_text(json.dumps(annotated))
    return folder


def all_cars(root: Path, train: int = 2, test: int = 1) -> Path:
    """Stanford Cars as one folder of images with cars_annos.mat."""
    fields = ["relative_im_path", "bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "test"]
    rows = [(c, i >= train) for c in range(1, 197) for i in range(train + test)]
    table = np.empty((1, len(rows)), dtype=[(name, "O") for name in fields])
    for i, (number, is_test) in enumerate(rows):
        path = f"car_ims/{i + 1:06d}.jpg"
        table[0, i] = (path, 1, 1, 40, 30, number, int(is_test))
        picture(root / path)
    names = np.array(class_file("cars")["classes"], dtype=object)[None]
    savemat(root / "cars_annos.mat", {"annotations": table, "class_names": names})
    return root
