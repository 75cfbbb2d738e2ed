"""The trained model of a recorded cell: its features and attention for single images."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gcdbench.data.problem import Problem
from gcdbench.errors import UserError
from gcdbench.experiment.plan import Cell
from gcdbench.experiment.records import cell_folder
from gcdbench.nn.load import load_backbone
from gcdbench.nn.parallel import SingleProcess
from gcdbench.training import weights
from gcdbench.training.assemble import assemble, make_loader, make_model
from gcdbench.training.compose import Composed
from gcdbench.training.features.store import FeatureStore
from gcdbench.training.loader import Loader

CHUNK = 64  # images encoded at a time


@dataclass(frozen=True)
class Trained:
    """A cell with its trained model."""

    cell: Cell
    model: Composed
    loader: Loader

    @classmethod
    def load(cls, cell: Cell, results: Path) -> Trained:
        """Return the cell's model with the weights that were kept."""
        kept = weights.read(cell_folder(results, cell), cell.key)
        one = cls.fresh(cell, kept.num_classes)
        if kept.tensors.keys() - weights.trained_state(one.model).keys():
            one = cls.begun(cell)
        kept.restore(one.model)
        return one

    @classmethod
    def fresh(cls, cell: Cell, num_classes: int) -> Trained:
        """Return the cell's model as it is before training."""
        backbone = load_backbone(cell.backbone)
        loader = make_loader(cell, backbone.image_size)
        model = make_model(cell, loader, backbone, num_classes=num_classes)
        return cls(cell, model.eval(), loader)

    @classmethod
    def begun(cls, cell: Cell) -> Trained:
        """Return the cell's model after ``begin_fit``, which may build modules."""
        device = torch.device("cpu")
        parts = assemble(cell, device=device, group=SingleProcess(), store=FeatureStore())
        parts.model.begin_fit(parts.context)
        return cls(cell, parts.model.eval(), parts.loader)

    @property
    def problem(self) -> Problem:
        """The cell's problem."""
        return self.cell.problem()

    def pictures(self, rows: NDArray[np.integer]) -> NDArray[np.uint8]:
        """Return images (n, h, w, 3) as the model sees them: centre crops."""
        crops = torch.cat(list(self.loader.sweep(rows)))
        return crops.permute(0, 2, 3, 1).contiguous().numpy()

    @torch.no_grad()
    def features(self, rows: NDArray[np.integer]) -> dict[str, NDArray[np.float32]]:
        """Return the features (n, d) of images by title: those that are tapped, then the output."""
        backbone = self.model.backbone
        encoded = [self.model.encode(images) for images in self._batches(rows)]
        blocks = [block for block in sorted(backbone.tapped) if block != backbone.output_block]
        found = {block: torch.cat([e.taps[block] for e in encoded]) for block in blocks}
        found[backbone.output_block] = torch.cat([e.cls for e in encoded])
        return {
            f"{self._meaning(block)} features (block {block})": features.numpy()
            for block, features in found.items()
        }

    @torch.no_grad()
    def attention(self, rows: NDArray[np.integer], block: int | None) -> NDArray[np.float32]:
        """Return the attention of the CLS token in a block, per head, as (n, heads, h, w)."""
        backbone = self.model.backbone
        number = backbone.num_blocks if block is None else block
        if not 1 <= number <= backbone.num_blocks:
            raise UserError(f"--block {number}: the backbone has blocks 1 to {backbone.num_blocks}")
        maps = torch.cat([backbone.attention(i)[number - 1] for i in self._batches(rows)])
        height, width = backbone.vit.patch_embed.grid_size
        side = backbone.image_size
        coarse = maps.unflatten(-1, (height, width))
        return F.interpolate(coarse, size=(side, side), mode="bicubic").clamp(min=0).numpy()

    def _batches(self, rows: NDArray[np.integer]) -> Iterator[Tensor]:
        for images in self.loader.sweep(rows, CHUNK):
            yield images.float() / 255

    def _meaning(self, block: int) -> str:
        """Return the name of a block's features: domain if the setting ``domain_block`` is it."""
        config = self.model.method.config
        for field in dataclasses.fields(config):
            if field.name.endswith("_block") and getattr(config, field.name) == block:
                return field.name.removesuffix("_block")
        return "semantic" if block == self.model.backbone.output_block else "tapped"
