"""Grad-CAM (Selvaraju et al., ICCV 2017): what in the backbone's map speaks for a label. Works for every head."""

from __future__ import annotations

import torch
from torch import Tensor

from labelwise.features.compute import evaluating
from labelwise.model import LabelModel


def grad_cam(model: LabelModel, images: Tensor, labels: Tensor) -> Tensor:
    """Maps [B, n, H, W], 0 or more, of the labels with the numbers `labels` [B, n] in `images` [B, 3, size, size].

    With average pooling and a linear layer this is CAM (Zhou et al., CVPR 2016).
    """
    with evaluating(model):
        with torch.no_grad():
            features = model.backbone(images)  # [B, C, H, W]; gradients stop here: the backbone's own are not needed
        with torch.enable_grad():
            features = features.requires_grad_()
            logits = model.head(features).gather(1, labels)  # [B, n]
            maps = []
            for column in logits.unbind(dim=1):
                # Images do not influence each other, so the sum's gradient holds each image's own.
                (gradient,) = torch.autograd.grad(column.sum(), features, retain_graph=True)
                weights = gradient.mean(dim=(2, 3), keepdim=True)  # [B, C, 1, 1], eq. 1
                maps.append((weights * features).sum(dim=1).relu().detach())  # [B, H, W], eq. 2
    return torch.stack(maps, dim=1)
