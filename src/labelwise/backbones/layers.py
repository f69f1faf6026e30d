"""The order of a backbone's layers."""

from __future__ import annotations

from typing import Any

from timm.models import group_parameters
from torch import nn

EARLY = 0.75  # of the groups of layers: a ResNet's stem and first two stages, nine of a ViT's stem and twelve blocks


def early_parameters(model: Any) -> list[nn.Parameter]:
    """Those of a timm model's first groups: its stem, stages or blocks, as its own matcher orders them."""
    learning = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    groups = group_parameters(model, model.group_matcher(coarse=True))  # {place in the order: names}
    groups = {place: found for place, names in groups.items() if (found := learning.keys() & set(names))}
    early = sorted(groups)[: int(len(groups) * EARLY)]
    return [learning[name] for place in early for name in groups[place]]
