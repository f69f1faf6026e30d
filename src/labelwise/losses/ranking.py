"""RankNet over the labels of an image: what Fast0Tag learns its directions with."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from labelwise.losses.common import NonNegative, Reduction, Unknown, read_entries, reduce


def ranking(
    logits: Tensor,
    targets: Tensor,
    *,
    unknown: Unknown = "ignore",
    unknown_weight: NonNegative = 1.0,
    reduction: Reduction = "mean",
) -> Tensor:
    """Every present label of an image above every absent one (RankNet, as in Zhang, Gong & Shah, CVPR 2016).

    For each image the mean of log(1 + exp(absent - present)) over its pairs; one without a pair counts nowhere. With a
    soft target t a label is present by t and absent by 1 - t, and a pair counts by the product.

    >>> import torch
    >>> round(ranking(torch.tensor([[2.0, 0.0, 1.0]]), torch.tensor([[1, 0, 0]])).item(), 4)
    0.2201
    """
    x, present, weight = read_entries(logits, targets, unknown, unknown_weight)
    absent = (1 - present) * weight  # [B, N]
    # One row for each present label rather than [B, N, N]: images have few labels out of many.
    image, label = present.nonzero(as_tuple=True)  # [P]
    pairs = F.softplus(x[image] - x[image, label, None])  # [P, N]
    by_label = present[image, label] * (pairs * absent[image]).sum(dim=1)  # [P]
    mass = present.sum(dim=1) * absent.sum(dim=1)  # [B]
    loss = x.new_zeros(len(x)).index_add(0, image, by_label) / mass.where(mass > 0, 1.0)
    return reduce(loss, (mass > 0).to(x.dtype), reduction)
