"""Training and evaluation with a frozen trunk as the field's codes do them, to compare speed with.

Every image passes all blocks with attention between all tokens, every time; of the result the CLS
token is read. The losses are SimGCD's, written out term by term.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@torch.no_grad()
def features(vit: nn.Module, images: Tensor) -> Tensor:
    """Return the CLS features (n, d) of normalised images."""
    return _encode(vit, images)


def _encode(vit: Any, images: Tensor) -> Tensor:
    return vit.forward_features(images)[:, 0]


def simgcd_loss(
    vit: nn.Module,
    projector: nn.Module,
    prototypes: Tensor,
    images: Tensor,
    labels: Tensor,
    *,
    teacher_temp: float,
) -> Tensor:
    """Return SimGCD's loss of two views, stacked, of images with labels or -1."""
    h = _encode(vit, images)
    z = F.normalize(projector(h), dim=1)
    cosines = F.normalize(h, dim=1) @ F.normalize(prototypes, dim=1).T
    half, labels = len(h) // 2, labels.repeat(2)
    known = labels >= 0

    log_p = (cosines / 0.1).log_softmax(1)
    classify = F.nll_loss(log_p[known], labels[known])
    targets = (cosines.detach() / teacher_temp).softmax(1)
    one = -(targets[half:] * log_p[:half]).sum(1).mean()
    two = -(targets[:half] * log_p[half:]).sum(1).mean()
    p = log_p.exp().mean(0)
    spread = math.log(len(p)) + (p * p.log()).sum()

    partner = torch.arange(len(z)).roll(half)
    contrast = F.cross_entropy(_others(z @ z.T), partner)
    log_q = _others(z[known] @ z[known].T / 0.07).log_softmax(1)
    same = labels[known][:, None] == labels[known]
    same.fill_diagonal_(False)
    sup_contrast = -(log_q.masked_fill(~same, 0).sum(1) / same.sum(1)).mean()
    unsupervised = (one + two) / 2 + 2 * spread + contrast
    return 0.65 * unsupervised + 0.35 * (classify + sup_contrast)


def _others(scores: Tensor) -> Tensor:
    """Take each row's score with itself away."""
    return scores.masked_fill(torch.eye(len(scores), dtype=torch.bool), -torch.inf)
