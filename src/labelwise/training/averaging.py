"""Averaged weights: an exponential moving average of the weights in training (EMA), validated beside them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

Tensors = tuple[Tensor, ...] | list[Tensor]


class AveragedWeights(AveragedModel):
    """A copy of `module` with averaged parameters and buffers.

    Args:
        module: The module in training.
        decay: Weight of the old average in an update.
        warmup: Let the decay rise as (1 + t) / (10 + t) until it reaches `decay`. Without it the weights after the
            first step keep a share of decay^t, which is large in a short training: 34 % after 3,560 steps at 0.9997.
    """

    def __init__(self, module: nn.Module, decay: float, *, warmup: bool = False) -> None:
        super().__init__(module, multi_avg_fn=self._average)
        self.decay, self.warmup = decay, warmup

    def decay_after(self, updates: int) -> float:
        """
        >>> average = AveragedWeights(nn.Linear(1, 1), 0.9997, warmup=True)
        >>> [round(average.decay_after(t), 4) for t in (1, 90, 100_000)]
        [0.1818, 0.91, 0.9997]
        """
        return min(self.decay, (1 + updates) / (10 + updates)) if self.warmup else self.decay

    def _average(self, ours: Tensors, current: Tensors, updates: Tensor | int) -> None:
        get_ema_multi_avg_fn(self.decay_after(int(updates)))(ours, current, updates)

    @torch.no_grad()
    def update_parameters(self, model: nn.Module) -> None:
        """Average the statistics of norms too: the raw ones belong to weights that are thousands of steps ahead."""
        updates = int(self.n_averaged)
        weight = 1 - self.decay_after(updates) if updates else 1.0
        before = [buffer.clone() for buffer in self.module.buffers()]
        super().update_parameters(model)  # copies the buffers, which is right for counters and label slots
        for ours, old in zip(self.module.buffers(), before, strict=True):
            if ours.is_floating_point():
                ours.copy_(old.lerp(ours, weight))
