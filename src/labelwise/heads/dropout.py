"""Dropout whose random numbers are cheap on a CPU, where PyTorch's own cost a tenth of a training step."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def dropout(x: Tensor, p: float) -> Tensor:
    """Zeros with probability p (to 1/65536), all else divided by 1 - p; for training, from torch's global generator.

    >>> torch.manual_seed(0).initial_seed(), sorted(set(dropout(torch.ones(1000), 0.2).tolist()))
    (0, [0.0, 1.25])
    """
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, p)
    # PyTorch draws 64 random bits for every element of a mask; 16 are enough, so one draw serves four.
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    kept = bits.view(torch.int16)[: x.numel()] >= round(p * 2**16) - 2**15
    return x * kept.to(x.dtype).mul_(1 / (1 - p)).view(x.shape)


class Dropout(nn.Dropout):
    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training and self.p else input
