"""One logistic regression for each label on pooled features: a baseline that cannot share anything between labels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from labelwise.errors import LabelwiseError
from labelwise.metrics import average_precision

DECAYS = (1e-4, 1e-3, 1e-2, 1e-1)  # strengths of the penalty to choose from, for each label
_HELD_OUT = 5  # every fifth training image chooses the penalty
_TRIAL = 60  # steps of the fits that only choose: AP has settled long before the weights have


def fit_probes(features: Tensor, targets: Tensor) -> Probes:
    """A weight vector for each label from features [M, C] and targets [M, N] in {1, 0, -1}.

    Each label's penalty is the one with the best average precision on a fifth of the images that the fit has not seen;
    then all images are used. Unknown entries do not count. Nothing is random.
    """
    if not len(features):
        raise LabelwiseError("there are no images to fit the per-label baseline on")
    mean, deviation = features.mean(dim=0), features.std(dim=0, correction=0).clamp_min(1e-6)
    inputs = (features - mean) / deviation
    held_out = torch.arange(len(inputs)) % _HELD_OUT == 0
    quality = []
    for decay in DECAYS:
        weights, bias = logistic_regression(inputs[~held_out], targets[~held_out], torch.tensor(decay), steps=_TRIAL)
        quality.append(average_precision(inputs[held_out] @ weights + bias, targets[held_out]))
    best = torch.stack(quality).nan_to_num(-1).argmax(dim=0)  # [N]
    weights, bias = logistic_regression(inputs, targets, torch.tensor(DECAYS)[best])
    return Probes(weights, bias, mean, deviation)


class Probes:
    def __init__(self, weights: Tensor, bias: Tensor, mean: Tensor, deviation: Tensor) -> None:
        self.weights, self.bias, self.mean, self.deviation = weights, bias, mean, deviation  # [C, N], [N], [C], [C]

    def logits(self, features: Tensor) -> np.ndarray:
        """[M, C] -> [M, N]"""
        out: np.ndarray = ((features - self.mean) / self.deviation @ self.weights + self.bias).numpy()
        return out


def logistic_regression(inputs: Tensor, targets: Tensor, decay: Tensor, steps: int = 200) -> tuple[Tensor, Tensor]:
    """Weights [C, N] and biases [N] that minimise, label by label, the mean cross-entropy over its known images plus
    decay / 2 x the sum of its squared weights. `decay`: one for all labels, or [N].

    The labels' problems share no parameter and each has one minimum, so solving them in one go gives exactly what N
    separate fits give.
    """
    known = (targets >= 0).to(inputs.dtype)  # [M, N]
    share = known / known.sum(dim=0).clamp_min(1)
    wanted = (targets == 1).to(inputs.dtype)
    weights = torch.zeros(inputs.shape[1], targets.shape[1], dtype=inputs.dtype, requires_grad=True)
    bias = torch.zeros(targets.shape[1], dtype=inputs.dtype, requires_grad=True)
    solver = torch.optim.LBFGS(
        [weights, bias], max_iter=steps, history_size=20, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        entropy = F.binary_cross_entropy_with_logits(inputs @ weights + bias, wanted, reduction="none")
        loss = (entropy * share).sum() + (decay / 2 * weights.square().sum(dim=0)).sum()
        loss.backward()
        return loss

    solver.step(closure)
    return weights.detach(), bias.detach()
