"""UNO+: one cross-entropy for labels and balanced pseudo-labels (Fini et al., ICCV 2021).

The targets of labelled images are their labels, those of unlabelled ones an assignment that uses
all classes about equally (Sinkhorn), computed from one view and taught to the other. Several heads
for the new classes, and as many with more clusters than classes, learn side by side; the head with
the smallest loss in the last epoch predicts. "Released" below is UNO's code; UNO+, in which
unlabelled images may also be assigned to old classes, was never released. Its discovery commands
take two large and two small crops, of which the large ones teach all others; here both views are
large, unless ``views`` says otherwise. Decided here: no supervised stage before, as for all
methods; prototypes are brought to length one after each step, not before the next, so that
predictions see them so, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.plugin import (
    UNLABELLED,
    Backbone,
    Batch,
    Clock,
    FitContext,
    Method,
    MultiHeadPrototypes,
    Prototypes,
    Ring,
    Step,
    Task,
    balanced_targets,
    draw_permutation,
    soft_cross_entropy,
)

TEACHERS = 2  # the first views: those whose assignments are targets, paper and released


class UNO(Method):
    paper: ClassVar[str] = "https://arxiv.org/abs/2108.08536"
    train_defaults: ClassVar[dict[str, Any]] = {
        "lr": 0.1,  # HiLo paper; 0.4 in the released code
        "weight_decay": 1.5e-4,  # released
        "decay": "all",  # released: biases decay, too
        "warmup_epochs": 10,  # released
        "min_lr_share": 0.01,  # released: the cosine ends at 0.001
        "sampling": "natural",  # released: labelled images in the proportion of the sets
    }
    provides: ClassVar[frozenset[str]] = frozenset({"logits"})
    tuning: ClassVar[dict[str, Any]] = {  # ranges of `gcdbench tune`, with train.lr and epochs
        "temperature": ("log", 0.05, 0.2),  # 0.1 in the paper
        "epsilon": ("log", 0.03, 0.1),  # 0.05 in the paper
        "heads": ("integer", 2, 5),  # 4 and 5 in the released code
    }

    head_losses: Tensor
    best_head: Tensor

    @dataclass(frozen=True)
    class Config:
        # of each image; the first two teach. Released: strong, strong, small, small
        views: tuple[Literal["plain", "weak", "strong", "small"], ...] = ("plain", "plain")  # ours
        heads: int = 4  # of each kind, released scripts; the default there is 5
        over_factor: int = 3  # clusters per new class in the over-clustering heads, released
        assign_to: Literal["all", "new"] = "all"  # UNO+, HiLo paper; "new": UNO's own
        temperature: float = 0.1  # paper and released
        epsilon: float = 0.05  # of the assignment, paper and released
        iterations: int = 3  # of the assignment, paper and released
        queue: int = 0  # features of past batches that join the assignment; none in the paper
        hidden_dim: int = 2048  # of the heads, released
        projection_dim: int = 256  # of the heads, released

        def __post_init__(self) -> None:
            if len(self.views) < 2:
                raise ValueError(f"views are {', '.join(self.views)}; expected two or more")

    def __init__(self, config: Any, task: Task, backbone: Backbone) -> None:
        super().__init__(config, task, backbone)
        generator = task.generator("heads")
        self.known = Prototypes(backbone.dim, task.num_old, generator=generator)
        self.cluster, self.over = (
            MultiHeadPrototypes(
                backbone.dim,
                clusters,
                heads=config.heads,
                hidden_dim=config.hidden_dim,
                out_dim=config.projection_dim,
                generator=generator,
            )
            for clusters in (task.num_new, task.num_new * config.over_factor)
        )
        size = min(config.queue, task.num_unlabelled)
        self.queue = Ring(size, backbone.dim) if size else None
        self.register_buffer("head_losses", torch.zeros(config.heads))  # sums over this epoch
        self.register_buffer("best_head", torch.zeros(1, dtype=torch.long))

    def begin_fit(self, context: FitContext) -> None:
        if self.queue is not None:
            pool = context.compute_features()
            ids = (self.task.labels == UNLABELLED).nonzero().squeeze(1)
            drawn = draw_permutation(len(ids), generator=context.generator("uno queue"))
            drawn = drawn[: len(self.queue)]
            self.queue.push(pool.features[pool.unlabelled][drawn], ids[drawn])

    def step(self, batch: Batch, clock: Clock) -> Step:
        features = self.encode(batch).cls
        views = features.unflatten(0, (batch.num_views, -1))

        logits, cluster = self._swapped(self.cluster, views, batch)
        _, over = self._swapped(self.over, views, batch)
        self.head_losses += cluster.detach()

        best = logits.index_select(1, self.best_head).flatten(0, 2)
        terms = {"cluster": cluster.mean() / 2, "over": over.mean() / 2}
        return Step(terms, features, best / self.config.temperature)

    def _swapped(
        self, head: MultiHeadPrototypes, views: Tensor, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Return logits (V, H, B, K) and losses (H,): each first view teaches all other views."""
        c = self.config
        scores = [self._score(head, view) for view in views]
        logits = torch.stack(scores)
        past = self._score_past(head).expand(TEACHERS, -1, -1, -1)
        targets = balanced_targets(
            torch.cat([past, logits[:TEACHERS].detach()], dim=2),
            F.pad(batch.labels, (past.shape[2], 0), value=UNLABELLED),
            rows=self._hidden_rows(past.shape[2], batch),
            first_class=0 if c.assign_to == "all" else self.task.num_old,
            epsilon=c.epsilon,
            iterations=c.iterations,
        )[:, :, past.shape[2] :]
        if batch.targets is not None:
            old = slice(self.task.num_old)
            rows = batch.labelled_rows
            targets[:, :, rows, old] = batch.targets[rows, old]
        pairs = [(s, t) for s in range(len(views)) for t in range(TEACHERS) if s != t]
        students = torch.stack([scores[student] for student, _ in pairs])
        teachers = torch.stack([targets[teacher] for _, teacher in pairs])
        losses = soft_cross_entropy(students, teachers, temperature=c.temperature)
        return logits, losses.mean((0, 2))

    def _hidden_rows(self, past: int, batch: Batch) -> Tensor:
        """Return the rows without a label, of those remembered and of the batch behind them."""
        hidden = (~batch.cpu_labelled).nonzero().squeeze(1)
        return batch.here(torch.cat([torch.arange(past), past + hidden]))

    def _score(self, head: MultiHeadPrototypes, features: Tensor) -> Tensor:
        """Return the cosines (H, n, old + new) of the features of one view, for every head."""
        known = self.known(features).expand(head.heads, -1, -1)
        return torch.cat([known, head(features)], dim=2)

    @torch.no_grad()
    def _score_past(self, head: MultiHeadPrototypes) -> Tensor:
        """Return the cosines of the stored features, with running batch statistics."""
        if self.queue is None:
            columns = self.task.num_old + head.prototypes.shape[1]
            return head.prototypes.new_empty(head.heads, 0, columns)
        training = head.training
        scores = self._score(head.eval(), self.queue.rows)
        head.train(training)
        return scores

    def after_step(self, batch: Batch, step: Step, clock: Clock) -> None:
        for head in (self.known, self.cluster, self.over):
            head.normalise_()
        if self.queue is not None:
            hidden = batch.unlabelled_rows
            self.queue.push(step.features[: len(batch)][hidden], batch.index[hidden])
        if (clock.step + 1) % clock.steps_per_epoch == 0:
            self.best_head.copy_(self.head_losses.argmin(0, keepdim=True))
            self.head_losses.zero_()

    def classify(self, features: Tensor) -> Tensor:
        logits = self._score(self.cluster, features).index_select(0, self.best_head)
        return logits.squeeze(0) / self.config.temperature
