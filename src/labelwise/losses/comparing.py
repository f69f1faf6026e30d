"""Losses that compare entries with each other: softmax cross-entropy and the two-way loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from labelwise.errors import LabelwiseError
from labelwise.losses.common import (
    LOG_ZERO,
    BelowOne,
    NonNegative,
    Positive,
    Reduction,
    Unknown,
    check_reduction,
    read_entries,
    reduce,
)


def softmax_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    label_smoothing: BelowOne = 0.0,
    unknown: Unknown = "ignore",
    unknown_weight: NonNegative = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Softmax cross-entropy, one loss per image. Targets: label numbers [B] (-1 unknown), or [B, N] one-hot or soft.

    Rows of [B, N] are scaled to sum 1, so several positives share an image evenly; an image with none counts nowhere.
    An unknown label takes no part in its image's softmax (`ignore`) or takes part by `unknown_weight` (`negative`).

    >>> round(softmax_cross_entropy(torch.tensor([[0.0, 2.0], [1.0, 0.0]]), torch.tensor([1, 0])).item(), 4)
    0.2201
    """
    if targets.ndim == 1 and not targets.is_floating_point():
        targets = F.one_hot(targets.clamp(min=0), logits.shape[-1]) * (targets >= 0)[:, None]
    x, target, weight = read_entries(logits, targets, unknown, unknown_weight)
    mass = target.sum(dim=1, keepdim=True)  # [B, 1]
    share = target / torch.where(mass > 0, mass, 1.0)
    if label_smoothing > 0:
        takes_part = (weight > 0).to(x.dtype)
        even = takes_part / takes_part.sum(dim=1, keepdim=True).clamp(min=1)
        share = (1 - label_smoothing) * share + label_smoothing * even
    log_p = F.log_softmax(x + log_of(weight), dim=1)
    loss = -torch.where(share > 0, share * log_p, 0.0).sum(dim=1)  # [B]
    return reduce(loss, (mass > 0).to(x.dtype).squeeze(1), reduction)


def two_way(
    logits: Tensor,
    targets: Tensor,
    *,
    temperature_pos: Positive = 4.0,
    temperature_neg: Positive = 1.0,
    unknown: Unknown = "ignore",
    unknown_weight: NonNegative = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Two-way loss (Kobayashi, CVPR 2023): positives above negatives within each image, and within each label.

    softplus(T_n log sum_neg exp(x / T_n) + T_p log sum_pos exp(-x / T_p)), once along labels for every image and once
    along the batch for every label. Images and labels without a positive are left out; `mean` adds the two means.
    An entry with soft target t stands in the sum of positives by t and in the sum of negatives by 1 - t.

    >>> round(two_way(torch.tensor([[2.0, -1.0], [0.0, 1.0]]), torch.tensor([[1, 0], [0, 1]])).item(), 4)
    0.3079
    """
    check_reduction(reduction)
    if reduction == "none":
        raise LabelwiseError("two-way loss has no value per entry; use reduction 'mean', 'sum' or 'batch'")
    x, target, weight = read_entries(logits, targets, unknown, unknown_weight)
    positives = -x / temperature_pos + log_of(target)
    negatives = x / temperature_neg + log_of((1 - target) * weight)
    total = x.new_zeros(())
    for dim in (1, 0):  # image by image, then label by label
        gap = temperature_neg * negatives.logsumexp(dim) + temperature_pos * positives.logsumexp(dim)
        counts = (target > 0).any(dim).to(x.dtype)
        # `batch` divides both sums by the batch size, also the one over labels
        part = reduce(F.softplus(gap), counts, "mean" if reduction == "mean" else "sum")
        total = total + (part / max(1, len(x)) if reduction == "batch" else part)
    return total


def log_of(share: Tensor) -> Tensor:
    """log(share), with a finite stand-in for log(0)."""
    return share.log().clamp(min=LOG_ZERO)
