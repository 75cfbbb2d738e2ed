"""Ask features of the suite's drawings for class and domain, by neighbours and a linear map.

    python benchmarks/embedded/probe.py --data gcdbench/data/drawshift/drawshift.zip
    python benchmarks/embedded/probe.py --data ... --weights other.safetensors --lite0 lite0.pth

Half of each class and domain is labelled, the other half is asked. The first table names the class
from the labelled of one domain, by five nearest neighbours and by a linear map (ridge regression
onto the classes); the second, by neighbours of all domains together, sets class against domain at
the first and the last block.
"""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import PIL.Image
import timm
import torch
from safetensors.torch import load_file
from shards import read_lite0
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from gcdbench.nn.embedded import MEAN, STD, WEIGHTS, build_embedded

DOMAINS = ("quickdraw", "line", "solid", "color")
NEIGHBOURS = 5
BATCH = 128
RIDGE = 0.1  # weight of the penalty, relative to the features' mean square


def read_drawings(archive: Path) -> tuple[Tensor, pd.DataFrame]:
    """Read the suite's images (n, 3, h, w) in [0, 1] and its index of domains and classes."""
    with zipfile.ZipFile(archive) as files:
        index = pd.read_csv(files.open("index.csv"))
        images = [
            np.asarray(PIL.Image.open(io.BytesIO(files.read(path))).convert("RGB"))
            for path in tqdm(index["path"], desc="read", leave=False)
        ]
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255, index


def labelled_half(index: pd.DataFrame, seed: int) -> np.ndarray:
    """Mark half of each class and domain as neighbours."""
    chosen = np.zeros(len(index), dtype=bool)
    rng = np.random.RandomState(seed)
    for rows in index.groupby(["domain", "class"], sort=True).indices.values():
        chosen[rng.permutation(rows)[: len(rows) // 2]] = True
    return chosen


def vote(neighbours: Tensor, labels: Tensor, asked: Tensor) -> Tensor:
    """Name each asked row by its nearest neighbours in cosine; the more similar break a tie."""
    similarity, nearest = (asked @ neighbours.T).topk(NEIGHBOURS, dim=1)
    votes = torch.zeros(len(asked), int(labels.max()) + 1)
    votes.scatter_add_(1, labels[nearest], 1 + 1e-3 * similarity)
    return votes.argmax(dim=1)


def fit_and_name(known: Tensor, labels: Tensor, asked: Tensor) -> Tensor:
    """Name each asked row by a linear map fitted to the known rows."""
    centre = known.mean(dim=0)
    x = (known - centre).double()
    wanted = F.one_hot(labels).double()
    penalty = RIDGE * x.square().sum() / x.shape[1]
    gram = x.T @ x + penalty * torch.eye(x.shape[1], dtype=x.dtype)
    weights = torch.linalg.solve(gram, x.T @ (wanted - wanted.mean(dim=0)))
    return ((asked - centre).double() @ weights + wanted.mean(dim=0)).argmax(dim=1)


Namer = Callable[[Tensor, Tensor, Tensor], Tensor]  # known rows, their labels, rows to be named


class Probe:
    """Features with the labels, domains and halves needed to question them."""

    def __init__(self, features: Tensor, index: pd.DataFrame, *, seed: int) -> None:
        self.features = F.normalize(features, dim=1)
        self.classes = torch.from_numpy(pd.factorize(index["class"], sort=True)[0])
        self.domains = torch.from_numpy(pd.Categorical(index["domain"], DOMAINS).codes.astype(int))
        self.known = torch.from_numpy(labelled_half(index, seed))

    def accuracy(self, labels: Tensor, known: Tensor, asked: Tensor, name: Namer = vote) -> float:
        named = name(self.features[known], labels[known], self.features[asked])
        return 100 * (named == labels[asked]).float().mean().item()

    def across(self, namer: Namer) -> dict[str, list[float]]:
        """Return class accuracies: for each labelled domain, one per domain asked."""
        known = [self.known & (self.domains == code) for code in range(len(DOMAINS))]
        asked = [~self.known & (self.domains == code) for code in range(len(DOMAINS))]
        return {
            name: [self.accuracy(self.classes, near, far, namer) for far in asked]
            for name, near in zip(DOMAINS, known, strict=True)
        }

    def pooled(self) -> tuple[float, float]:
        """Return how often neighbours of any domain tell the class, and the domain."""
        return (
            self.accuracy(self.classes, self.known, ~self.known),
            self.accuracy(self.domains, self.known, ~self.known),
        )


def in_batches(images: Tensor, desc: str) -> tqdm:
    """Show progress over batches of images."""
    return tqdm(images.split(BATCH), desc=desc, leave=False)


def normalise(images: Tensor) -> Tensor:
    """Scale pixels in [0, 1] as the backbone expects them."""
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (MEAN, STD))
    return (images - mean) / std


@torch.inference_mode()
def class_tokens(model: VisionTransformer, images: Tensor) -> dict[str, Tensor]:
    """Return the class token after the first and the last block, each through the final norm."""
    first, last = [], []
    for part in in_batches(images, "embedded"):
        tokens = model._pos_embed(model.patch_embed(normalise(part)))
        for number, block in enumerate(model.blocks):
            tokens = block(tokens)
            if number == 0:
                first.append(model.norm(tokens)[:, 0])
        last.append(model.norm(tokens)[:, 0])
    return {"embedded, block 1": torch.cat(first), "embedded, last block": torch.cat(last)}


@torch.inference_mode()
def lite0_stages(weights: Path, images: Tensor, size: int = 96) -> dict[str, Tensor]:
    """Return the mean of Lite0's second and last stage, at the resolution it is best at."""
    lite0 = timm.create_model("tf_efficientnet_lite0", num_classes=0)
    lite0.load_state_dict(read_lite0(weights))
    lite0.eval().to(memory_format=torch.channels_last)
    first, last = [], []
    for part in in_batches(images, "lite0"):
        part = F.interpolate(part, size=(size, size), mode="bilinear", align_corners=False)
        part = normalise(part).contiguous(memory_format=torch.channels_last)
        maps = lite0.bn1(lite0.conv_stem(part))
        for number, stage in enumerate(lite0.blocks):
            maps = stage(maps)
            if number == 1:
                first.append(maps.mean(dim=(2, 3)))
        last.append(maps.mean(dim=(2, 3)))
    return {"Lite0, low stage": torch.cat(first), "Lite0, last stage": torch.cat(last)}


def raw_pixels(images: Tensor, size: int = 24) -> Tensor:
    """Return the drawings' darkness at a small size, flattened."""
    small = F.interpolate(1 - images, size=(size, size), mode="bilinear", antialias=True)
    return small.flatten(1)


def print_tables(probes: dict[str, Probe]) -> None:
    """Print both tables in Markdown."""
    print("| features | labelled |", " | ".join(DOMAINS), "|")
    print("|---" * (2 + len(DOMAINS)) + "|")
    for name, probe in probes.items():
        near = probe.across(vote)
        fitted = probe.across(fit_and_name)
        for domain in DOMAINS:
            both = zip(near[domain], fitted[domain], strict=True)
            print(f"| {name} | {domain} |", " | ".join(f"{a:.1f} / {b:.1f}" for a, b in both), "|")
    print("\n| features | class | domain |\n|---|---|---|")
    for name, probe in probes.items():
        told_class, told_domain = probe.pooled()
        print(f"| {name} | {told_class:.1f} | {told_domain:.1f} |")


def main(argv: list[str]) -> None:
    """Read the drawings, compute the features, print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="drawshift.zip")
    parser.add_argument("--weights", type=Path, default=WEIGHTS, help="default: the bundled ones")
    parser.add_argument("--lite0", type=Path, help="Lite0's .pth file, for rows to compare with")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    images, index = read_drawings(args.data)
    model = build_embedded()
    model.load_state_dict({name: value.float() for name, value in load_file(args.weights).items()})
    features = class_tokens(model.eval(), images)
    if args.lite0 is not None:
        features |= {"raw pixels": raw_pixels(images)} | lite0_stages(args.lite0, images)
    print_tables({name: Probe(x, index, seed=args.seed) for name, x in features.items()})


if __name__ == "__main__":
    main(sys.argv[1:])
