"""EFDM: token values matched by rank between images (Zhang et al., CVPR 2022).

It exchanges the whole distribution of each channel over the patch tokens; the class token is not
changed. Official: formula, probability and Beta. Ours: it acts after blocks 1 and 2, in place of
two stages of a ResNet, so with a frozen trunk it is an augmentation. Both views of an image have
the same partner and share. Domains are not known; `across` mixes labelled with unlabelled images
instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gcdbench.plugin import Batch, Clock, Model, Task, Technique, draw_uniform, efdm, style_partners


class EFDM(Technique):
    paper: ClassVar[str] = "https://arxiv.org/abs/2203.07740"
    requires: ClassVar[frozenset[str]] = frozenset({"tokens"})

    @dataclass(frozen=True)
    class Config:
        blocks: tuple[int, ...] = (1, 2)  # ours
        probability: float = 0.5  # of a batch, official
        concentration: float = 0.1  # both of the Beta, official
        across: bool = False  # official default: random partners

    def __init__(self, config: Any, task: Task, model: Model) -> None:
        super().__init__(config, task, model)
        self.prefix = model.backbone.vit.num_prefix_tokens

    def tokens(self, x: Tensor, block: int, batch: Batch, clock: Clock) -> Tensor:
        c, generator = self.config, clock.generator(f"efdm {block}")
        if block not in c.blocks or draw_uniform(1, generator=generator) >= c.probability:
            return x
        drawn = style_partners(
            batch.cpu_labelled,
            batch.cpu_order,
            across=c.across,
            concentration=c.concentration,
            generator=generator,
        )
        partners, share = map(batch.here, drawn)
        prefix, patches = x[:, : self.prefix], x[:, self.prefix :]
        views = [efdm(view, partners, share) for view in patches.split(len(batch))]
        return torch.cat([prefix, torch.cat(views)], dim=1)
