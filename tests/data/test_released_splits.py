"""Exported splits against what the released codes make of the same files, image by image.

Every rule is written out here from the files on disk, with numpy, pandas and scipy and without the
project's readers; the trees have the layouts of the real datasets and hold what is no data.
"""

from __future__ import annotations

import csv
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import more_trees
from helpers.data_verbs import call
from helpers.trees import Trees
from scipy.io import loadmat

from gcdbench.data.splits import class_file

Split = dict[str, tuple[str, int, str]]  # path -> class, label, roles

LITTER = (".thumbs/cat/1.jpg", "__MACOSX/cat/1.jpg", ".ipynb_checkpoints/1.jpg", "._1.jpg", "a.gif")


def litter(trees: Trees, *folders: str) -> None:
    """Put what is no data into folders: none of it may move a single draw."""
    for folder in folders:
        for name in LITTER[:-1]:
            trees.image(f"{folder}/{name}")
        for name in ("Thumbs.db", ".DS_Store", LITTER[-1], "desktop.ini", "notes.txt"):
            trees.text(f"{folder}/{name}", "x")


def exported(capsys, root: Path, suite: str, dataset: str = "") -> tuple[Split, list[dict]]:
    arguments = ["--dataset", dataset] if dataset else []
    assert call("export-split", "--suite", suite, *arguments, "--data-root", root) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    return {r["path"]: (r["class"], int(r["label"]), r["role"]) for r in rows}, rows


def half(number: int) -> set[int]:
    """Return the positions of the labelled images among ``number`` pooled ones of old classes."""
    np.random.seed(0)  # the released codes use the global generator
    size = (int(0.5 * number),)
    return set(np.random.choice(range(number), replace=False, size=size).tolist())


def released(
    paths: list[str], targets: list[int], old: list[int], new: list[int], names: list[str]
) -> Split:
    """Return the split of a training part: half of the pooled old images are labelled."""
    pooled = [i for i, target in enumerate(targets) if target in set(old)]
    chosen = {pooled[i] for i in half(len(pooled))}
    place = {target: i for i, target in enumerate([*old, *new])}
    return {
        path: (
            names[targets[i]],
            place[targets[i]],
            "labelled" if i in chosen else "unlabelled;scored",
        )
        for i, path in enumerate(paths)
    }


def ssb(name: str) -> tuple[list[int], list[int]]:
    split = class_file("ssb")[name]
    return split["old"], [c for kind in ("hard", "medium", "easy") for c in split["new"][kind]]


def image_folder(folder: Path) -> tuple[list[str], list[str], list[int]]:
    """Return classes, paths and targets as torchvision's ImageFolder, without hidden entries."""
    kinds = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

    def ours(name: str) -> bool:
        return not name.startswith(".") and name not in ("__MACOSX", "Thumbs.db")

    classes = sorted(e.name for e in os.scandir(folder) if e.is_dir() and ours(e.name))
    paths, targets = [], []
    for target, name in enumerate(classes):
        for place, _, files in sorted(os.walk(folder / name, followlinks=True)):
            inside = Path(place).relative_to(folder).parts
            for file in sorted(files):
                if all(map(ours, [*inside, file])) and file.lower().endswith(kinds):
                    paths.append("/".join([*inside, file]))
                    targets.append(target)
    return classes, paths, targets


# --- SSB


def test_cub(trees, capsys):
    folder = trees.cub(train=3)
    litter(trees, "CUB_200_2011", "CUB_200_2011/images", "CUB_200_2011/images/003.Bird_3")
    path = folder / "images.txt"  # the order of this list counts, not that of the numbers
    lines = path.read_text().splitlines()
    np.random.RandomState(5).shuffle(lines)
    path.write_bytes("\ufeff".encode() + "".join(f"{line} \r\n" for line in lines).encode())
    read = {
        name: pd.read_csv(
            folder / f"{name}.txt", sep=r"\s+", names=["id", name], encoding="utf-8-sig"
        )
        for name in ("images", "image_class_labels", "train_test_split")
    }
    table = read["images"].merge(read["image_class_labels"]).merge(read["train_test_split"])
    train = table[table.train_test_split == 1]
    old, new = ssb("cub")
    expected = released(
        [f"CUB_200_2011/images/{path}" for path in train.images],
        (train.image_class_labels - 1).tolist(),
        *(old, new, [f"{c:03d}.Bird_{c}" for c in range(1, 201)]),
    )
    assert exported(capsys, trees.root, "ssb", "cub")[0] == expected


def test_cub_c(trees, capsys):
    folder = trees.cub()
    _, rows = exported(capsys, trees.root, "ssb-c", "cub-c")
    flags = [line.split() for line in (folder / "train_test_split.txt").read_text().splitlines()]
    paths = [line.split()[1] for line in (folder / "images.txt").read_text().splitlines()]
    test = [paths[i] for i, (_, flag) in enumerate(flags) if flag == "0"]
    names = ("gaussian_noise", "shot_noise", "impulse_noise", "zoom_blur", "snow", "frost", "fog")
    names += ("speckle_noise", "spatter")
    expected = [
        (f"CUB_200_2011/images/{path}", f"{name}/{severity}=shifted")
        for severity in range(1, 6)
        for name in names
        for path in test
    ]
    shifted = [(row["path"], row["sets"]) for row in rows if row["sets"].endswith("=shifted")]
    assert shifted == expected
    assert all(row["role"] == "unlabelled;scored" for row in rows if row["role"] != "labelled")


@pytest.mark.parametrize("layout", ["devkit", "kaggle", "one folder down", "class folders"])
def test_cars(trees, capsys, layout):
    trees.cars(nested=layout == "kaggle")
    folder = trees.root / "stanford_cars"
    table = loadmat(folder / "devkit/cars_train_annos.mat")["annotations"][0]
    files = [str(row["fname"][0]) for row in table]
    targets = [int(row["class"][0][0]) - 1 for row in table]
    names = class_file("cars")["classes"]
    prefix = ["stanford_cars/cars_train/"] * len(files)
    litter(trees, "stanford_cars", "stanford_cars/cars_train", "stanford_cars/devkit")
    if layout == "kaggle":
        (folder / "car_devkit").mkdir()
        (folder / "devkit").rename(folder / "car_devkit/devkit")
        prefix = ["stanford_cars/cars_train/cars_train/"] * len(files)
    elif layout == "one folder down":
        (trees.root / "archive").mkdir()
        folder.rename(trees.root / "archive/data")
        prefix = ["archive/data/cars_train/"] * len(files)
    elif layout == "class folders":
        folder.rename(trees.root / "elsewhere")
        (trees.root / "elsewhere/cars_train").rename(trees.root / "elsewhere/hidden")
        trees.car_folders()
        litter(trees, "car_data", "car_data/car_data/train/Acura TL Sedan 2012")
        inside = [names[target].replace("/", "-") for target in targets]
        prefix = [f"car_data/car_data/train/{name}/" for name in inside]
    paths = [first + name for first, name in zip(prefix, files, strict=True)]
    expected = released(paths, targets, *ssb("cars"), names)
    assert exported(capsys, trees.root, "ssb", "scars")[0] == expected


def test_aircraft(trees, capsys):
    folder = trees.aircraft() / "data"
    litter(trees, "fgvc-aircraft-2013b/data", "fgvc-aircraft-2013b/data/images")
    lines = (folder / "images_variant_trainval.txt").read_text().splitlines()
    pairs = [line.split(" ", 1) for line in lines]
    names = np.unique([variant for _, variant in pairs]).tolist()
    expected = released(
        [f"fgvc-aircraft-2013b/data/images/{image}.jpg" for image, _ in pairs],
        [names.index(variant) for _, variant in pairs],
        *(*ssb("aircraft"), names),
    )
    assert exported(capsys, trees.root, "ssb", "fgvc")[0] == expected


# --- without shift


def test_imagenet100_of_all_thousand_classes(trees, capsys):
    np.random.seed(0)
    ranks = np.sort(np.random.choice(range(1000), size=(100,), replace=False)).tolist()
    synsets = dict(zip(ranks, class_file("imagenet100")["synsets"], strict=True))
    before = "n00000000"
    for rank in range(1000):
        name = before = synsets.get(rank) or f"{before[:9]}_{rank:03d}"
        trees.image(f"imagenet/train/{name}/{name}_10026.JPEG")
        if rank in synsets:
            trees.image(f"imagenet/train/{name}/{name}_9.JPEG")
            trees.image(f"imagenet/train/{name}/more/{name}_1.jpg")
    litter(trees, "imagenet/train", f"imagenet/train/{synsets[ranks[3]]}")
    classes, paths, targets = image_folder(trees.root / "imagenet/train")
    assert len(classes) == 1000
    kept = [i for i, target in enumerate(targets) if target in synsets]
    expected = released(
        [f"imagenet/train/{paths[i]}" for i in kept],
        [ranks.index(targets[i]) for i in kept],
        *(list(range(50)), list(range(50, 100)), [classes[rank] for rank in ranks]),
    )
    assert exported(capsys, trees.root, "imagenet-100")[0] == expected


@pytest.mark.parametrize(("name", "old"), [("cifar10", 5), ("cifar100", 80)])
def test_cifar(trees, tmp_path, capsys, name, old):
    folder = trees.cifar10(each=40) if name == "cifar10" else more_trees.cifar100(trees.root)
    names = [f"data_batch_{i}" for i in range(1, 6)] if name == "cifar10" else ["train"]
    litter(trees, folder.name)
    targets: list[int] = []
    for one in names:
        batch = pickle.loads((folder / one).read_bytes(), encoding="latin1")
        targets += batch["labels" if name == "cifar10" else "fine_labels"]
    suite = tmp_path / "mine.yaml"
    suite.write_text(f"datasets: {{own: {{source: {name}, config: {{shift: none}}}}}}\n")
    paths = [f"{name}/train/{i:05d}" for i in range(len(targets))]
    number = 2 * old if name == "cifar10" else 100
    expected = released(
        paths, targets, list(range(old)), list(range(old, number)), list(map(str, range(number)))
    )
    found, _ = exported(capsys, trees.root, str(suite))
    assert {k: v[1:] for k, v in found.items()} == {k: v[1:] for k, v in expected.items()}


@pytest.mark.parametrize("place", [None, "ssb_splits"])
def test_herbarium19(trees, capsys, place):
    folder = more_trees.herbarium19(trees.root, each=1)
    top = "herbarium_19/small-train"
    litter(trees, top, f"{top}/17")
    trees.image(f"{top}/stray.jpg")
    trees.image(f"{top}/17/UPPER CASE é.JPG")
    trees.image(f"{top}/17/inner/deeper.png")
    np.random.seed(0)
    old = np.random.choice(range(683), size=(int(683 / 2)), replace=False).tolist()
    new = [c for c in range(683) if c not in set(old)]
    if place:  # GCD's own file, with other classes than the draw
        old, new = new[::-1][:341], [*new[::-1][341:], *old]
        path = trees.root / place / "herbarium_19_class_splits.pkl"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(pickle.dumps({"Old": np.array(old), "New": new}))
    names, paths, targets = image_folder(folder / "small-train")
    expected = released([f"{top}/{p}" for p in paths], targets, old, new, names)
    assert exported(capsys, trees.root, "herbarium-19")[0] == expected


@pytest.mark.parametrize("taxonomy", ["texture", "color", "shape", "count"])
def test_clevr4(trees, capsys, taxonomy):
    orders = {
        "color": "gray red blue green brown purple cyan yellow pink orange",
        "texture": "rubber metal checkered emojis wave brick star circles zigzag chessboard",
        "count": "1 2 3 4 5 6 7 8 9 10",
        "shape": "cube sphere monkey cone torus star teapot diamond gear cylinder",
    }
    folder = more_trees.clevr4(trees.root)
    litter(trees, "clevr_4_10k", "clevr_4_10k/images")
    annotated = json.loads((folder / "clevr_4_annots.json").read_text())
    images = sorted(name for name, facts in annotated.items() if facts["split"] == "train")
    names = orders[taxonomy].split()
    expected = released(
        [f"clevr_4_10k/images/{name}.png" for name in images],
        [names.index(str(annotated[name][taxonomy])) for name in images],
        *(list(range(5)), list(range(5, 10)), names),
    )
    assert exported(capsys, trees.root, "clevr-4", taxonomy)[0] == expected


# --- domains


def share_of_each_class(targets: list[int], share: float) -> set[int]:
    """Return the rows of a shifted domain that are trained on: a floor of each class, seed 0."""
    rng, kept = np.random.RandomState(0), set()
    for target in dict.fromkeys(targets):
        rows = [i for i, one in enumerate(targets) if one == target]
        picked = rng.choice(len(rows), int(share * len(rows)), replace=False)
        kept |= {rows[i] for i in picked}
    return kept


def one_list_of_classes(folder: Path, names: list[str]) -> tuple[list[str], list[int]]:
    """Return the images of a domain; the number of a class is that of all classes."""
    found, paths, targets = image_folder(folder)
    return paths, [names.index(found[target]) for target in targets]


@pytest.mark.parametrize("numbers", ["official", "others"])
def test_domainnet(trees, capsys, numbers):
    folder = trees.domainnet(classes=12)
    litter(trees, "domainnet", "domainnet/real", "domainnet/painting/The_Mona_Lisa")
    for path in folder.glob("*.txt"):
        if numbers == "others":  # the folder's name says the class
            path.write_text("".join(f"{x.split()[0]} 7\n" for x in path.read_text().splitlines()))
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"  \r\n"))
    names = sorted(class_file("domainnet")["folders"])  # capitals first, as folders are listed
    real, targets = one_list_of_classes(folder / "real", names)
    expected = released(
        [f"domainnet/real/{path}" for path in real],
        *(targets, list(range(173)), list(range(173, 345)), names),
    )
    for domain in ("painting", "sketch", "quickdraw", "clipart", "infograph"):
        paths, targets = one_list_of_classes(folder / domain, names)
        trained = share_of_each_class(targets, 0.3) if domain == "painting" else set()
        for i, path in enumerate(paths):
            role = "unlabelled;scored" if i in trained else "scored"
            expected[f"domainnet/{domain}/{path}"] = (names[targets[i]], targets[i], role)
    assert exported(capsys, trees.root, "domainnet", "real+painting")[0] == expected


def test_domainnet_for_domain_generalisation(trees, capsys):
    folder = trees.domainnet(classes=84, each=3)
    names = sorted(class_file("domainnet")["folders"])
    paths, targets = one_list_of_classes(folder / "sketch", names)
    expected = released(
        [f"domainnet/sketch/{path}" for path in paths],
        *(targets, list(range(250)), list(range(250, 345)), names),
    )
    for domain in ("real", "painting", "quickdraw", "clipart", "infograph"):
        paths, targets = one_list_of_classes(folder / domain, names)
        for path, target in zip(paths, targets, strict=True):
            expected[f"domainnet/{domain}/{path}"] = (names[target], target, "scored")
    assert exported(capsys, trees.root, "domainnet-dg", "sketch+none")[0] == expected


@pytest.mark.parametrize(
    ("suite", "name", "old", "number"),
    [
        ("pacs", "pacs", 4, 7),
        ("office-home", "office_home", 40, 65),
        ("terra-incognita", "terra_incognita", 5, 10),
        ("vlcs", "vlcs", 3, 5),
    ],
)
def test_suites_over_folders(trees, capsys, suite, name, old, number):
    folder = more_trees.domain_folders(trees.root, name, each=2)
    top, domains = more_trees.DOMAINS[name]
    classes = sorted(path.name for path in (folder / domains[0]).iterdir())
    litter(trees, top, f"{top}/{domains[0]}", f"{top}/{domains[1]}/{classes[0]}")
    trees.image(f"{top}/{domains[0]}/{classes[0]}/Größe 2.JPEG")
    trees.image(f"{top}/{domains[0]}/{classes[0]}/in/1.png")
    link = folder / domains[0] / classes[1] / "linked"
    link.symlink_to(folder / domains[1] / classes[1])
    assert len(classes) == number
    for source in domains:
        expected: Split = {}
        for domain in domains:
            _, paths, targets = image_folder(folder / domain)
            for path, target in zip(paths, targets, strict=True):
                if domain != source:
                    role = "unlabelled;scored"
                elif target < old:
                    role = "labelled"
                else:
                    continue
                expected[f"{top}/{domain}/{path}"] = (classes[target], target, role)
        dataset = f"{source.lower().replace(' ', '_')}+others"
        assert exported(capsys, trees.root, suite, dataset)[0] == expected
