"""Find the k nearest rows: by faiss where it is installed, by torch elsewhere.

Either searches in float32 for a few rows more than are asked for. These are scored again in double
precision, and where rounding could have left a neighbour out, the row is searched again exactly.
So neither the library nor the device changes which neighbours are returned.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import math
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from gcdbench.ops.kmeans.rows import Rows, as_rows, parts

Metric = Literal["product", "euclidean"]
Backend = Literal["auto", "faiss", "torch"]
MARGIN = 8  # rows that are searched beyond the k nearest
BLOCK = 64 * 2**20  # bytes of scores that torch computes at a time


class Neighbours(NamedTuple):
    """The neighbours of every query, the nearest first; of equally near ones the lower index."""

    indices: Tensor  # (n, k)
    scores: Tensor  # (n, k), float32: products, or distances


@torch.no_grad()
def k_nearest(
    queries: Tensor | Rows,
    rows: Tensor | Rows,
    k: int,
    *,
    metric: Metric = "product",
    backend: Backend = "auto",
    wait: bool = True,
) -> Neighbours:
    """Return the k rows with the largest inner product with each query, or the nearest ones.

    Queries and rows in half precision that would take more than a gigabyte as float32 are read in
    parts, from a memory-mapped file for example, and searched by torch.

    Args:
        queries: (n, d).
        rows: (m, d) to choose from; a query that is among them is its own neighbour.
        k: number of neighbours, at most m.
        metric: "product", which of unit vectors is the cosine, or "euclidean".
        backend: "auto" takes faiss if it is installed, for CUDA tensors its GPU version.
        wait: False lets a GPU search in float32 alone, for which the CPU need not wait: neighbours
            that are equally near but for rounding may come in another order. No effect on a CPU.

    >>> k_nearest(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0], [3.0, 1.0]]), 1).indices
    tensor([[1]])
    """
    _check(queries, rows, k, metric, backend)
    with torch.autocast(rows.device.type, enabled=False):
        device = rows.device
        return _k_nearest(
            as_rows(queries, device=device), as_rows(rows, device=device), k, metric, backend, wait
        )


def _k_nearest(
    queries: Tensor | Rows,
    rows: Tensor | Rows,
    k: int,
    metric: Metric,
    backend: Backend,
    wait: bool,
) -> Neighbours:
    if not len(queries) or not k:
        nothing = queries.new_empty(len(queries), k)
        return Neighbours(nothing.long(), nothing)
    if rows.device.type == "cuda" and not wait:
        index, score = _search_by_torch(queries, rows, k, metric)
        return Neighbours(index, score.clamp(min=0).sqrt() if metric == "euclidean" else score)
    searched = min(k + MARGIN, len(rows))
    faiss = _faiss() if backend != "torch" else None
    if faiss is None or isinstance(queries, Rows) or isinstance(rows, Rows):
        index, score = _search_by_torch(queries, rows, searched, metric)
    else:
        index, score = _search_by_faiss(faiss, queries, rows, searched, metric)
    # faiss returns squared distances; larger is nearer from here on
    worst = -score[:, -1] if metric == "euclidean" else score[:, -1]
    found, exact = _ranked(queries, rows, index, k, metric)
    if searched < len(rows):
        error = _rounding(queries, rows)
        for row in (worst.double() >= exact[:, -1] - error).nonzero().flatten().tolist():
            everything = torch.arange(len(rows), device=rows.device)[None]
            query = queries[row : row + 1]
            found[row], exact[row] = _ranked(query, rows, everything, k, metric)
    score = (-exact).clamp(min=0).sqrt() if metric == "euclidean" else exact
    return Neighbours(found, score.float())


@functools.cache
def _faiss() -> Any:
    """Return the module, or None where it is not installed."""
    if importlib.util.find_spec("faiss") is None:
        return None
    logging.getLogger("faiss").setLevel(logging.WARNING)  # it reports how it is loaded
    import faiss

    return faiss


def _search_by_faiss(
    faiss: Any, queries: Tensor, rows: Tensor, k: int, metric: Metric
) -> tuple[Tensor, Tensor]:
    """Return indices and scores of k rows for each query, the nearest first."""
    kind = faiss.METRIC_L2 if metric == "euclidean" else faiss.METRIC_INNER_PRODUCT
    if queries.is_cuda and faiss.get_num_gpus():
        importlib.import_module("faiss.contrib.torch_utils")  # knn_gpu takes tensors with it
        resources = faiss.StandardGpuResources()
        device = queries.device.index or 0
        score, index = faiss.knn_gpu(
            resources, queries.contiguous(), rows.contiguous(), k, metric=kind, device=device
        )
        return index, score
    faiss.omp_set_num_threads(torch.get_num_threads())
    arrays = (queries.cpu().contiguous().numpy(), rows.cpu().contiguous().numpy())
    score, index = faiss.knn(*arrays, k, metric=kind)
    return torch.from_numpy(index).to(rows.device), torch.from_numpy(score).to(rows.device)


def _search_by_torch(
    queries: Tensor | Rows, rows: Tensor | Rows, k: int, metric: Metric
) -> tuple[Tensor, Tensor]:
    """Return the same by matrix products, in blocks of queries and of rows."""
    width = max(min(len(rows), BLOCK // (4 * 256)), k)
    height = max(1, BLOCK // (4 * width))
    found = []
    for first in range(0, len(queries), height):
        some = queries[first : first + height]
        best, index = some.new_empty(len(some), 0), some.new_empty(len(some), 0, dtype=torch.long)
        for start in range(0, len(rows), width):
            scores = _nearness(some, rows[start : start + width], metric)
            new = scores.topk(min(k, scores.shape[1]), dim=1)
            both = torch.cat([best, new.values], 1).topk(min(k, start + scores.shape[1]), dim=1)
            index = torch.cat([index, new.indices + start], 1).gather(1, both.indices)
            best = both.values
        found.append((index, -best if metric == "euclidean" else best))
    return torch.cat([index for index, _ in found]), torch.cat([score for _, score in found])


def _nearness(queries: Tensor, rows: Tensor, metric: Metric) -> Tensor:
    """Return products, or negative squared distances."""
    products = queries @ rows.T
    if metric == "product":
        return products
    lengths = (queries.square().sum(1), rows.square().sum(1))
    return 2 * products - lengths[0][:, None] - lengths[1]


def _ranked(
    queries: Tensor | Rows, rows: Tensor | Rows, index: Tensor, k: int, metric: Metric
) -> tuple[Tensor, Tensor]:
    """Return the k best of the candidates (n, c) of each query, by double precision."""
    order = index.sort(1).values  # so that a stable sort prefers the lower index
    scores = []
    step = max(1, BLOCK // (8 * order.shape[1] * max(rows.shape[1], 1)))
    for number, candidates in enumerate(order.split(step)):
        some = queries[number * step : (number + 1) * step]
        near = rows[candidates].double()
        if metric == "product":
            scores.append((near * some.double()[:, None]).sum(2))
        else:
            scores.append(-(near - some.double()[:, None]).square().sum(2))
    exact = torch.cat(scores)
    chosen = exact.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return order.gather(1, chosen), exact.gather(1, chosen)


def _rounding(queries: Tensor | Rows, rows: Tensor | Rows) -> Tensor:
    """Return (n,) how wrong the float32 score of a query with any row can be."""
    unit = {"highest": 2.0**-24, "high": 2.0**-11, "medium": 2.0**-8}
    lengths = [torch.cat([part.norm(dim=1) for part in parts(x)]).double() for x in (queries, rows)]
    length, longest = lengths[0], lengths[1].max()
    size = (length + longest).square()  # above the product and the squared distance
    precision = (
        unit[torch.get_float32_matmul_precision()]
        if rows.device.type == "cuda"
        else unit["highest"]
    )
    return 4 * math.sqrt(rows.shape[1]) * precision * size


def _check(queries: Tensor | Rows, rows: Tensor | Rows, k: int, metric: str, backend: str) -> None:
    if queries.ndim != 2 or rows.ndim != 2 or queries.shape[1] != rows.shape[1]:
        shapes = f"{tuple(queries.shape)} and {tuple(rows.shape)}"
        raise ValueError(f"queries and rows must be tables of equal width, their shapes: {shapes}")
    if not 0 <= k <= len(rows):
        raise ValueError(f"k is {k}, but there are {len(rows)} rows to choose from")
    if metric not in get_args(Metric):
        raise ValueError(f"metric {metric!r} is unknown; use one of {get_args(Metric)}")
    if backend not in get_args(Backend):
        raise ValueError(f"backend {backend!r} is unknown; use one of {get_args(Backend)}")
    if backend == "faiss" and _faiss() is None:
        raise ValueError("faiss is not installed; leave backend at 'auto' to search with torch")
