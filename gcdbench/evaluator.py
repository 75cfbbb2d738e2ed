"""Features, predictions and scores: the only code that reads hidden labels."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcdbench.compose import Composed
from gcdbench.data.loader import Loader
from gcdbench.data.problem import Problem
from gcdbench.method import Services, Store, seeded
from gcdbench.metrics import Accuracies, SetScore, accuracies, aggregate, score
from gcdbench.nn.backbone import Backbone, Patches, Tokens
from gcdbench.tokens import CHUNK, TokenStore, Wanted, digest, pack, packed_shape, stamps, unpack

__all__ = ["Accuracies", "Evaluation", "Sweeper", "accuracies", "evaluate"]


class Sweeper:
    """Computes features of all images of a problem under the current weights, once per change.

    ``precision`` is that of the frozen features, whether they are kept or not.
    """

    def __init__(
        self,
        problem: Problem,
        loader: Loader,
        backbone: Backbone,
        device: torch.device,
        store: TokenStore,
        trunk_key: str = "",
        precision: str = "float32",
    ) -> None:
        self.loader = loader
        self.backbone = backbone
        self.device = device
        self.store = store
        evaluated = [s.rows for s in problem.sets.values()]
        self.rows = np.unique(np.concatenate([problem.pool, *evaluated]))
        self.query_rows = np.unique(np.concatenate(evaluated))
        self._parts = np.split(self.rows, range(CHUNK, len(self.rows), CHUNK))
        images = problem.images
        self.wanted = Wanted(
            title=f"{len(self.rows):,} evaluation images of {problem.name}",
            key=("centre crop", precision, digest(*(images.ids[r] for r in self.rows)), trunk_key),
            sizes=tuple(map(len, self._parts)),
            shape=packed_shape(backbone, device, "tokens"),
            dtype=getattr(torch, precision),
            compute=self._compute,
            stamps=lambda: stamps(images, self.rows),
            sound=lambda: not loader.unreadable,
        )
        self._positions = {
            "labelled": self._find(problem.labelled),
            "unlabelled": self._find(problem.unlabelled),
            "queries": self._find(self.query_rows),
        }
        labels = torch.full((len(self.rows),), -1)
        labels[self._positions["labelled"]] = torch.from_numpy(problem.labels[problem.labelled])
        self._labels = labels.to(device)
        self._store: Store | None = None

    def forget(self) -> None:
        """Drop the features: the weights have changed."""
        self._store = None

    @torch.no_grad()
    def sweep(self) -> Store:
        """Return the features under the current weights."""
        if self._store is None:
            encoded = [self.backbone(tokens) for tokens in self._trunk()]
            taps = {
                block: torch.cat([e.taps[block] for e in encoded])
                for block in sorted(self.backbone.tapped)
            }
            positions = {k: v.to(self.device) for k, v in self._positions.items()}
            features = torch.cat([e.cls for e in encoded])
            self._store = Store(features, taps, self._labels, **positions)
        return self._store

    def _trunk(self) -> Iterator[Tokens | Patches]:
        """Yield the trunk's output for all images, from the store as far as it holds them."""
        kept = self.store.keep(self.wanted)
        there = sum(end <= len(kept) for end in self.wanted.ends)
        rest = self._compute(range(there, len(self._parts)))
        for packed in itertools.chain(kept.split(CHUNK), rest):
            yield unpack(self.backbone, packed.to(self.device).float(), "tokens")

    def _compute(self, chunks: Sequence[int]) -> Iterator[Tensor]:
        """Yield the packed features of chunks of images."""
        for images in self.loader.serve([(self._parts[chunk], None) for chunk in chunks]):
            packed = pack(self.backbone, images.to(self.device).float() / 255, "tokens")
            yield packed.to(self.wanted.dtype).cpu()

    def _find(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.searchsorted(self.rows, rows))


@dataclass(frozen=True)
class Evaluation:
    """Scores of every evaluation set, their aggregates, and the predictions behind them."""

    sets: dict[str, dict[str, Any]]
    summary: dict[str, Any]
    predictions: dict[str, np.ndarray]  # set -> predicted cluster of its images, in order


def services_for(sweeper: Sweeper, seed: int) -> Services:
    """Bundle what a method may ask for outside of its step."""
    generator: Callable[..., torch.Generator] = lambda *purpose: seeded(seed, *purpose)  # noqa: E731
    return Services(sweeper.sweep, generator)


@torch.no_grad()
def evaluate(model: Composed, problem: Problem, sweeper: Sweeper, services: Services) -> Evaluation:
    """Predict all query images and score each evaluation set with an assignment of its own."""
    model.eval()
    predicted = model.predict(sweeper.sweep(), services).cpu().numpy()
    if predicted.shape != sweeper.query_rows.shape:
        raise ValueError(
            f"predict returned {predicted.shape} values for {len(sweeper.query_rows)} queries"
        )
    preds = {
        name: predicted[np.searchsorted(sweeper.query_rows, s.rows)]
        for name, s in problem.sets.items()
    }

    def scored(*names: str) -> SetScore:
        return score(
            preds=np.concatenate([preds[name] for name in names]),
            labels=problem.labels[np.concatenate([problem.sets[name].rows for name in names])],
            num_old=problem.num_old,
            num_classes=problem.num_classes,
        )

    scores = {name: scored(name) for name in problem.sets}
    unseen = [name for name, s in problem.sets.items() if s.role == "unseen"]
    pooled = scored(*(name for name in problem.sets if name not in unseen)).as_dict()
    return Evaluation(
        sets={n: {"role": problem.sets[n].role, **s.as_dict()} for n, s in scores.items()},
        summary={**aggregate(scores, unseen=unseen), "pooled": pooled},
        predictions={name: p.astype(np.int32) for name, p in preds.items()},
    )
