"""Losses for sets where many labels were never written down: Hill and SPLC (Zhang et al. 2021, arXiv 2112.07368)."""

from __future__ import annotations

import torch
from torch import Tensor

from labelwise.losses.common import Fraction, NonNegative, Reduction, Unknown, mix, read_entries, reduce
from labelwise.losses.entrywise import focal_positive


def hill(
    logits: Tensor,
    targets: Tensor,
    *,
    lam: NonNegative = 1.5,
    margin: float = 1.0,
    gamma: NonNegative = 2.0,
    unknown: Unknown = "ignore",
    unknown_weight: NonNegative = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Hill loss: negatives weigh (lam - p) p^2, so that a confident "negative", likely a missing label, hurts less.

    Positives: focal loss on logits lowered by `margin` (the paper's focal margin loss).

    >>> round(hill(torch.tensor([[0.0, 2.0]]), torch.tensor([[1, 0]])).item(), 4)
    0.5911
    """
    x, target, weight = read_entries(logits, targets, unknown, unknown_weight)
    p = torch.sigmoid(x)
    return reduce(mix(target, focal_positive(x - margin, gamma), (lam - p) * p**2), weight, reduction)


def splc(
    logits: Tensor,
    targets: Tensor,
    *,
    epoch: int = 1,
    change_epoch: int = 1,
    tau: Fraction = 0.6,
    margin: float = 1.0,
    gamma: NonNegative = 2.0,
    unknown: Unknown = "ignore",
    unknown_weight: NonNegative = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Self-paced loss correction: from `change_epoch` on (counted from 0), a negative with p > tau is a positive.

    On top of focal loss with a margin on the positives. A corrected negative is scored without the margin, as in the
    authors' code.

    >>> logits, targets = torch.tensor([[0.0, 2.0]]), torch.tensor([[1, 0]])
    >>> [round(splc(logits, targets, epoch=epoch).item(), 4) for epoch in (0, 1)]
    [1.176, 0.3518]
    """
    x, target, weight = read_entries(logits, targets, unknown, unknown_weight)
    negative = focal_positive(-x, gamma)
    if epoch >= change_epoch:
        negative = torch.where(torch.sigmoid(x) > tau, focal_positive(x, gamma), negative)
    return reduce(mix(target, focal_positive(x - margin, gamma), negative), weight, reduction)
