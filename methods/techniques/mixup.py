"""Mixup: blends of two images and of their labels (Zhang et al., ICLR 2018).

Official: one share for a whole batch. Ours, as the original has labels for all images: labelled
images mix among themselves and unlabelled ones among themselves, with the same partner and share in
both views. Labels become soft; where a method needs a hard one, the larger share decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from gcdbench.plugin import Batch, Clock, Technique, draw_beta, mixup, partners_within


class Mixup(Technique):
    paper: ClassVar[str] = "https://arxiv.org/abs/1710.09412"

    @dataclass(frozen=True)
    class Config:
        concentration: float = 0.2  # both of the Beta, paper (ImageNet)
        share: Literal["batch", "image"] = "batch"  # official: one draw for all images

    def mix(self, batch: Batch, clock: Clock) -> Batch:
        generator, order = clock.generator("mixup"), batch.cpu_order
        partners, share = order.clone(), order.float()
        partners[order] = order[partners_within(batch.cpu_labelled[order], generator=generator)]
        c, draws = self.config.concentration, len(batch) if self.config.share == "image" else 1
        share[order] = draw_beta(c, c, draws, generator=generator)
        here = batch.here(partners), batch.here(share)
        views = [mixup(view, *here) for view in batch.pixels]
        return batch.blended(views, partners, share, self.task.num_classes)
