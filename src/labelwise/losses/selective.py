"""Class-aware selective loss, for data in which most labels of an image are not annotated."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from labelwise.core.errors import LabelwiseError
from labelwise.losses.functional import (
    BelowOne,
    Count,
    Fraction,
    NonNegative,
    Reduction,
    asymmetric_entries,
    mix,
    read_entries,
    reduce,
)


def csl(
    logits: Tensor,
    targets: Tensor,
    *,
    gamma_unknown: NonNegative = 4.0,
    gamma_neg: NonNegative = 1.0,
    gamma_pos: NonNegative = 0.0,
    clip: BelowOne = 0.0,
    top_k: Count = 5,
    top_k_of: Literal["image", "batch"] = "image",
    prior: list[float] | None = None,
    prior_threshold: Fraction = 0.5,
    detach_weight: bool = True,
    unknown_weight: NonNegative = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Class-aware selective loss (CSL, Ben-Baruch et al., CVPR 2022): an unknown label counts as absent unless it is
    likely to be present, in this image or in general; then it counts nowhere.

    Likely are the `top_k` unknown labels with the highest scores, and labels whose `prior` exceeds `prior_threshold`.
    The rest is the asymmetric loss with a focusing factor of its own for unknown labels, so that verified ones matter
    more.

    Args:
        logits: [B, N].
        targets: [B, N]: 1 present, 0 absent, -1 unknown, or soft values in [0, 1].
        gamma_unknown: How much easy unknown labels are damped.
        gamma_neg: How much easy negatives are damped.
        gamma_pos: How much easy positives are damped.
        clip: Unknown labels and negatives with a probability below it have no loss.
        top_k: How many unknown labels of an image are likely.
        top_k_of: "image": those of each image; "batch": `top_k` times B of the whole batch, as in the authors' code.
        prior: Share of all images that have each label, [N]; in a recipe also a CSV file with a row for each label, in
            the labels' order, and the share in the last column. None: only the scores decide.
        prior_threshold: The share above which an unknown label counts nowhere.
        detach_weight: Leave the focusing factors out of the gradient, as the authors' code does.
        unknown_weight: Weight of unknown entries that count.
        reduction: "mean" over the entries that count, "sum" (the authors'), "batch" (sum / B) or "none".

    >>> logits, targets = torch.tensor([[2.0, 1.0, -1.0]]), torch.tensor([[1, -1, -1]])
    >>> csl(logits, targets, top_k=1, reduction="none").round(decimals=4)
    tensor([[0.1269, 0.0000, 0.0016]])
    """
    x, target, weight = read_entries(logits, targets, "negative", unknown_weight)
    unknown = targets < 0
    likely = top_unknown(x, unknown, top_k, whole_batch=top_k_of == "batch")
    if prior is not None:
        if len(prior) != x.shape[1]:
            raise LabelwiseError(f"prior has {len(prior)} values for {x.shape[1]} labels")
        likely = likely | (torch.tensor(prior, device=x.device) > prior_threshold)
    weight = weight.masked_fill(unknown & likely, 0.0)
    positive, negative = asymmetric_entries(x, gamma_neg, gamma_pos, clip, detach_weight)
    _, as_absent = asymmetric_entries(x, gamma_unknown, gamma_pos, clip, detach_weight)
    return reduce(torch.where(unknown, as_absent, mix(target, positive, negative)), weight, reduction)


def top_unknown(x: Tensor, unknown: Tensor, top_k: int, *, whole_batch: bool) -> Tensor:
    """Which of the unknown entries have the highest logits, [B, N].

    >>> x, unknown = torch.tensor([[3.0, 2.0], [1.0, 0.0]]), torch.tensor([[False, True], [True, True]])
    >>> top_unknown(x, unknown, 1, whole_batch=False).tolist()
    [[False, True], [True, False]]
    """
    scores = x.detach().masked_fill(~unknown, -torch.inf)
    if whole_batch:
        scores, top_k = scores.view(1, -1), top_k * len(x)
    top = scores.topk(min(top_k, scores.shape[1]), dim=1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter(1, top, True).view_as(unknown) & unknown
