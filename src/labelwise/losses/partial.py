"""Losses for images of which few labels are known, down to one positive per image: EM with asymmetric pseudo-labels,
ROLE and GPR. All entries count, so `mean` is over B x N; what is known costs its cross-entropy."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from labelwise.losses.functional import Count, Fraction, NonNegative, Positive, Reduction, read_entries, reduce


def em(
    logits: Tensor,
    targets: Tensor,
    *,
    alpha: NonNegative = 0.1,
    beta: NonNegative = 0.2,
    pseudo_labels: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Entropy-maximisation loss (EM, Zhou et al., ECCV 2022): an unknown label neither counts as absent
    nor is left out; the model is asked to stay undecided about it until the known labels decide.

    A known label costs its cross-entropy, an unknown one -alpha H(p), and one with a pseudo-label q
    beta (-q log p - (1 - q) log(1 - p)). The module chooses the pseudo-labels while it trains (`pseudo_negatives`).

    Args:
        logits: [B, N].
        targets: [B, N]: 1 present, 0 absent, -1 unknown, or soft values in [0, 1].
        alpha: Weight of the entropy; the authors' 0.2 for VOC, 0.1 for COCO and NUS-WIDE, 0.01 for CUB.
        beta: Weight of pseudo-labels; the authors' 0.02 for VOC, 0.9 for COCO, 0.2 for NUS-WIDE, 0.4 for CUB.
        pseudo_labels: [B, N]: probabilities for unknown labels, below 0 where there is none.
        reduction: "mean" over all entries, "sum", "batch" (sum / B) or "none".

    >>> logits, targets = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[1, -1, -1]])
    >>> em(logits, targets, reduction="none").round(decimals=4)
    tensor([[ 0.1269, -0.0693, -0.0582]])
    """
    x, target, weight = read_entries(logits, targets, "negative", 1.0)
    unknown = targets < 0
    # H(p), each product with the factor that vanishes first
    entropy = torch.sigmoid(x) * F.softplus(-x) + torch.sigmoid(-x) * F.softplus(x)
    loss = torch.where(unknown, -alpha * entropy, cross_entropy(x, target))
    if pseudo_labels is not None:
        chosen = unknown & (pseudo_labels >= 0)
        loss = torch.where(chosen, beta * cross_entropy(x, pseudo_labels.to(x.dtype).clamp(min=0)), loss)
    return reduce(loss, weight, reduction)


def pseudo_negatives(
    scores: Tensor,
    pseudo_labels: Tensor,
    rounds: int,
    *,
    negative_share: Fraction = 0.9,
    warmup_epochs: Count = 5,
) -> Tensor:
    """Asymmetric pseudo-labelling (APL, Zhou et al.): of each label, the unknown images with the lowest
    scores get their score as a soft, mostly negative label. Which images have a label is never guessed.

    Args:
        scores: [M, N]: the model's probabilities for all training images; NaN where the label is known.
        pseudo_labels: [M, N]: those chosen before, below 0 where there is none.
        rounds: In how many rounds the whole share is chosen; each takes as many images as the others.
        negative_share: Share of a label's unknown images that has a pseudo-label in the end.
        warmup_epochs: Epochs before the first round; after it there is one before every epoch.

    Returns:
        [M, N]: `pseudo_labels` with those of this round.

    >>> scores = torch.tensor([[0.9], [0.1], [0.2], [torch.nan]])
    >>> pseudo_negatives(scores, torch.full((4, 1), -1.0), 1, negative_share=0.7)
    tensor([[-1.0000],
            [ 0.1000],
            [ 0.2000],
            [-1.0000]])
    """
    unknown = ~scores.isnan()
    count = (negative_share * unknown.sum(dim=0).double() / max(1, rounds)).long()  # [N]; float32 rounds 0.99… up
    open_scores = scores.masked_fill(~unknown | (pseudo_labels >= 0), torch.inf)
    # 0 for the lowest score of a label, 1 for the next one, ...
    rank = open_scores.argsort(dim=0, stable=True).argsort(dim=0, stable=True)
    return torch.where((rank < count) & open_scores.isfinite(), scores, pseudo_labels)


def role(
    logits: Tensor,
    targets: Tensor,
    *,
    expected_positives: Positive = 1.5,
    estimates: Tensor | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """Regularised online label estimation (ROLE, Cole et al., CVPR 2021): the labels of each training image
    are estimated along with the model, each of the two learning from the other.

    Half of the loss is the model's: cross-entropy of known labels, cross-entropy to the estimates (a constant there),
    and ((mean number of positives - expected_positives) / N)^2. The other half is the same with model and estimates
    exchanged. Without estimates it is the first and the last part: the paper's EPR loss.

    Args:
        logits: [B, N].
        targets: [B, N]: 1 present, 0 absent, -1 unknown, or soft values in [0, 1].
        expected_positives: How many labels an image has on average: what the loss must be told about your images. The
            authors' 1.5 for VOC, 2.9 for COCO, 1.9 for NUS-WIDE, 31.4 for CUB.
        estimates: [B, N]: logits of the estimated labels. The module keeps them for all images of a training.
        reduction: "mean" over all entries, "sum", "batch" (sum / B) or "none"; the last part is in every entry.

    >>> logits, targets = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[1, -1, -1]])
    >>> round(role(logits, targets).item(), 4), round(role(logits, targets, estimates=logits).item(), 4)
    (0.0448, 0.5917)
    """
    x, target, weight = read_entries(logits, targets, "negative", 1.0)
    known = (targets >= 0).to(x.dtype)
    loss = known * cross_entropy(x, target) + positives_gap(x, expected_positives)
    if estimates is not None:
        y = estimates.to(x.dtype)
        theirs = known * cross_entropy(y, target) + positives_gap(y, expected_positives)
        across = cross_entropy(x, torch.sigmoid(y).detach()) + cross_entropy(y, torch.sigmoid(x).detach())
        loss = (loss + theirs + across) / 2
    return reduce(loss, weight, reduction)


def adam_step(
    value: Tensor, gradient: Tensor, first: Tensor, second: Tensor, step: int, *, estimate_lr: Positive = 0.01
) -> None:
    """One step of Adam, in place; betas 0.9 and 0.999. ROLE's estimates learn by it.

    Args:
        value: What is learned.
        gradient: Of the loss, of the same shape.
        first: Mean of the gradients so far.
        second: Mean of their squares.
        step: Number of this step, from 1.
        estimate_lr: Its learning rate, constant; the authors' is ten times the classifier's 0.001.
    """
    first.lerp_(gradient, 0.1)
    second.lerp_(gradient.square(), 0.001)
    scale = (second / (1 - 0.999**step)).sqrt_().add_(1e-8)
    value.addcdiv_(first, scale, value=-estimate_lr / (1 - 0.9**step))


def gpr(
    logits: Tensor,
    targets: Tensor,
    *,
    k_first: tuple[float, float] = (0.0, -2.0),
    k_last: tuple[float, float] = (2.0, -2.0),
    v_first: tuple[float, Positive] = (0.5, 2.0),
    v_last: tuple[float, Positive] = (0.8, 0.5),
    q_pos: Positive = 0.01,
    q_neg: Positive = 1.0,
    pseudo_weights: tuple[Fraction, Fraction] = (0.3, 0.8),
    expected_positives: Positive = 1.5,
    regularisation: NonNegative = 0.001,
    epoch: int = 1,
    epochs: int = 1,
    reduction: Reduction = "mean",
) -> Tensor:
    """Generalised pseudo-label robust loss (GPR, Tran et al., ICCV 2025), on the robust loss of Chen et al. (GR, IJCAI
    2024): an unknown label counts as present with probability k and as absent with 1 - k, by losses that bound what a
    wrong guess costs, and with weight v. Both k and v follow the model's own score p and change over the epochs.

    unknown: v (k (1 - p^q_pos) / q_pos + (1 - k) (1 - (1 - p)^q_neg) / q_neg), k = sigmoid(w p + b),
    v = exp(-((p - mu) / sigma)^2 / 2); k and v are constants of the gradient. A target strictly between 0 and 1 is a
    pseudo-label t: its cross-entropy has the weight v if t < 0.5, else 1 - v within `pseudo_weights`. The authors get
    theirs from CLIP. To all of it comes `regularisation` times the last part of `role`.

    Args:
        logits: [B, N].
        targets: [B, N]: 1 present, 0 absent, -1 unknown, and values between 0 and 1: pseudo-labels (the authors' 0.9).
        k_first: w and b of k in the first epoch.
        k_last: w and b in the last one; the authors' (10, -8) for COCO.
        v_first: mu and sigma of v in the first epoch.
        v_last: mu and sigma in the last one.
        q_pos: From cross-entropy (near 0) to the bounded 1 - p (1), for unknown labels as present ones.
        q_neg: The same for them as absent ones.
        pseudo_weights: The smallest and the largest weight of a positive pseudo-label.
        expected_positives: How many labels an image has on average.
        regularisation: Its weight; the authors' 0.05 for VOC, 0.001 for COCO.
        epoch: The current epoch, from 0; training sets it.
        epochs: How many there are; training sets it.
        reduction: "mean" over all entries, "sum", "batch" (sum / B) or "none"; the last part is in every entry.

    >>> logits, targets = torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([[1, -1, -1]])
    >>> gpr(logits, targets, regularisation=0, reduction="none").round(decimals=4)
    tensor([[0.1269, 0.4605, 0.2639]])
    """
    x, target, weight = read_entries(logits, targets, "negative", 1.0)
    p = torch.sigmoid(x).detach()
    # As in the authors' code, k runs from the first epoch's values and v ends at the last epoch's.
    w, b = between(k_first, k_last, epoch / epochs)
    mu, sigma = between(v_first, v_last, (epoch + 1) / epochs)
    k, v = torch.sigmoid(w * p + b), torch.exp(-(((p - mu) / sigma) ** 2) / 2)
    # (1 - p^q) / q without a power of zero
    as_present = -torch.expm1(q_pos * F.logsigmoid(x)) / q_pos
    as_absent = -torch.expm1(q_neg * F.logsigmoid(-x)) / q_neg
    guessed = (target > 0) & (target < 1)
    of_guess = torch.where(target < 0.5, v, (1 - v).clamp(*pseudo_weights))
    loss = torch.where(guessed, of_guess, 1.0) * cross_entropy(x, target)
    loss = torch.where(targets < 0, v * (k * as_present + (1 - k) * as_absent), loss)
    return reduce(loss + regularisation * positives_gap(x, expected_positives), weight, reduction)


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    """-t log p - (1 - t) log(1 - p) of each entry."""
    return F.binary_cross_entropy_with_logits(x, target, reduction="none")


def positives_gap(x: Tensor, expected: float) -> Tensor:
    """How far the mean number of positives is from the expected one, as a share of the labels, squared."""
    return ((torch.sigmoid(x).sum(dim=1).mean() - expected) / x.shape[1]) ** 2


def between(first: tuple[float, float], last: tuple[float, float], share: float) -> tuple[float, float]:
    """On the line from `first` to `last`.

    >>> between((0.0, 1.0), (2.0, 3.0), 0.5)
    (1.0, 2.0)
    """
    share = min(share, 1.0)
    return first[0] + share * (last[0] - first[0]), first[1] + share * (last[1] - first[1])
