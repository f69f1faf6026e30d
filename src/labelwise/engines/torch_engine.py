"""A PyTorch module as an engine."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from labelwise.engines.base import Family, Floats


class TorchEngine:
    """Runs where the module's parameters are, in their precision. The module is expected in evaluation mode."""

    family: Family = "torch"

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @torch.inference_mode()
    def __call__(self, images: Floats) -> Floats:
        inputs = torch.from_numpy(images)
        like = next(self.module.parameters(), inputs)
        inputs = inputs.to(like.device, like.dtype).contiguous(memory_format=torch.channels_last)
        out: Floats = np.asarray(self.module(inputs).float().cpu())
        return out
