"""What all losses share: how targets are read, what unknown entries do, how entries become one number."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import torch
from pydantic import Field
from torch import Tensor

from labelwise.errors import LabelwiseError, unknown_name

Unknown = Literal["ignore", "negative"]
Reduction = Literal["mean", "sum", "batch", "none"]

# The ranges that `create` checks; the functions' own signatures carry them.
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]

# Stands for log(0) where -inf would turn into NaN in a gradient.
LOG_ZERO = -1e30


def read_entries(
    logits: Tensor, targets: Tensor, unknown: Unknown, unknown_weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits in float32 or float64, targets in [0, 1] and the weight of each entry, all [B, N].

    Entries of weight 0 get the constant logit 0: their gradient is exactly zero even if the logit is not finite.
    Values are not checked here, since that would stall a GPU at every step; the data readers check them once.
    """
    if logits.ndim != 2 or targets.shape != logits.shape:
        raise LabelwiseError(
            f"logits {tuple(logits.shape)} and targets {tuple(targets.shape)} must both be [batch, labels]"
        )
    if unknown not in get_args(Unknown):
        raise unknown_name("treatment of unknown entries", unknown, get_args(Unknown))
    # Half precision cannot hold what sigmoids and logarithms make of ordinary logits.
    exact = logits if logits.dtype == torch.float64 else logits.float()
    is_unknown = targets < 0
    target = targets.to(exact.dtype).masked_fill(is_unknown, 0.0)
    weight = torch.ones_like(exact).masked_fill(is_unknown, unknown_weight if unknown == "negative" else 0.0)
    return exact.masked_fill(weight == 0, 0.0), target, weight


def mix(target: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """A soft target t (MixUp, label smoothing) is t parts positive and 1 - t parts negative."""
    return target * positive + (1 - target) * negative


def check_reduction(reduction: str) -> None:
    if reduction not in get_args(Reduction):
        raise unknown_name("reduction", reduction, get_args(Reduction))


def reduce(loss: Tensor, weight: Tensor, reduction: Reduction) -> Tensor:
    """`loss` and `weight` [B, ...]. `mean` is the weighted mean over the entries that count, 0 if none does."""
    check_reduction(reduction)
    weighted = loss * weight
    if reduction == "none":
        return weighted
    total = weighted.sum()
    if reduction == "sum":
        return total
    if reduction == "batch":
        return total / max(1, len(loss))
    counted = weight.sum()
    return total / torch.where(counted > 0, counted, 1.0)
