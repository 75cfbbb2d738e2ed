"""The corpus of drawings, and what the frozen stem makes of it, kept in shards on disk."""

from __future__ import annotations

import functools
import hashlib
import io
import math
import multiprocessing
import os
import re
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pandas as pd
import PIL.Image
import timm
import torch
from styles import NUM_STYLES, fill_shapes, flip, restyle
from torch import Tensor, nn
from tqdm import tqdm

from gcdbench.nn.embedded import IMAGE_SIZE, MEAN, STD, build_embedded

SHARD = 4096  # drawings per shard
NUM_WAYS = 2 * NUM_STYLES  # ways to draw: icons and sketches, in each style
STEM_BATCH = 128
# Sketches and icons of one thing share a concept; most have the same name, these do not.
SYNONYMS = {
    "coffee-cup": "coffee",
    "eyeglasses": "glasses",
    "flying-saucer": "ufo",
    "hamburger": "burger",
    "motorbike": "motorcycle",
    "paint-can": "paint-bucket",
    "skateboard": "skateboarding",
    "smiley-face": "smile",
    "teddy-bear": "bear",
    "tennis-racquet": "tennis",
}
DIRECTED = re.compile(r"left|right|back|forward|next|previous|undo|redo|reply|log|exit")


@dataclass(frozen=True)
class Corpus:
    """Drawings (n, 4, h, w) in bytes, their concepts, whether by hand, and if to be mirrored."""

    drawings: np.ndarray
    concepts: np.ndarray
    by_hand: np.ndarray
    mirror: np.ndarray

    def __len__(self) -> int:
        return len(self.concepts)

    @property
    def num_concepts(self) -> int:
        """Count the concepts."""
        return int(self.concepts.max()) + 1


def concept_name(name: str) -> str:
    """Return the name under which sketches and icons of one thing meet."""
    name = name.removeprefix("quickdraw:").removeprefix("The ").lower().replace(" ", "-")
    return SYNONYMS.get(name, name)


def read_corpus(archive: Path, cache: Path) -> Corpus:
    """Read the corpus; its decoded drawings are kept in ``cache`` for the next time."""
    with zipfile.ZipFile(archive) as files:
        index = pd.read_csv(files.open("index.csv"))
        decoded = cache / "drawings.npy"
        if not decoded.exists():
            save_whole(decoded, decode(files, list(index["path"])))
    names = index["name"].map(concept_name)
    concepts, _ = pd.factorize(names)
    mirror = ~names.str.contains(DIRECTED).to_numpy()
    by_hand = (index["kind"] == "quickdraw").to_numpy()
    return Corpus(np.load(decoded, mmap_mode="r"), concepts.astype(np.int64), by_hand, mirror)


def decode(files: zipfile.ZipFile, paths: list[str]) -> np.ndarray:
    """Decode the drawings and add their filled shapes as a fourth channel."""
    drawings = np.empty((len(paths), 4, IMAGE_SIZE, IMAGE_SIZE), dtype=np.uint8)
    for i, path in enumerate(tqdm(paths, desc="decode")):
        image = PIL.Image.open(io.BytesIO(files.read(path))).convert("RGB")
        drawings[i, :3] = np.asarray(image).transpose(2, 0, 1)
    for start in tqdm(range(0, len(paths), 512), desc="fill"):
        part = drawings[start : start + 512]
        part[:, 3] = 255 * fill_shapes(1 - part[:, :3].min(axis=1) / 255)
    return drawings


def save_whole(path: Path, array: np.ndarray) -> None:
    """Write an array so that the file is there whole or not at all."""
    partial = path.with_suffix(f".{os.getpid()}.partial.npy")
    np.save(partial, array)
    partial.replace(path)


@dataclass(frozen=True)
class Shard:
    """Maps of the stem (n, c, h, w) and the way each drawing was drawn."""

    maps: Tensor
    ways: Tensor


def read_lite0(path: Path) -> dict[str, Tensor]:
    """Read Lite0's weights under timm's names; both list the same tensors in the same order."""
    values = list(torch.load(path, map_location="cpu", weights_only=True).values())
    names = list(timm.create_model("tf_efficientnet_lite0").state_dict())
    if len(values) != len(names):
        raise ValueError(f"{path} holds {len(values)} tensors where Lite0 has {len(names)}")
    weights = dict(zip(names, values, strict=True))
    return {name: value for name, value in weights.items() if not name.startswith("classifier")}


@functools.cache
def styles_digest() -> str:
    """Return a checksum of the styles, so that shards of other styles are not taken for these."""
    return hashlib.sha256(Path(__file__).with_name("styles.py").read_bytes()).hexdigest()[:8]


@dataclass(frozen=True)
class Shards:
    """Stem outputs of the corpus, redrawn once per epoch; made ahead by a second process."""

    archive: Path
    stem: Path
    cache: Path
    seed: int
    epochs: int

    def path(self, epoch: int, shard: int) -> Path:
        """Return the file of one shard."""
        return self.cache / f"{styles_digest()}-{self.seed}-{epoch:03d}-{shard:03d}.npy"

    def ways_path(self, epoch: int, shard: int) -> Path:
        """Return the file of the ways in which a shard's drawings are drawn."""
        return self.path(epoch, shard).with_suffix(".ways.npy")

    def rows(self, count: int, epoch: int) -> Iterator[np.ndarray]:
        """Yield, shard by shard, the rows of a corpus of ``count`` in this epoch's order."""
        order = np.random.RandomState([self.seed, epoch]).permutation(count)
        yield from np.split(order, range(SHARD, count, SHARD))

    def make(self) -> None:
        """Make all shards that are not there yet."""
        torch.set_num_threads(1)
        corpus = read_corpus(self.archive, self.cache)
        stem = build_embedded(read_lite0(self.stem)).patch_embed.backbone.eval()
        for epoch in range(self.epochs):
            for shard, rows in enumerate(self.rows(len(corpus), epoch)):
                if orphaned():
                    return
                if not self.path(epoch, shard).exists():
                    salt = (self.seed * 1000 + epoch) * 1000 + shard
                    maps, ways = stem_outputs(stem, corpus, rows, salt)
                    save_whole(self.ways_path(epoch, shard), ways)
                    save_whole(self.path(epoch, shard), maps)

    def start_maker(self) -> BaseProcess:
        """Make the shards in a second process."""
        maker = multiprocessing.get_context("spawn").Process(target=self.make, daemon=True)
        maker.start()
        return maker

    def wait_for(self, maker: BaseProcess, epoch: int, shard: int) -> Shard:
        """Load a shard as soon as the maker has written it."""
        path = self.path(epoch, shard)
        while not path.exists():
            if not maker.is_alive() and not path.exists():
                raise RuntimeError(f"the process that makes {path.name} stopped; see its message")
            time.sleep(0.2)
        ways = np.load(self.ways_path(epoch, shard))
        return Shard(torch.from_numpy(np.load(path)), torch.from_numpy(ways))


def shards_per_epoch(count: int) -> int:
    """Return into how many shards a corpus of ``count`` drawings is cut."""
    return math.ceil(count / SHARD)


def orphaned() -> bool:
    """Tell whether the process that started this one is gone."""
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


@torch.inference_mode()
def stem_outputs(
    stem: nn.Module, corpus: Corpus, rows: np.ndarray, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Redraw the given drawings; return the stem's maps in half precision, and the ways drawn."""
    generator = torch.Generator().manual_seed(seed)
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (MEAN, STD))
    maps, ways = [], []
    for start in range(0, len(rows), STEM_BATCH):
        part = rows[start : start + STEM_BATCH]
        images, styles = restyle(torch.from_numpy(corpus.drawings[part]), generator)
        images = flip(images, torch.from_numpy(corpus.mirror[part]), generator)
        maps.append(stem((images - mean) / std).half())
        ways.append(styles + NUM_STYLES * torch.from_numpy(corpus.by_hand[part]))
    return torch.cat(maps).numpy(), torch.cat(ways).numpy()
