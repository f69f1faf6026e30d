"""Two photos as one scene, on cached features: their maps side by side show exactly what both photos show, so the
labels of the scene are the union of theirs. Unlike MixUp and CutMix it mixes no pixels and makes no half labels."""

from __future__ import annotations

import torch
from torch import Tensor


def join_pairs(maps: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Each image of a batch with another one: maps [B, C, H, W] -> [B, C, 2H, W], targets [B, N] in {1, 0, -1}."""
    partner = torch.randperm(len(maps), device=maps.device)
    return torch.cat((maps, maps[partner]), dim=2), union_of_labels(targets, targets[partner])


def union_of_labels(a: Tensor, b: Tensor) -> Tensor:
    """Present in either is present; unknown in one and absent in the other stays unknown.

    >>> union_of_labels(torch.tensor([1, 0, 0, -1, -1]), torch.tensor([-1, 1, 0, 0, -1])).tolist()
    [1, 1, 0, -1, -1]
    """
    either = torch.maximum(a, b)
    return torch.where(((a < 0) | (b < 0)) & (either < 1), -torch.ones_like(either), either)
