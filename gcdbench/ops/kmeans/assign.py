"""Find the nearest centre of every row, the step that takes most of the time of k-means.

It is one matrix product, ``x.c - |c|^2 / 2`` of every row and centre, computed in float32 in blocks
that fit the cache. If the two best scores are closer than the rounding error, the row is assigned
again in double precision, so that neither block size nor device changes a label.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gcdbench.ops.kmeans.rows import Rows, parts

BLOCK = 2 * 2**20  # bytes worked on at a time: about what a core's cache holds


@dataclass(frozen=True)
class _Places:
    """Centres, their ``-|c|^2 / 2``, and the largest error of the difference of two scores."""

    centers: Tensor
    offset: Tensor
    error: float


class Nearest:
    """Assign each row to the centre with the largest ``x.c - |c|^2 / 2``, block by block.

    The scores of the first ``kept`` rows are kept from call to call: only centres that have moved
    are multiplied again, and only rows that these can change are assigned again.
    """

    def __init__(self, x: Tensor | Rows, kept: int = 0) -> None:
        self.x = x
        self.kept = kept
        self.longest = math.sqrt(float(squared_lengths(x).max()))
        self.scores = self.centers = self.labels = x.new_empty(0, 0)

    def __call__(self, centers: Tensor) -> Tensor:
        """Return the index of the nearest centre of each row, the lowest in case of a tie."""
        moved = self._moved(centers)
        if not bool(moved.any()):
            return self.labels
        # With most centres moving, writing to scattered columns would cost what it saves.
        few = int(moved.sum()) <= 0.8 * len(centers)
        places = self._places(centers)
        labels = torch.empty(len(self.x), dtype=torch.long, device=self.x.device)
        for block in blocks(len(self.x), len(centers)):
            x, scores = self.x[block], self.scores[block] if block.stop <= self.kept else None
            if few and scores is not None:
                labels[block] = _revise(scores, x, places, moved, self.labels[block])
            else:
                scores = torch.addmm(places.offset, x, centers.T, out=scores)
                labels[block] = _decide(scores, x, places)
        self.centers, self.labels = centers, labels
        return labels

    def adopt(self, centers: Tensor, scores: Tensor) -> None:
        """Store the scores of all rows for the centres of the next call."""
        self.centers, self.scores, self.kept = centers, scores, len(scores)
        places = self._places(centers)
        parts = [
            _decide(scores[block], self.x[block], places)
            for block in blocks(len(self.x), len(centers))
        ]
        self.labels = torch.cat(parts)

    def _moved(self, centers: Tensor) -> Tensor:
        if self.centers.shape == centers.shape:
            return (centers != self.centers).any(1)
        self.scores = centers.new_empty(self.kept, len(centers))
        return torch.ones(len(centers), dtype=torch.bool, device=centers.device)

    def _places(self, centers: Tensor) -> _Places:
        lengths = squared_lengths(centers)
        reach = math.sqrt(float(lengths.max()))
        size = math.sqrt(self.x.shape[1]) * reach * (self.longest + reach)
        return _Places(centers, -0.5 * lengths, 2 * _unit_roundoff() * size)


def _revise(scores: Tensor, x: Tensor, places: _Places, moved: Tensor, labels: Tensor) -> Tensor:
    """Assign rows again whose own centre moved or for which another one came as near."""
    columns = moved.nonzero().squeeze(1)
    fresh = torch.addmm(places.offset[columns], x, places.centers[columns].T)
    scores.scatter_(1, columns.expand(len(x), -1), fresh)
    own = scores.gather(1, labels[:, None]).squeeze(1)
    rivalled = fresh.amax(1) >= own - places.error
    doubtful = (moved[labels] | rivalled).nonzero().squeeze(1)
    return labels.index_put((doubtful,), _decide(scores[doubtful], x, places, doubtful))


def _decide(scores: Tensor, x: Tensor, places: _Places, rows: Tensor | None = None) -> Tensor:
    """Return the best column of each row of scores, by exact distances if scores nearly tie.

    The scores are those of ``x``, or of ``x[rows]``.
    """
    top, label = scores.max(1, keepdim=True)
    second = scores.scatter_(1, label, -math.inf).amax(1, keepdim=True)
    scores.scatter_(1, label, top)
    close = (top - second <= places.error).squeeze(1).nonzero().squeeze(1)
    label = label.squeeze(1)
    if len(close):
        label[close] = _exactly(x[close if rows is None else rows[close]], places.centers)
    return label


def _exactly(x: Tensor, centers: Tensor) -> Tensor:
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(x.double(), centers.double(), compute_mode=mode).argmin(1)


def squared_lengths(x: Tensor | Rows) -> Tensor:
    """Return the squared length of each row."""
    return torch.cat([torch.linalg.vector_norm(part, dim=1).square_() for part in parts(x)])


def squared_gaps(x: Tensor | Rows, centers: Tensor, labels: Tensor) -> Tensor:
    """Return the squared distance of each row from the centre it is assigned to."""
    gaps = x.new_empty(len(x))
    for block in blocks(len(x), x.shape[1]):
        torch.linalg.vector_norm(x[block] - centers[labels[block]], dim=1, out=gaps[block])
    return gaps.square_()


def blocks(rows: int, columns: int) -> Iterator[slice]:
    """Split rows of float32 into blocks."""
    step = max(1, BLOCK // (4 * max(columns, 1)))
    return (slice(at, min(at + step, rows)) for at in range(0, rows, step))


def _unit_roundoff() -> float:
    """Return the rounding error of the products that torch is set to compute."""
    by_precision = {"highest": 2.0**-24, "high": 2.0**-11, "medium": 2.0**-8}
    return by_precision[torch.get_float32_matmul_precision()]
