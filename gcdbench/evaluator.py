"""Features, predictions and scores: the only code that reads hidden labels."""

from __future__ import annotations

from collections.abc import Callable
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
from gcdbench.nn.backbone import Backbone, Tokens

__all__ = ["Accuracies", "Evaluation", "Sweeper", "accuracies", "evaluate"]

CACHE_BUDGET = 2 << 30  # trunk outputs are kept if all images of a problem fit into these bytes


class TrunkCache:
    """Outputs of the frozen trunk for the evaluation images, kept in memory between sweeps.

    The trunk does not change in training, so its outputs serve all epochs, methods and seeds. Only
    the last problem's are kept.
    """

    def __init__(self) -> None:
        self._key: Any = None
        self._chunks: list[Tokens] | None = None

    def chunks(self, key: Any) -> list[Tokens] | None:
        """Return what was kept under a key."""
        return self._chunks if key == self._key else None

    def keep(self, key: Any, chunks: list[Tokens]) -> None:
        """Replace what is kept."""
        self._key, self._chunks = key, chunks


class Sweeper:
    """Computes features of all images of a problem under the current weights, once per change."""

    def __init__(
        self,
        problem: Problem,
        loader: Loader,
        backbone: Backbone,
        device: torch.device,
        cache: TrunkCache | None = None,
        trunk_key: Any = None,
    ) -> None:
        self.loader = loader
        self.backbone = backbone
        self.device = device
        self.cache = cache
        evaluated = [s.rows for s in problem.sets.values()]
        self.rows = np.unique(np.concatenate([problem.pool, *evaluated]))
        self.query_rows = np.unique(np.concatenate(evaluated))
        self.key = (problem.fingerprint, trunk_key, tuple(sorted(backbone.tapped)))
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
            encoded = [self.backbone.tail(tokens) for tokens in self._trunk()]
            taps = {
                block: torch.cat([e.taps[block] for e in encoded])
                for block in sorted(self.backbone.tapped)
            }
            positions = {k: v.to(self.device) for k, v in self._positions.items()}
            features = torch.cat([e.cls for e in encoded])
            self._store = Store(features, taps, self._labels, **positions)
        return self._store

    def _trunk(self) -> Any:
        kept = self.cache.chunks(self.key) if self.cache is not None else None
        if kept is not None:
            return kept
        chunks = (
            self.backbone.trunk(self.backbone.patches(images.to(self.device).float() / 255))
            for images in self.loader.sweep(self.rows)
        )
        if self.cache is None:
            return chunks
        first = next(chunks)
        size = first.x[0].numel() * first.x.element_size() * len(self.rows)
        if size > CACHE_BUDGET:
            return _chain(first, chunks)
        everything = [first, *chunks]
        self.cache.keep(self.key, everything)
        return everything

    def _find(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.searchsorted(self.rows, rows))


def _chain(first: Tokens, rest: Any) -> Any:
    yield first
    yield from rest


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
