"""Optimal transport between rows (images) and columns (classes, prototypes), without gradients."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.ops.labels import UNLABELLED
from gcdbench.ops.precision import full_precision


@torch.no_grad()
@full_precision
def sinkhorn(scores: Tensor, *, epsilon: float = 0.05, iterations: int = 3) -> Tensor:
    """Return an assignment of rows to columns in which all columns get about the same share.

    Works in log space: exp(cosine / (0.1 * 0.05)) overflows float32. The rows are normalised last,
    so that they sum to one exactly, and the columns to n/k only approximately.

    Args:
        scores: (..., n, k), bare cosines; leading dimensions (heads, views) are separate problems.
        epsilon: entropic regularisation; smaller is harder.
        iterations: of normalising all columns, then all rows.
    """
    log_q = scores / epsilon
    for _ in range(iterations):
        log_q = log_q - log_q.logsumexp(-2, keepdim=True)
        log_q = log_q - log_q.logsumexp(-1, keepdim=True)
    return log_q.exp()


@torch.no_grad()
@full_precision
def balanced_targets(
    logits: Tensor,
    labels: Tensor,
    *,
    rows: Tensor | None = None,
    first_class: int = 0,
    epsilon: float = 0.05,
    iterations: int = 3,
) -> Tensor:
    """Return targets: the one-hot label of labelled rows, a balanced assignment of the others.

    Args:
        logits: (..., n, K) bare cosines.
        labels: (n,), UNLABELLED where hidden.
        rows: where they are hidden; found here if None, for which a GPU is waited for.
        first_class: unlabelled rows are assigned to the classes from this one on: 0 lets them fall
            on all classes, the number of known classes on new ones only.
        epsilon: see `sinkhorn`.
        iterations: see `sinkhorn`.
    """
    hidden = (labels == UNLABELLED).nonzero().squeeze(1) if rows is None else rows
    one_hot = F.one_hot(labels.clamp(min=0), logits.shape[-1]).to(logits.dtype)
    targets = one_hot.expand(logits.shape).clone()
    q = sinkhorn(logits[..., hidden, first_class:], epsilon=epsilon, iterations=iterations)
    targets[..., hidden, :] = F.pad(q, (first_class, 0))
    return targets


@torch.no_grad()
def unbalanced_transport(
    similarity: Tensor,
    *,
    class_mass: Tensor | None = None,
    epsilon: float = 0.01,
    penalty: float = 0.5,
    stop: Literal["relative", "pot"] = "relative",
    tolerance: float = 1e-4,
    max_sweeps: int | None = None,
) -> Tensor:
    """Return the unbalanced transport plan of rows to classes; rows that fit no class send less.

    Minimises <plan, -similarity> with entropic regularisation and a KL penalty on both marginals,
    in float64: the kernel spans more than float32's range.

    On CUDA, where every look at the change makes the host wait, the rule "relative" is replaced by
    a fixed number of over-relaxed sweeps, after which the plan is nearer than the tolerance.

    Args:
        similarity: (n, C) cosines.
        class_mass: (C,) marginal of the classes; uniform if None. That of the rows is uniform.
        epsilon: entropic regularisation.
        penalty: weight of the deviation from the marginals.
        stop: "relative" ends when no scaling changes by more than the tolerance relatively, looking
            every tenth sweep, after at most 300. "pot" is the rule of POT 0.8, which compares
            absolute changes of small numbers, after at most 1000: it can stop far from the
            solution, and published results contain that.
        tolerance: of the stop rule.
        max_sweeps: instead of the stop rule's own limit.

    Returns:
        (n, C) plan in float64, divided by its sum.
    """
    n, classes = similarity.shape
    if not n:
        return similarity.double()
    scores = similarity.double() / epsilon
    # A common factor of the kernel does not change the normalised plan, but it changes POT's stop
    # rule, which compares absolute numbers.
    kernel = (scores if stop == "pot" else scores - scores.max()).exp()
    columns = (
        kernel.new_full((classes,), 1 / classes) if class_mass is None else class_mass.double()
    )
    exponent = penalty / (penalty + epsilon)
    if similarity.is_cuda and stop == "relative" and max_sweeps is None:
        u, v = _over_relaxed(kernel, columns, exponent, tolerance)
        plan = u[:, None] * kernel * v
        return plan / plan.sum()
    look_every, limit, change = _STOP_RULES[stop]
    u, v = kernel.new_full((n,), 1 / n), kernel.new_full((classes,), 1 / classes)
    for sweep in range(1, (max_sweeps or limit) + 1):
        before = u, v
        u = (1 / n / (kernel @ v)) ** exponent
        v = (columns / (u @ kernel)) ** exponent
        if sweep % look_every == 0 and change(u, v, *before) < tolerance:
            break
    plan = u[:, None] * kernel * v
    return plan / plan.sum()


def _over_relaxed(
    kernel: Tensor, columns: Tensor, exponent: float, tolerance: float
) -> tuple[Tensor, Tensor]:
    """Return the scalings after a number of sweeps that the tolerance decides.

    Each sweep goes 1.7 times as far as a plain one (Lehmann et al., 2021, for the balanced case),
    but for the first three, which bring the scalings near enough. The plan then gains about a
    decimal place in seven sweeps, a plain one in fifty.
    """
    n, classes = kernel.shape
    by_rows, by_columns = kernel * n, kernel / columns
    u, v = kernel.new_full((n,), 1 / n), kernel.new_full((classes,), 1 / classes)
    for _ in range(_PLAIN_SWEEPS):
        u = (by_rows @ v) ** -exponent
        v = (u @ by_columns) ** -exponent
    sweeps = _SWEEPS + 7 * max(math.ceil(math.log10(1e-4 / tolerance)), 0)
    power, own = -exponent * _RELAXATION, 1 - _RELAXATION
    for _ in range(sweeps - _PLAIN_SWEEPS):
        u = u**own * (by_rows @ v) ** power
        v = v**own * (u @ by_columns) ** power
    return u, v


_PLAIN_SWEEPS, _SWEEPS, _RELAXATION = 3, 33, 1.7


def _relative_change(u: Tensor, v: Tensor, u_before: Tensor, v_before: Tensor) -> Tensor:
    return torch.cat([(u / u_before).log(), (v / v_before).log()]).abs().max()


def _pot_change(u: Tensor, v: Tensor, u_before: Tensor, v_before: Tensor) -> Tensor:
    def change(x: Tensor, before: Tensor) -> Tensor:
        return (x - before).abs().max() / torch.cat([x, before]).max().clamp(min=1.0)

    return (change(u, u_before) + change(v, v_before)) / 2


_STOP_RULES = {"relative": (10, 300, _relative_change), "pot": (1, 1000, _pot_change)}
