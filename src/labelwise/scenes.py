"""Two photos as one scene: their feature maps side by side show exactly what both photos show, so the labels of the
scene are the union of theirs. Unlike MixUp and CutMix it mixes no pixels and makes no half labels."""

from __future__ import annotations

import torch
from torch import Tensor


def side_by_side(maps: Tensor, beside: Tensor) -> Tensor:
    """Each map of a batch with the one that `beside` [B] names: [B, C, H, W] -> [B, C, 2H, W]."""
    return torch.cat((maps, maps[beside]), dim=2)


def draw_partners(targets: Tensor) -> tuple[Tensor, Tensor]:
    """For each image another one, [B], and the labels of the two together, [B, N]."""
    beside = torch.randperm(len(targets), device=targets.device)
    return beside, union_of_labels(targets, targets[beside])


def union_of_labels(a: Tensor, b: Tensor) -> Tensor:
    """Present in either is present; unknown in one and absent in the other stays unknown.

    >>> union_of_labels(torch.tensor([1, 0, 0, -1, -1]), torch.tensor([-1, 1, 0, 0, -1])).tolist()
    [1, 1, 0, -1, -1]
    """
    either = torch.maximum(a, b)
    return torch.where(((a < 0) | (b < 0)) & (either < 1), -torch.ones_like(either), either)
