"""Counts what one training step is made of, as a GPU would see it."""

from __future__ import annotations

from typing import Any

import torch
from helpers.bench import small_config
from timm.models.vision_transformer import VisionTransformer

from device.pretend.counts import Counts, counting
from device.pretend.machine import one_gpu
from device.pretend.tensor import CUDA
from gcdbench.core.method_spec import MethodSpec
from gcdbench.core.settings import TrainConfig
from gcdbench.nn.backbone import Backbone
from gcdbench.nn.parallel import SingleProcess
from gcdbench.training import trainer
from gcdbench.training.compose import compose
from gcdbench.training.method import Batch, Clock, FitContext, PoolFeatures, Task, seeded

POOL, CLASSES, OLD, SIZE, EPOCHS, STEPS_PER_EPOCH = 256, 10, 5, 32, 4, 50
# so that a step does what it does for most of a run
SETTINGS: dict[str, dict[str, Any]] = {
    "mugcd": {"contrast_share": 0.0},
    "uniot": {"detect_after": 0},
    "efdm": {"probability": 1.0},
    "mixstyle": {"probability": 1.0},
}


def backbone() -> Backbone:
    """Return a narrow vision transformer as deep as a ViT-B."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vit = VisionTransformer(
            img_size=SIZE, patch_size=8, embed_dim=48, depth=12, num_heads=3, num_classes=0
        )
    return Backbone(vit.eval(), mean=(0.5,) * 3, std=(0.5,) * 3, image_size=SIZE)


def toy_task() -> Task:
    """Return a task in which a quarter of the images is labelled."""
    labels = torch.arange(POOL) % CLASSES
    labels[(torch.arange(POOL) >= POOL // 2) | (labels >= OLD)] = -1
    return Task(CLASSES, OLD, labels, EPOCHS, STEPS_PER_EPOCH, 0)


def count_steps(spec: MethodSpec, *, steps: int = 2, batch_size: int = 64) -> Counts:
    """Return the counts of some steps, after one that is not counted."""
    task = toy_task()
    labels = task.labels
    names = (spec.method, *spec.techniques)
    configs = {name: dict(SETTINGS.get(name, {})) for name in names}
    configs[spec.method] |= small_config("method", spec.method)
    model = compose(spec, configs, task, backbone())
    with one_gpu():
        model.to(CUDA)
        images = torch.rand(POOL, 3, SIZE, SIZE, generator=seeded("images")).to(CUDA)

        def compute_features() -> PoolFeatures:
            with torch.no_grad():
                encoded = model.backbone(images)
            rows = torch.arange(POOL)
            parts = (labels, rows[labels >= 0], rows[labels < 0], rows)
            return PoolFeatures(encoded.cls, encoded.taps, *(part.to(CUDA) for part in parts))

        context = FitContext(compute_features, lambda *purpose: seeded(0, *purpose))
        loop = trainer._Loop(model, TrainConfig(lr=0.01), STEPS_PER_EPOCH, CUDA, SingleProcess())
        model.begin_fit(context)
        model.begin_epoch(Clock(0, 0, EPOCHS, STEPS_PER_EPOCH, 0), context)
        model.train()
        model.backbone.eval()
        total, generator = Counts(), seeded("batches")
        for step in range(1, steps + 2):
            rows = torch.randint(POOL, (batch_size,), generator=generator)
            pixels = torch.rand(2, batch_size, 3, SIZE, SIZE, generator=generator)
            batch = Batch((255 * pixels).to(torch.uint8), labels[rows], rows)
            with counting() as counts:
                loop.step(batch.to(CUDA), Clock(0, step, EPOCHS, STEPS_PER_EPOCH, 0))
            if step > 1:
                total.launches += counts.launches
                total.syncs += counts.syncs
                total.copied += counts.copied
    return total
