"""Mixing of pixels (Mixup, CutMix), token statistics (MixStyle, EFDM) and patches (PatchMix).

The functions are deterministic; shares and partners are drawn by the functions at the end and by
`gcdbench.ops.random`. A share of 1 keeps a row as it is, a share of 0 makes it its partner.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from gcdbench.ops.losses import mean_or_zero
from gcdbench.ops.precision import full_precision
from gcdbench.ops.random import draw_beta, draw_integers, draw_permutation


def mixup(x: Tensor, partners: Tensor, share: Tensor) -> Tensor:
    """Return every row of x (n, ...) blended with its partner row; `share` is (n,)."""
    weight = share.reshape(-1, *[1] * (x.ndim - 1)).to(x.dtype)
    return weight * x + (1 - weight) * x[partners]


def cutmix_boxes(
    share: Tensor, centre_y: Tensor, centre_x: Tensor, *, height: int, width: int
) -> tuple[Tensor, Tensor]:
    """Return a box for every row that covers 1 - share of the image, clipped at the borders.

    Returns:
        (n, 4) boxes as top, bottom, left, right, and the (n,) shares after clipping.
    """
    side = (1 - share.double()).sqrt()
    half_height, half_width = (side * height).long() // 2, (side * width).long() // 2
    top, bottom = ((centre_y + h).long().clamp(0, height) for h in (-half_height, half_height))
    left, right = ((centre_x + w).long().clamp(0, width) for w in (-half_width, half_width))
    covered = ((bottom - top) * (right - left)).double() / (height * width)
    return torch.stack([top, bottom, left, right], dim=1), (1 - covered).to(share.dtype)


def cutmix(images: Tensor, partners: Tensor, boxes: Tensor) -> Tensor:
    """Return images (n, C, H, W) whose box is replaced by that part of their partner."""
    top, bottom, left, right = (edge[:, None] for edge in boxes.T)
    y, x = (torch.arange(size, device=images.device) for size in images.shape[-2:])
    rows, columns = (top <= y) & (y < bottom), (left <= x) & (x < right)
    inside = rows[:, None, :, None] & columns[:, None, None, :]
    return torch.where(inside, images[partners], images)


@full_precision
def mixstyle(tokens: Tensor, partners: Tensor, share: Tensor, *, eps: float = 1e-6) -> Tensor:
    """Return tokens with the mean and deviation of each image blended with its partner's.

    Gradients flow through the normalised tokens alone.

    Args:
        tokens: (n, positions, channels), without the class token.
        partners: (n,) rows.
        share: (n,) of an image's own statistics.
        eps: added to the variance.
    """
    fixed = tokens.detach()
    mean, std = fixed.mean(1, keepdim=True), (fixed.var(1, keepdim=True) + eps).sqrt()
    content = (tokens - mean) / std
    return content * mixup(std, partners, share) + mixup(mean, partners, share)


@full_precision
def efdm(tokens: Tensor, partners: Tensor, share: Tensor) -> Tensor:
    """Return tokens blended with the partner's values of the same rank, per channel.

    Gradients reach an image's own tokens with factor one and the partner's with 1 - share.

    Args:
        tokens: (n, positions, channels), without the class token.
        partners: (n,) rows.
        share: (n,) of an image's own values.
    """
    values, order = tokens.sort(dim=1)
    rank = order.argsort(dim=1)
    matched = values[partners].gather(1, rank)
    return tokens + (1 - share[:, None, None]) * (matched - tokens.detach())


def positive_parameter(values: list[float], *, learn: bool) -> nn.Parameter:
    """Return a parameter whose softplus has the given values: shapes of a Beta, weights of terms.

    >>> F.softplus(positive_parameter([1.5, 0.1], learn=False)).tolist()
    [1.5, 0.10000000149011612]
    """
    raw = torch.tensor(values, dtype=torch.float64).expm1().log()
    return nn.Parameter(raw.float(), requires_grad=learn)


def patch_mix(source: Tensor, target: Tensor, beta: Tensor) -> Tensor:
    """Blend patch tokens (n, patches, d) of two images by the share (n, patches) of the source."""
    return torch.lerp(target, source, beta[..., None].to(source.dtype))


@full_precision
def attention_share(
    beta: Tensor, source_score: Tensor | None = None, target_score: Tensor | None = None
) -> Tensor:
    """Return the share (n,) of the source in a mixed image, its patches weighted by attention.

    Args:
        beta: (n, patches) share of the source in every patch.
        source_score: (n, patches) importance of the source's patches; equal if None.
        target_score: that of the target's patches; equal if None, as in the released codes.
    """
    uniform = torch.full_like(beta, 1 / beta.shape[1])
    of_source = (beta * (uniform if source_score is None else source_score)).sum(1)
    of_target = ((1 - beta) * (uniform if target_score is None else target_score)).sum(1)
    return of_source / (of_source + of_target)


@full_precision
def mixed_feature_loss(
    mixed: Tensor, source: Tensor, target: Tensor, labels: Tensor, share: Tensor
) -> Tensor:
    """Return the loss of finding both origins of mixed features by cosine (PMTrans).

    Args:
        mixed: (n, d).
        source: (n, d) of the labelled images; all of the same label are wanted.
        target: (n, d) of the unlabelled images; only the own one is.
        labels: (n,) of the source images.
        share: (n,) of the source.
    """
    mixed, source, target = (F.normalize(x, dim=1) for x in (mixed, source, target))
    same = labels[:, None] == labels
    to_source = ((mixed @ source.T).log_softmax(1) * same).sum(1)
    to_target = (mixed @ target.T).log_softmax(1).diagonal()
    return mean_or_zero(-(share * to_source + (1 - share) * to_target))


@full_precision
def mixed_label_loss(
    logits: Tensor,
    labels: Tensor,
    pseudo_labels: Tensor,
    confidence: Tensor,
    share: Tensor,
    *,
    fixed_denominators: bool = False,
) -> Tensor:
    """Return the loss of classifying mixed images as both origins, each by its share (PMTrans).

    Args:
        logits: (n, K) of the mixed images.
        labels: (n,) of the source images.
        pseudo_labels: (n,) of the target images.
        confidence: (n,) in the pseudo-labels; it weighs rows against each other, not the sum.
        share: (n,) of the source.
        fixed_denominators: take the sums of weights that a mean is divided by as constants, but
            not those that it is multiplied by, as the official code does. The loss is the same, its
            gradient to the shares is not.
    """
    to_source = F.cross_entropy(logits, labels, reduction="none")
    to_target = F.cross_entropy(logits, pseudo_labels, reduction="none")
    weight, tiny = (1 - share) * confidence, torch.finfo(share.dtype).tiny
    sums = [x.sum().clamp(min=tiny) for x in (share, weight)]
    mass = (1 - share).sum()
    if fixed_denominators:
        share = share * share.sum() / sums[0].detach()
        sums[1] = sums[1].detach()
    weight = weight * mass / sums[1]
    return mean_or_zero(share * to_source + weight * to_target)


def partners_within(labelled: Tensor, *, generator: Generator) -> Tensor:
    """Draw a permutation of a batch that keeps labelled and unlabelled rows among themselves."""
    partners = torch.empty(len(labelled), dtype=torch.long, device=labelled.device)
    for side in (labelled, ~labelled):
        rows = side.nonzero().squeeze(1)
        order = draw_permutation(len(rows), generator=generator, device=labelled.device)
        partners[rows] = rows[order]
    return partners


def partners_across(labelled: Tensor, *, generator: Generator) -> Tensor:
    """Draw a partner from the other side for every row; from the whole batch if there is none.

    Partners repeat where the sides are of unequal size.
    """
    partners = draw_permutation(len(labelled), generator=generator, device=labelled.device)
    sides = [side.nonzero().squeeze(1) for side in (labelled, ~labelled)]
    for rows, others in (sides, sides[::-1]):
        if len(rows) and len(others):
            drawn = draw_integers(len(others), len(rows), generator=generator, device=others.device)
            partners[rows] = others[drawn]
    return partners


def image_pairs(labelled: Tensor, *, generator: Generator) -> tuple[Tensor, Tensor]:
    """Pair labelled with unlabelled images at random, as many as the smaller side has.

    Returns:
        Rows of the labelled and of the unlabelled images, both (m,).
    """
    sides = [side.nonzero().squeeze(1) for side in (labelled, ~labelled)]
    pairs = min(map(len, sides))
    first, second = (
        rows[draw_permutation(len(rows), generator=generator, device=rows.device)[:pairs]]
        for rows in sides
    )
    return first, second


def stacked_pairs(labelled: Tensor) -> tuple[Tensor, Tensor]:
    """Pair rows of a two-view stack as in HiLo's released code: both stacks cut to one length.

    Rows i and m + i of the result are treated as two views of one image, which is true on the
    smaller side only. Kept for the preset that repeats the released code.

    Returns:
        Rows of the labelled and of the unlabelled views in the view-major stack, both (2m,).
    """
    sides = [side.repeat(2).nonzero().squeeze(1) for side in (labelled, ~labelled)]
    rows = min(map(len, sides))
    return sides[0][:rows], sides[1][:rows]


def style_partners(
    labelled: Tensor,
    order: Tensor,
    *,
    across: bool,
    concentration: float,
    generator: Generator,
) -> tuple[Tensor, Tensor]:
    """Draw a partner (n,) and the own share (n,) of every image for mixing styles.

    Args:
        labelled: (n,) mask.
        order: (n,) rows in an order that does not depend on the batch's.
        across: take partners from the other side of the labels, the best stand-in for domains.
        concentration: both of the Beta that shares are drawn from.
        generator: of the draws.
    """
    n, device = len(order), labelled.device
    drawn = (
        partners_across(labelled[order], generator=generator)
        if across
        else draw_permutation(n, generator=generator, device=device)
    )
    partners = torch.empty_like(order)
    partners[order] = order[drawn]
    share = draw_beta(concentration, concentration, n, generator=generator, device=device)
    return partners, share[order.argsort()]
