"""Averaged weights: an exponential moving average of the weights in training (EMA), validated beside them."""

from __future__ import annotations

import copy
from itertools import chain

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.swa_utils import get_ema_multi_avg_fn


class AveragedWeights:
    """A copy of `module` with averaged parameters and buffers.

    Make it before the module is sharded (FSDP), and shard the copy in the same way.

    Args:
        module: The module in training.
        decay: Weight of the old average in an update.
        warmup: Let the decay rise as (1 + t) / (10 + t) until it reaches `decay`. Without it the weights after the
            first step keep a share of decay^t, which is large in a short training: 34 % after 3,560 steps at 0.9997.
    """

    def __init__(self, module: nn.Module, decay: float, *, warmup: bool = False) -> None:
        self.module = copy.deepcopy(module).requires_grad_(False)
        self.decay, self.warmup = decay, warmup
        self.updates = 0

    def decay_after(self, updates: int) -> float:
        """
        >>> average = AveragedWeights(nn.Linear(1, 1), 0.9997, warmup=True)
        >>> [round(average.decay_after(t), 4) for t in (0, 1, 90, 100_000)]
        [0.0, 0.1818, 0.91, 0.9997]
        """
        if updates == 0:
            return 0.0
        return min(self.decay, (1 + updates) / (10 + updates)) if self.warmup else self.decay

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Norms' statistics are averaged like weights: the raw ones belong to weights that are thousands of steps
        ahead. Whole numbers (counters, label slots) are copied."""
        pairs = list(zip(_tensors(self.module), _tensors(module), strict=True))
        for ours, current in pairs:
            if not ours.is_floating_point():
                ours.copy_(current)
        averages, values = zip(*(pair for pair in pairs if pair[0].is_floating_point()), strict=True)
        get_ema_multi_avg_fn(self.decay_after(self.updates))(averages, values, self.updates)
        self.updates += 1


def _tensors(module: nn.Module) -> list[Tensor]:
    """Parameters and buffers; of sharded ones the part of this process, which is all that an average needs."""
    tensors = chain(module.parameters(), module.buffers())
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach() for tensor in tensors]
