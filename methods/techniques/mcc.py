"""MCC: minimum class confusion of the unlabelled images (Jin et al., ECCV 2020).

Official: the loss, its temperature and its weight of one. Ours: it uses the method's scaled logits;
the released HiLo code passes bare cosines, for which the loss has almost no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gcdbench.plugin import Batch, Clock, Model, Step, Technique, minimum_class_confusion


class MCC(Technique):
    paper: ClassVar[str] = "https://arxiv.org/abs/1912.03699"
    requires: ClassVar[frozenset[str]] = frozenset({"logits"})

    @dataclass(frozen=True)
    class Config:
        temperature: float = 2.5  # official
        weight: float = 1.0  # official
        scale: float = 1.0  # of the logits, ours; 0.1 gives back the bare cosines of released HiLo

    def terms(self, model: Model, batch: Batch, step: Step, clock: Clock) -> dict[str, Tensor]:
        assert step.logits is not None
        c, hidden = self.config, batch.in_views(batch.unlabelled_rows)
        logits = c.scale * step.logits[hidden]
        confusion = minimum_class_confusion(logits, temperature=c.temperature)
        return {"confusion": c.weight * confusion}
