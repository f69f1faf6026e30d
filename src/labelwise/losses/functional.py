"""Multi-label losses as pure functions; their keyword arguments are the options of `losses.create`.

At the end: how all of them read targets, treat unknown entries and reduce entries to one number.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, get_args

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from labelwise.core.errors import LabelwiseError, unknown_name

Unknown = Literal["ignore", "negative"]
Reduction = Literal["mean", "sum", "batch", "none"]

# The ranges that `create` checks: it reads them from the functions' signatures.
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=0)]

# Stands for log(0): -inf would turn into NaN in a gradient.
LOG_ZERO = -1e30


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

    Args:
        logits: [B, N].
        targets: [B, N]: 1 present, 0 absent, -1 unknown, or soft values in [0, 1].
        label_smoothing: s turns a target t into (1 - s) t + s / N, after `target_threshold` (both: "ResNet strikes
            back", Wightman et al. 2021).
        target_threshold: Soft targets above it become 1 and all others 0, so that a mixture of two images has the
            labels of both.
        unknown: What an unknown entry (-1) is. "ignore": it counts nowhere; "negative": absent, with `unknown_weight`.
        unknown_weight: Weight of unknown entries with unknown="negative".
        reduction: "mean" over the entries that count, "sum", "batch" (sum / B) or "none".

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
    """Focal loss (Lin et al., ICCV 2017, eq. 4; with `alpha`, eq. 5): easy entries weigh (1 - p_t)^gamma.

    Args:
        logits: [B, N].
        targets: [B, N]: 1 present, 0 absent, -1 unknown, or soft values in [0, 1].
        gamma: How much easy entries are damped; 0 is `bce`.
        alpha: Weight of positives; negatives weigh 1 - alpha. None: no weights.
        unknown: What an unknown entry (-1) is. "ignore": it counts nowhere; "negative": absent, with `unknown_weight`.
        unknown_weight: Weight of unknown entries with unknown="negative".
        reduction: "mean" over the entries that count, "sum", "batch" (sum / B) or "none".

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
    """Asymmetric loss (ASL, Ridnik et al., ICCV 2021): easy negatives are damped more than easy positives.

    L+ = -(1 - p)^gamma_pos log p,  L- = -p_m^gamma_neg log(1 - p_m),  p_m = max(p - clip, 0).

    Args:
        logits: [B, N].
        targets: [B, N]: 1 present, 0 absent, -1 unknown, or soft values in [0, 1].
        gamma_neg: How much easy negatives are damped.
        gamma_pos: How much easy positives are damped.
        clip: Negatives with a probability below it have no loss.
        detach_weight: Leave the focusing factors out of the gradient, as the authors' training scripts do.
        unknown: What an unknown entry (-1) is. "ignore": it counts nowhere; "negative": absent, with `unknown_weight`.
        unknown_weight: Weight of unknown entries with unknown="negative".
        reduction: "mean" over the entries that count, "sum", "batch" (sum / B) or "none".

    >>> round(asymmetric(torch.tensor([[0.0, 2.0]]), torch.tensor([[1, 0]])).item(), 4)
    0.7698
    """
    x, target, weight = read_entries(logits, targets, unknown, unknown_weight)
    return reduce(mix(target, *asymmetric_entries(x, gamma_neg, gamma_pos, clip, detach_weight)), weight, reduction)


def asymmetric_entries(
    x: Tensor, gamma_neg: float, gamma_pos: float, clip: float, detach_weight: bool
) -> tuple[Tensor, Tensor]:
    """The asymmetric loss of each entry [B, N] if it is a positive, and if it is a negative."""
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
    return -positive_weight * log_p, -negative_weight * log_not_shifted


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
    along the batch for every label. Images and labels without a positive are left out. An entry with soft target t is
    in the sum of positives with weight t and in the sum of negatives with weight 1 - t.

    Args:
        logits: [B, N].
        targets: [B, N]: 1 present, 0 absent, -1 unknown, or soft values in [0, 1].
        temperature_pos: T_p.
        temperature_neg: T_n.
        unknown: What an unknown entry (-1) is. "ignore": it counts nowhere; "negative": absent, with `unknown_weight`.
        unknown_weight: Weight of unknown entries with unknown="negative".
        reduction: "mean" adds the mean over images and the mean over labels; "sum"; "batch" (sum / B).

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


def ranking(
    logits: Tensor,
    targets: Tensor,
    *,
    penalty: Literal["logistic", "hinge"] = "logistic",
    divide_by: Literal["pairs", "violations", "present"] = "pairs",
    unknown: Unknown = "ignore",
    unknown_weight: NonNegative = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Pairwise ranking: every present label of an image above every absent one (RankNet, as in Fast0Tag, CVPR 2016).

    For each image, the sum over its pairs, divided by their number; an image without a pair counts nowhere. A label
    with soft target t is present with weight t and absent with weight 1 - t; a pair has the product.

    Args:
        logits: [B, N].
        targets: [B, N]: 1 present, 0 absent, -1 unknown, or soft values in [0, 1].
        penalty: Of a pair. "logistic": log(1 + exp(absent - present)); "hinge": max(1 + absent - present, 0), as in
            LESA (CVPR 2020) and BiAM (ICCV 2021).
        divide_by: What the sum over an image's pairs is divided by. "pairs": their number; "violations": the number
            that have a loss, as in LESA's and BiAM's code; "present": the number of present labels, as in SDL (ICCV
            2021).
        unknown: What an unknown entry (-1) is. "ignore": it counts nowhere; "negative": absent, with `unknown_weight`.
        unknown_weight: Weight of unknown entries with unknown="negative".
        reduction: "mean" over the images that count, "sum", "batch" (sum / B) or "none".

    >>> round(ranking(torch.tensor([[2.0, 0.0, 1.0]]), torch.tensor([[1, 0, 0]])).item(), 4)
    0.2201
    """
    x, present, weight = read_entries(logits, targets, unknown, unknown_weight)
    absent = (1 - present) * weight  # [B, N]
    # One row for each present label rather than [B, N, N]: images have few labels out of many.
    image, label = present.nonzero(as_tuple=True)  # [P]
    gap = x[image] - x[image, label, None]  # [P, N]
    pairs = F.softplus(gap) if penalty == "logistic" else F.relu(1 + gap)

    def per_image(entries: Tensor) -> Tensor:  # [P, N] -> [B]
        by_label = present[image, label] * (entries * absent[image]).sum(dim=1)
        return x.new_zeros(len(x)).index_add(0, image, by_label)

    least = torch.finfo(x.dtype).tiny  # 1 / mass of a smaller one is infinite
    mass = present.sum(dim=1) * absent.sum(dim=1)  # [B]
    counts = mass > least
    if divide_by == "present":
        mass = present.sum(dim=1)
    elif divide_by == "violations":
        mass = per_image((pairs > 0).to(x.dtype))
    loss = per_image(pairs) / mass.where(mass > least, 1.0)
    return reduce(loss * counts, counts.to(x.dtype), reduction)


def softmax_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    label_smoothing: BelowOne = 0.0,
    unknown: Unknown = "ignore",
    unknown_weight: NonNegative = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Softmax cross-entropy, one loss per image.

    Args:
        logits: [B, N].
        targets: Label numbers [B] (-1 unknown), or [B, N] one-hot or soft. Rows of [B, N] are scaled to sum 1, so that
            several positives share an image evenly; an image without a positive counts nowhere.
        label_smoothing: s gives the fraction s of each image's target to all labels evenly.
        unknown: What an unknown label of [B, N] is. "ignore": not part of its image's softmax; "negative": part of it
            with `unknown_weight`.
        unknown_weight: Weight of unknown labels with unknown="negative".
        reduction: "mean" over the images that count, "sum", "batch" (sum / B) or "none".

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
    """Hill loss (Zhang et al. 2021): negatives have the loss (lam - p) p^2, so that a confident one, which is likely a
    missing label, counts less. Positives have the focal loss of logits lowered by `margin` (focal margin loss).

    Args:
        logits: [B, N].
        targets: [B, N]: 1 present, 0 absent, -1 unknown, or soft values in [0, 1].
        lam: Of the negatives' loss.
        margin: Subtracted from the logits of positives.
        gamma: Of the positives' focal loss.
        unknown: What an unknown entry (-1) is. "ignore": it counts nowhere; "negative": absent, with `unknown_weight`.
        unknown_weight: Weight of unknown entries with unknown="negative".
        reduction: "mean" over the entries that count, "sum", "batch" (sum / B) or "none".

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
    """Self-paced loss correction (Zhang et al. 2021): after some epochs, negatives with p > tau become positives.

    It corrects the focal loss with a margin on positives. A corrected negative has no margin, as in the authors' code.

    Args:
        logits: [B, N].
        targets: [B, N]: 1 present, 0 absent, -1 unknown, or soft values in [0, 1].
        epoch: The current epoch, from 0; training sets it.
        change_epoch: The first epoch with corrections.
        tau: The probability above which a negative becomes a positive.
        margin: Subtracted from the logits of positives.
        gamma: Of the focal loss.
        unknown: What an unknown entry (-1) is. "ignore": it counts nowhere; "negative": absent, with `unknown_weight`.
        unknown_weight: Weight of unknown entries with unknown="negative".
        reduction: "mean" over the entries that count, "sum", "batch" (sum / B) or "none".

    >>> logits, targets = torch.tensor([[0.0, 2.0]]), torch.tensor([[1, 0]])
    >>> [round(splc(logits, targets, epoch=epoch).item(), 4) for epoch in (0, 1)]
    [1.176, 0.3518]
    """
    x, target, weight = read_entries(logits, targets, unknown, unknown_weight)
    negative = focal_positive(-x, gamma)
    if epoch >= change_epoch:
        negative = torch.where(torch.sigmoid(x) > tau, focal_positive(x, gamma), negative)
    return reduce(mix(target, focal_positive(x - margin, gamma), negative), weight, reduction)


def read_entries(
    logits: Tensor, targets: Tensor, unknown: Unknown, unknown_weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits in float32 or float64, targets in [0, 1] and the weight of each entry, all [B, N].

    Entries of weight 0 get the constant logit 0, so their gradient is exactly zero even if the logit is not finite.
    Values are not checked, because that would stall a GPU at every step; the data readers check them once.
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
    """The loss of a soft target t (MixUp, label smoothing): t times the positive's plus 1 - t times the negative's."""
    return target * positive + (1 - target) * negative


def focal_positive(x: Tensor, gamma: float) -> Tensor:
    """-(1 - p)^gamma log p; by symmetry the loss of a negative is `focal_positive(-x)`.

    The power goes through exp(gamma log(1 - p)), whose gradient stays finite for every gamma and every logit.
    """
    return -torch.exp(gamma * F.logsigmoid(-x)) * F.logsigmoid(x)


def log_of(share: Tensor) -> Tensor:
    """log(share), with a finite stand-in for log(0)."""
    return share.log().clamp(min=LOG_ZERO)


def check_reduction(reduction: str) -> None:
    if reduction not in get_args(Reduction):
        raise unknown_name("reduction", reduction, get_args(Reduction))


def reduce(loss: Tensor, weight: Tensor, reduction: Reduction) -> Tensor:
    """One number from `loss` and `weight` [B, ...]. "mean" is the weighted mean, 0 if no entry counts."""
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
