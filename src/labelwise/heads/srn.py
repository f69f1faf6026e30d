"""SRN (Zhu, Li, Ouyang, Yu & Wang, CVPR 2017): attention maps of all labels, regularised by one another."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from labelwise.heads.attention_configs import SrnConfig
from labelwise.heads.base import Head, HeadDetails, as_map
from labelwise.heads.registry import register_head

_GRID = 14  # sides of the maps that f_sr reads, as in the paper


@register_head(SrnConfig)
class SrnHead(Head):
    """y = (y_cls + y_sr) / 2: average pooling, and a network that reads all labels' weighted attention maps.

    What differs from the paper: it reads attention from ResNet-101's fourth stage and y_cls from its fifth, here both
    read the one map that a head gets. Maps of other sizes than 14 x 14 are resized before f_sr, whose last convolution
    has the size of the map. The paper trains in four steps; here all is trained at once, and as in its second step
    y_att has a loss of its own.
    """

    config: SrnConfig

    def __init__(self, config: SrnConfig, in_features: int, labels: int) -> None:
        super().__init__(config, in_features, labels)
        width = config.width
        self.classifier = nn.Linear(in_features, labels)  # y_cls
        self.attention = nn.Sequential(  # f_att, section 3.2: a score of every label at every position
            nn.Conv2d(in_features, width, 1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, labels, 1),
        )
        self.confidence = nn.Conv2d(in_features, labels, 1)  # W^l, b^l
        self.regularise = nn.Sequential(  # f_sr, section 3.3
            *_convolution(nn.Conv2d(labels, width, 1, bias=False)),
            *_convolution(nn.Conv2d(width, width, 1, bias=False)),
            # Four filters of the size of the map for each channel.
            *_convolution(nn.Conv2d(width, 4 * width, _GRID, groups=width, bias=False)),
            nn.Flatten(),
            nn.Linear(4 * width, labels),
        )

    def forward(self, x: Tensor) -> Tensor:
        logits, auxiliary, _ = self._run(as_map(x, self.in_features))
        return torch.cat((logits, auxiliary)) if self.training else logits

    def details(self, x: Tensor) -> HeadDetails:
        logits, _, attention = self._run(as_map(x, self.in_features))
        return HeadDetails(logits, self.label_query, attention_layers=(attention[:, None],))

    def training_targets(self, targets: Tensor) -> Tensor:
        """Those of y, then the same of y_att: [2 B, N]."""
        return targets.repeat(2, 1) if self.training else targets

    def _run(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """y [B, N], y_att [B, N] and the attention A [B, N, H, W]."""
        scores = self.attention(x)  # Z
        attention = scores.flatten(2).softmax(dim=2).view_as(scores)  # A
        confidence = self.confidence(x)  # S: W^l x_ij + b^l
        auxiliary = (attention * confidence).sum(dim=(2, 3))  # y_att
        weighted = confidence.sigmoid() * attention  # U, eq. 8
        resized = F.interpolate(weighted, size=(_GRID, _GRID), mode="bilinear", align_corners=False)
        # contiguous: the grouped convolution of a map with channels last takes six times as long to train
        regularised = self.regularise(resized.contiguous())  # y_sr
        pooled = self.classifier(x.mean(dim=(2, 3)))  # y_cls
        return (pooled + regularised) / 2, auxiliary, attention  # alpha = 0.5

    def fold_constants(self, tokens: int) -> None:
        """Batch norms become a part of the convolutions before them."""
        layers = list(self.regularise)
        for place, norm in enumerate(layers):
            if isinstance(norm, nn.BatchNorm2d):
                convolution = layers[place - 1]
                assert isinstance(convolution, nn.Conv2d)
                layers[place - 1] = fuse_conv_bn_eval(convolution, norm)
        self.regularise = nn.Sequential(*(layer for layer in layers if not isinstance(layer, nn.BatchNorm2d)))


def _convolution(layer: nn.Conv2d) -> tuple[nn.Module, ...]:
    return layer, nn.BatchNorm2d(layer.out_channels), nn.ReLU()
