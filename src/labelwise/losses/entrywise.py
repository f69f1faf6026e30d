"""Losses that treat every entry alone: binary cross-entropy, focal, asymmetric."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from labelwise.losses.common import BelowOne, Fraction, NonNegative, Reduction, Unknown, mix, read_entries, reduce


def bce(
    logits: Tensor,
    targets: Tensor,
    *,
    label_smoothing: BelowOne = 0.0,
    target_threshold: BelowOne | None = None,
    unknown: Unknown = "ignore",
    unknown_weight: NonNegative = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Binary cross-entropy of sigmoid(logits): -log p for a positive, -log(1 - p) for a negative.

    For single-label training by "ResNet strikes back" (Wightman et al. 2021): `target_threshold` makes soft targets
    above it 1 and all others 0, so that a mixture of two pictures shows both labels; then `label_smoothing` s turns a
    target t into (1 - s) t + s / N.

    >>> round(bce(torch.tensor([[0.0, 2.0, 5.0]]), torch.tensor([[1, 0, -1]])).item(), 4)
    1.41
    >>> round(bce(torch.tensor([[0.0, 2.0]]), torch.tensor([[0.7, 0.3]]), target_threshold=0.2).item(), 4)
    0.41
    """
    x, target, weight = read_entries(logits, targets, unknown, unknown_weight)
    if target_threshold is not None:
        target = (target > target_threshold).to(x.dtype)
    if label_smoothing > 0:
        target = (1 - label_smoothing) * target + label_smoothing / target.shape[1]
    return reduce(F.binary_cross_entropy_with_logits(x, target, reduction="none"), weight, reduction)


def focal(
    logits: Tensor,
    targets: Tensor,
    *,
    gamma: NonNegative = 2.0,
    alpha: Fraction | None = None,
    unknown: Unknown = "ignore",
    unknown_weight: NonNegative = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Focal loss (Lin et al. 2017, eq. 4; with `alpha`, eq. 5): easy entries weigh (1 - p_t)^gamma.

    >>> round(focal(torch.tensor([[0.0, 2.0]]), torch.tensor([[1, 0]])).item(), 4)
    0.9117
    """
    x, target, weight = read_entries(logits, targets, unknown, unknown_weight)
    positive, negative = focal_positive(x, gamma), focal_positive(-x, gamma)
    if alpha is not None:
        positive, negative = alpha * positive, (1 - alpha) * negative
    return reduce(mix(target, positive, negative), weight, reduction)


def asymmetric(
    logits: Tensor,
    targets: Tensor,
    *,
    gamma_neg: NonNegative = 4.0,
    gamma_pos: NonNegative = 0.0,
    clip: BelowOne = 0.05,
    detach_weight: bool = False,
    unknown: Unknown = "ignore",
    unknown_weight: NonNegative = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Asymmetric loss (Ridnik et al. 2021, the definition of ASL): negatives are focused harder and shifted.

    L+ = -(1 - p)^gamma_pos log p,  L- = -p_m^gamma_neg log(1 - p_m),  p_m = max(p - clip, 0).
    `detach_weight` leaves the focusing factors out of the gradient, as the authors' training scripts do.

    >>> round(asymmetric(torch.tensor([[0.0, 2.0]]), torch.tensor([[1, 0]])).item(), 4)
    0.7698
    """
    x, target, weight = read_entries(logits, targets, unknown, unknown_weight)
    log_p, log_not_p = F.logsigmoid(x), F.logsigmoid(-x)
    positive_weight = torch.exp(gamma_pos * log_not_p)  # (1 - p)^gamma_pos without a power of zero
    if clip > 0:
        shifted = torch.sigmoid(x) - clip
        kept = shifted > 0
        negative_weight = torch.where(kept, shifted, 1.0) ** gamma_neg
        # log(1 - p + clip), exact where 1 - p vanishes
        log_not_shifted = torch.logaddexp(log_not_p, torch.full_like(x, math.log(clip))).clamp(max=0)
        log_not_shifted = torch.where(kept, log_not_shifted, 0.0)
    else:
        negative_weight, log_not_shifted = torch.exp(gamma_neg * log_p), log_not_p
    if detach_weight:
        positive_weight, negative_weight = positive_weight.detach(), negative_weight.detach()
    return reduce(mix(target, -positive_weight * log_p, -negative_weight * log_not_shifted), weight, reduction)


def focal_positive(x: Tensor, gamma: float) -> Tensor:
    """-(1 - p)^gamma log p; by symmetry the loss of a negative is `focal_positive(-x)`.

    The power goes through exp(gamma log(1 - p)), whose gradient stays finite for every gamma and every logit.
    """
    return -torch.exp(gamma * F.logsigmoid(-x)) * F.logsigmoid(x)
