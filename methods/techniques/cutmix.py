"""CutMix: a box of another image in its place, labels by area (Yun et al., ICCV 2019).

Official: the box, one for a whole batch, and the correction of the share where the border cuts it.
Ours, as for mixup: labelled images mix among themselves and unlabelled ones among themselves, with
one box for both views.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from gcdbench.plugin import (
    Batch,
    Clock,
    Technique,
    cutmix,
    cutmix_boxes,
    draw_beta,
    draw_uniform,
    partners_within,
)


class CutMix(Technique):
    paper: ClassVar[str] = "https://arxiv.org/abs/1905.04899"

    @dataclass(frozen=True)
    class Config:
        concentration: float = 1.0  # both of the Beta, paper
        share: Literal["batch", "image"] = "batch"  # official: one box for all images

    def mix(self, batch: Batch, clock: Clock) -> Batch:
        generator, order, n = clock.generator("cutmix"), batch.cpu_order, len(batch)
        draws = n if self.config.share == "image" else 1
        c = self.config.concentration
        partners, rank = order.clone(), order.argsort()
        partners[order] = order[partners_within(batch.cpu_labelled[order], generator=generator)]
        share = draw_beta(c, c, draws, generator=generator).expand(n)[rank]
        centre = draw_uniform(2, draws, generator=generator).expand(2, n)[:, rank]
        sides = [tuple(view.shape[-2:]) for view in batch.pixels]
        boxes: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {
            (h, w): cutmix_boxes(share, centre[0] * h, centre[1] * w, height=h, width=w)
            for h, w in dict.fromkeys(sides)
        }
        there, here = batch.here(partners), {side: batch.here(b) for side, (b, _) in boxes.items()}
        views = [cutmix(view, there, here[tuple(view.shape[-2:])]) for view in batch.pixels]
        _, share = boxes[sides[0]]  # that of smaller views differs by rounding
        return batch.blended(views, partners, share, self.task.num_classes)
