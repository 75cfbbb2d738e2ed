"""Losses that two or more methods share, as pure functions of tensors.

Two views of a batch of B images are stacked view-major: row i and row B + i show the same image.
All losses are means over rows, computed in full precision under autocast. Without rows they are an
exact zero with a graph, because a batch may have no labelled or no unlabelled image.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gcdbench.ops.labels import UNLABELLED
from gcdbench.ops.precision import full_precision, widen
from gcdbench.ops.unit import unit_rows


def mean_or_zero(per_row: Tensor) -> Tensor:
    """Return the mean of per-row losses; without rows, a zero whose gradients are zeros."""
    return per_row.sum() / max(per_row.numel(), 1)


@full_precision
def info_nce(z: Tensor, *, temperature: float = 1.0, normalise: bool = True) -> Tensor:
    """Return the InfoNCE loss: the two views of an image against all other rows of the batch.

    Args:
        z: (..., 2B, d) projections, view-major; a loss for each of the leading dimensions.
        temperature: of the softmax over the 2B - 1 other rows.
        normalise: whether to bring the rows of `z` to length one first.
    """
    n = z.shape[-2]
    _check_two_views(n)
    scores = _scores_of_others(unit_rows(z) if normalise else z, temperature).flatten(0, -2)
    other_view = torch.arange(n, device=z.device).roll(n // 2)
    if z.ndim > 2:
        other_view = other_view.repeat(z.shape[:-2].numel())
    loss = F.cross_entropy(scores, other_view, reduction="none").view(z.shape[:-1])
    return loss.mean(-1) if n else loss.sum(-1)


@full_precision
def sup_con(
    z: Tensor,
    labels: Tensor,
    *,
    temperature: float = 0.07,
    weight: Tensor | None = None,
    normalise: bool = True,
) -> Tensor:
    """Return the supervised contrastive loss: every row against the other rows of its label.

    The factor temperature / 0.07 of the first published code is left out: it is one at the
    temperature that every method here uses.

    Args:
        z: (..., n, d) projections, all views stacked; a loss for each of the leading dimensions.
        labels: (..., n) one label per row, so repeated for every view.
        temperature: of the softmax over the n - 1 other rows.
        weight: (n,) factor of each anchor's loss, applied after its positives are averaged. (A
            factor on the single log-probabilities would cancel in that average.)
        normalise: whether to bring the rows of `z` to length one first.
    """
    scores = _scores_of_others(unit_rows(z) if normalise else z, temperature)
    positive = labels[..., None] == labels[..., None, :]
    positive.diagonal(dim1=-2, dim2=-1).fill_(False)
    count = positive.sum(-1, keepdim=True, dtype=z.dtype).clamp(min=1)  # integers give float32
    share = positive / (count * -max(z.shape[-2], 1))
    if weight is not None:
        share = share * weight[:, None]
    return (scores.log_softmax(-1) * share).sum((-2, -1))


def _scores_of_others(z: Tensor, temperature: float) -> Tensor:
    """Return the (n, n) products of all rows, so low on the diagonal that a softmax ignores it.

    Half of the lowest number: its logarithm must be finite, also if a single row has no others.
    """
    lowest = torch.finfo(z.dtype).min / 2
    itself = torch.eye(z.shape[-2], dtype=z.dtype, device=z.device)
    scaled = _scaled(z, temperature)
    if z.ndim == 2:
        return torch.addmm(itself, scaled, z.T, beta=lowest)
    return torch.baddbmm(itself.expand(len(z), -1, -1), scaled, z.mT, beta=lowest)


@full_precision
def soft_cross_entropy(logits: Tensor, target: Tensor, *, temperature: float = 1.0) -> Tensor:
    """Return the cross-entropy of every row to its target distribution, over the last dimension."""
    return -(target * _scaled(logits, temperature).log_softmax(-1)).sum(-1)


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    return logits if temperature == 1 else logits / temperature


@full_precision
def self_distillation(
    logits: Tensor, *, student_temp: float = 0.1, teacher_temp: float = 0.04
) -> Tensor:
    """Return the cross-entropy of each view to the other view's sharpened prediction.

    Args:
        logits: (2B, K), view-major. The teacher is the same output, detached.
        student_temp: temperature of the taught prediction.
        teacher_temp: temperature of the teaching one, see `teacher_temperature`.
    """
    _check_two_views(len(logits))
    teacher = (logits.detach() / teacher_temp).softmax(1).roll(len(logits) // 2, dims=0)
    log_p = _scaled(logits, student_temp).log_softmax(1)
    return (teacher * log_p).sum() / -max(len(logits), 1)


def teacher_temperature(
    epoch: int, epochs: int, *, start: float = 0.07, end: float = 0.04, warmup: int = 30
) -> float:
    """Return the teacher's temperature in a 0-based epoch: linear from start to end, then flat.

    The warm-up is cut to the length of the run, which therefore always ends at `end` (unless it
    has a single epoch).

    >>> [round(teacher_temperature(t, 200), 3) for t in (0, 14, 29, 199)]
    [0.07, 0.056, 0.04, 0.04]
    """
    warmup = min(warmup, epochs)
    if epoch >= warmup:
        return end
    return start + (end - start) * epoch / max(warmup - 1, 1)


@full_precision
def mean_entropy_deficit(logits: Tensor, *, temperature: float = 0.1) -> Tensor:
    """Return log K - H(p), p the mean posterior of the rows: zero when all classes are used."""
    if not len(logits):
        return mean_or_zero(logits)
    p = _scaled(logits, temperature).softmax(1).mean(0)
    return _SumPLogP.apply(p) + math.log(logits.shape[1])


class _SumPLogP(torch.autograd.Function):
    """Minus the entropy of a distribution; a class of probability zero adds nothing."""

    @staticmethod
    def forward(ctx: Any, p: Tensor) -> Tensor:
        # finite at zero, where the slope of a softmax is zero as well
        log_p = p.clamp(min=torch.finfo(p.dtype).tiny).log()
        ctx.save_for_backward(log_p)
        return (p * log_p).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (log_p,) = ctx.saved_tensors
        return (log_p + 1) * grads[0]


@full_precision
def cross_entropy_on(
    logits: Tensor,
    labels: Tensor,
    mask: Tensor | None = None,
    *,
    targets: Tensor | None = None,
    rows: Tensor | None = None,
    temperature: float = 1.0,
) -> Tensor:
    """Return the mean cross-entropy over the rows in `mask` whose label is not hidden.

    Args:
        logits: (n, K).
        labels: (n,), UNLABELLED where hidden.
        mask: (n,) bool, all rows if None.
        targets: (n, K) distributions to learn in place of the labels, where these are not hidden.
        rows: those whose label is not hidden and in `mask`, if the caller knows them; they save
            counting, and with targets they are found here otherwise, for which a GPU is waited for.
        temperature: of the posterior.
    """
    known = labels if mask is None else labels.where(mask, UNLABELLED)
    if targets is not None:
        rows = (known != UNLABELLED).nonzero().squeeze(1) if rows is None else rows
        return mean_or_zero(
            soft_cross_entropy(logits[rows], targets[rows], temperature=temperature)
        )
    scaled = _scaled(logits, temperature)
    if rows is not None and len(rows):
        return F.cross_entropy(scaled, known, ignore_index=UNLABELLED)
    loss = F.cross_entropy(scaled, known, ignore_index=UNLABELLED, reduction="sum")
    return loss / (known != UNLABELLED).sum().clamp(min=1)


@full_precision
def smoothed_cross_entropy(
    logits: Tensor, labels: Tensor, alpha: Tensor, *, temperature: float = 0.1
) -> Tensor:
    """Return the mean cross-entropy to alpha x one-hot + (1 - alpha) x uniform.

    Args:
        logits: (n, K).
        labels: (n,).
        alpha: (n,) share of the labelled image in each mixed row.
        temperature: of the posterior.
    """
    log_p = _scaled(logits, temperature).log_softmax(1)
    hard = log_p.gather(1, labels[:, None]).squeeze(1)
    return mean_or_zero(-(alpha * hard + (1 - alpha) * log_p.mean(1)))


def parametric_terms(
    z: Tensor,
    cosines: Tensor,
    labels: Tensor,
    *,
    labelled: Tensor | None = None,
    targets: Tensor | None = None,
    sup_weight: float = 0.35,
    entropy_weight: float = 2.0,
    student_temp: float = 0.1,
    contrast_temp: float = 1.0,
    sup_contrast_temp: float = 0.07,
) -> dict[str, Tensor]:
    """Return the weighted terms that train a projector and a cosine classifier on one feature.

    It is SimGCD's sum without the term in which the classifier teaches itself, whose weight is
    1 - sup_weight too.

    Args:
        z: (2B, e) projections, view-major.
        cosines: (2B, K) of the classifier.
        labels: (2B,), UNLABELLED where hidden.
        labelled: rows whose label is visible; found here if None, for which a GPU is waited for.
        targets: (2B, K) distributions to learn in place of the labels, on labelled rows.
        sup_weight: of the terms that need labels; the others have the rest.
        entropy_weight: of the mean-entropy term, within its share.
        student_temp: of the posterior.
        contrast_temp: of InfoNCE.
        sup_contrast_temp: of SupCon.
    """
    rows = (labels != UNLABELLED).nonzero().squeeze(1) if labelled is None else labelled
    of_classes = classifier_terms(
        cosines,
        labels,
        rows,
        targets=targets,
        sup_weight=sup_weight,
        entropy_weight=entropy_weight,
        student_temp=student_temp,
    )
    contrasts = contrast_terms(
        unit_rows(z),
        labels,
        rows,
        sup_weight=sup_weight,
        contrast_temp=contrast_temp,
        sup_contrast_temp=sup_contrast_temp,
    )
    return {**of_classes, **contrasts}


def classifier_terms(
    cosines: Tensor,
    labels: Tensor,
    rows: Tensor,
    *,
    targets: Tensor | None = None,
    sup_weight: float,
    entropy_weight: float,
    student_temp: float,
) -> dict[str, Tensor]:
    """Return the terms of ``parametric_terms`` that train the classifier; ``rows`` are labelled."""
    logits = widen(cosines) / student_temp
    classify = cross_entropy_on(logits, labels, targets=targets, rows=rows)
    spread = mean_entropy_deficit(logits, temperature=1.0)
    weight = (1 - sup_weight) * entropy_weight
    return {"entropy": weight * spread, "classify": sup_weight * classify}


def contrast_terms(
    z: Tensor,
    labels: Tensor,
    rows: Tensor,
    *,
    sup_weight: float,
    contrast_temp: float,
    sup_contrast_temp: float,
) -> dict[str, Tensor]:
    """Return the terms of ``parametric_terms`` that train the projector, of unit rows z.

    With several projectors at once, z is (p, 2B, e), labels (p, 2B) and every term (p,).
    """
    contrast = info_nce(z, temperature=contrast_temp, normalise=False)
    known, classes = z.index_select(-2, rows), labels.index_select(-1, rows)
    sup_contrast = sup_con(known, classes, temperature=sup_contrast_temp, normalise=False)
    return {"contrast": (1 - sup_weight) * contrast, "sup_contrast": sup_weight * sup_contrast}


def ramp_up(epoch: int, length: int, scale: float = 1.0) -> float:
    """Return the weight of a term that grows as exp(-5 (1 - t/T)^2) to `scale` in T epochs.

    >>> ramp_up(0, 150, 50.0) < 0.34, ramp_up(150, 150, 50.0)
    (True, 50.0)
    """
    missing = 1.0 - min(epoch, length) / length if length else 0.0
    return scale * math.exp(-5.0 * missing**2)


def _check_two_views(rows: int) -> None:
    if rows % 2:
        raise ValueError(
            f"{rows} rows cannot be two views of a batch; stack both views, view-major."
        )
