"""Build what trains and scores a cell: problem, batches, model, features.

Everything that chooses between loaders, banks, models and evaluators is here, and is therefore part
of the cell's key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gcdbench.core import registry
from gcdbench.data.problem import Problem
from gcdbench.experiment.plan import Cell
from gcdbench.nn.backbone import Backbone
from gcdbench.nn.compiled import compile_trained
from gcdbench.nn.load import load_backbone
from gcdbench.nn.parallel import ProcessGroup
from gcdbench.training.compose import Composed, compose
from gcdbench.training.features.bank import BankedLoader
from gcdbench.training.features.pool import PoolEncoder, make_fit_context
from gcdbench.training.features.store import FeatureStore
from gcdbench.training.features.trunk import Trunk, weights_digest
from gcdbench.training.loader import Loader
from gcdbench.training.method import FitContext, Task
from gcdbench.training.num_classes import assumed_classes
from gcdbench.training.optimizer import mixed_precision
from gcdbench.training.sharded_loader import ShardedLoader
from gcdbench.training.trainer import Batches


@dataclass(frozen=True)
class Assembly:
    """All parts of a cell, ready to be trained."""

    problem: Problem
    loader: Loader  # serves images
    batches: Batches  # what the training loop draws from
    model: Composed
    encoder: PoolEncoder
    context: FitContext
    pretrained: str  # hash of the backbone's weights as they were loaded


def assemble(
    cell: Cell,
    *,
    device: torch.device,
    group: ProcessGroup,
    store: FeatureStore,
    workers: int | None = 0,
    strict: bool = False,
) -> Assembly:
    """Return the parts of a cell; frozen features come from the store as far as it has them."""
    problem, config = cell.problem(), cell.train
    backbone = load_backbone(cell.backbone).to(device)
    backbone.group = group
    pretrained = weights_digest(backbone)
    registry.load("method", cell.spec.method)  # it may define kinds of views
    patch = backbone.image_size // backbone.transformer.grid[0]
    loader = make_loader(
        *(cell, backbone.image_size),
        patch=patch,
        device=device,
        workers=workers,
        strict=strict,
        shared=group.size > 1,
    )
    mixed = mixed_precision(config, device)
    trunk = Trunk(backbone, device, owner=cell.key, mixed=mixed)

    def encoder_of(backbone: Backbone, **more: Any) -> PoolEncoder:
        parts = (problem, loader, backbone, device, store, trunk.key)
        more |= {"precision": config.eval_tokens, "features": config.eval_features}
        return PoolEncoder(*parts, mixed=mixed, **more)

    features = encoder_of(backbone).compute_features
    number = assumed_classes(cell.task, problem, compute_features=features, seed=cell.seed)
    model = make_model(cell, loader, backbone, num_classes=number).to(device)
    if config.compile:
        compile_trained(model, model.backbone)
    batches: Batches = loader
    if config.view_bank and model.cache_depth != "images":
        key = trunk.key(model.backbone)  # a method may have changed what was loaded
        bank = (model.cache_depth, config.view_bank, store, key, device)
        batches = BankedLoader(loader, model.backbone, *bank, mixed=mixed)
    elif group.size > 1:
        whole = model.cache_depth in ("images", "patches")
        batches = ShardedLoader(loader, group, device, whole=whole)
    own = {"encode": model.encode, "reads_images": model.reads_images}
    encoder = encoder_of(model.backbone, **own)
    context = make_fit_context(encoder, cell.seed)
    return Assembly(problem, loader, batches, model, encoder, context, pretrained)


def make_loader(
    cell: Cell,
    size: int,
    *,
    patch: int = 16,
    device: torch.device | None = None,
    workers: int | None = 0,
    strict: bool = False,
    shared: bool = False,
) -> Loader:
    """Return the loader of a cell's images, for views of ``size`` pixels."""
    return Loader(
        cell.problem(),
        size=size,
        kinds=registry.view_kinds(cell.spec.method, cell.method_config),
        patch=patch,
        batch_size=cell.train.batch_size,
        seed=cell.seed,
        device=device,
        workers=workers,
        draws_per_epoch=cell.train.draws_per_epoch,
        strict=strict,
        shared=shared,
    )


def make_model(cell: Cell, loader: Loader, backbone: Backbone, *, num_classes: int) -> Composed:
    """Return a cell's model before training; ``num_classes`` is passed to the method."""
    task = Task(
        num_classes=num_classes,
        num_old=cell.problem().num_old,
        labels=loader.labels,
        epochs=cell.train.epochs,
        steps_per_epoch=loader.steps_per_epoch,
        seed=cell.seed,
        sampling=cell.train.sampling,
        old_names=cell.problem().classes[: cell.problem().num_old],
    )
    return compose(cell.spec, cell.settings()["config"], task, backbone)
