"""The order of a backbone's layers, and of their weights in memory."""

from __future__ import annotations

from typing import Any

import torch
from timm.models import group_parameters
from torch import nn

from labelwise.errors import LabelwiseError

EARLY = 0.75  # of the groups of layers: a ResNet's stem and first two stages, a ViT's stem and first eight blocks


def early_parameters(model: Any) -> list[nn.Parameter]:
    """Those of a timm model's first groups: its stem, stages or blocks, as its own matcher orders them."""
    try:
        matcher = model.group_matcher(coarse=True)
    except (AttributeError, AssertionError):  # a few families of timm have none, or none that is coarse
        raise LabelwiseError(
            "this backbone does not say in which order its layers come; use freeze none or backbone"
        ) from None
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    groups = group_parameters(model, matcher)  # {place in the order: names}
    groups = {place: found for place, names in groups.items() if (found := learning.keys() & set(names))}
    early = sorted(groups)[: int(len(groups) * EARLY)]
    return [learning[name] for place in early for name in groups[place]]


def put_channels_last(module: nn.Module) -> None:
    """Convolutions are faster so, most of all on a CPU. `module.to` would refuse the rare models with 3-D ones."""
    for parameter in module.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
