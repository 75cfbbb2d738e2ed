"""Mixup: blends of two images and of their labels (Zhang et al., ICLR 2018).

Ours, as no source says how to mix partly labelled batches: labelled images mix among themselves and
unlabelled ones among themselves, with the same partner and share in both views. Labels become soft;
where a method needs a hard one, the larger share decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gcdbench.plugin import Batch, Clock, Technique, draw_beta, mixup, partners_within


class Mixup(Technique):
    paper: ClassVar[str] = "https://arxiv.org/abs/1710.09412"

    @dataclass(frozen=True)
    class Config:
        concentration: float = 0.2  # both of the Beta, paper (ImageNet)

    def mix(self, batch: Batch, clock: Clock) -> Batch:
        assert isinstance(batch.views, Tensor)
        generator, order = clock.generator("mixup"), batch.cpu_order
        partners, share = order.clone(), order.float()
        partners[order] = order[partners_within(batch.cpu_labelled[order], generator=generator)]
        c = self.config.concentration
        share[order] = draw_beta(c, c, len(batch), generator=generator)
        here = batch.here(partners), batch.here(share)
        views = [mixup(view, *here) for view in batch.views]
        return batch.blended(views, partners, share, self.task.num_classes)
