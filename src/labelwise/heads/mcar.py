"""MCAR (Gao & Zhou, TIP 2021): a second look at the regions where the most probable labels seem to be."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labelwise.heads.attention_configs import McarConfig
from labelwise.heads.base import Head, HeadDetails, as_map
from labelwise.heads.registry import register_head


@register_head(McarConfig)
class McarHead(Head):
    """The larger of two answers for each label: of the whole map, and of the regions of the `regions` best labels.

    What differs from the paper: it crops the regions from the image, enlarges them to the input size and runs the
    backbone on each, which finds details that the first look was too coarse for and costs `regions` more passes. A head
    sees one feature map, which may come from a cache: here the regions are cropped from the map and pooled again. That
    keeps the second look's other gain, features without the rest of the image, at no cost. Regions are found on the
    map's own positions, not on maps enlarged to the image's size. All else is the paper's, and like there both looks
    share all weights and each has a loss of its own.
    """

    config: McarConfig

    def __init__(self, config: McarConfig, in_features: int, labels: int) -> None:
        super().__init__(config, in_features, labels)
        self.classifier = nn.Linear(in_features, labels)

    def forward(self, x: Tensor) -> Tensor:
        whole, local, _ = self._run(as_map(x, self.in_features))
        return torch.cat((whole, local)) if self.training else torch.maximum(whole, local)

    def details(self, x: Tensor) -> HeadDetails:
        """The class attentional maps, as a share of 1."""
        whole, local, maps = self._run(as_map(x, self.in_features))
        shares = maps / maps.sum(dim=(2, 3), keepdim=True)
        return HeadDetails(torch.maximum(whole, local), self.label_query, attention_layers=(shares[:, None],))

    def training_targets(self, targets: Tensor) -> Tensor:
        """Those of the whole map, then the same of the regions: [2 B, N]."""
        return targets.repeat(2, 1) if self.training else targets

    def _run(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The logits of the whole map and of the regions, both [B, N], and the class attentional maps [B, N, H, W]."""
        whole = self.classifier(self._pool(x))  # the global stream
        maps = self.classifier(x.movedim(1, -1)).movedim(-1, 1).sigmoid()  # class attentional maps, eq. 4: [B, N, H, W]
        best = whole.topk(min(self.config.regions, self.labels), dim=1).indices  # [B, R]
        chosen = maps.detach().gather(1, best[..., None, None].expand(-1, -1, *maps.shape[2:]))  # [B, R, H, W]
        rows, columns = (self._interval(chosen.amax(dim=side)) for side in (3, 2))  # eq. 6: [B, R, H], [B, R, W]
        inside = (rows[..., None] & columns[..., None, :])[:, :, None]  # [B, R, 1, H, W]
        local = self.classifier(self._pool(x[:, None], inside)).amax(dim=1)  # the local stream, the best region's logit
        return whole, local, maps

    def _interval(self, profile: Tensor) -> Tensor:
        """Where a row or column belongs to the region, [B, R, n], from the maps' maximum along the other side.

        The profile is scaled to [0, 1]; the interval is where it exceeds the threshold around its peak.
        """
        low, high = profile.amin(dim=2, keepdim=True), profile.amax(dim=2, keepdim=True)
        above = profile - low >= self.config.region_threshold * (high - low)
        gaps = (~above).int().cumsum(dim=2)  # constant along an interval
        at_peak = gaps.gather(2, profile.argmax(dim=2, keepdim=True))
        return above & (gaps == at_peak)

    def _pool(self, x: Tensor, inside: Tensor | None = None) -> Tensor:
        """Features [..., C, H, W] -> [..., C], of all positions or of those `inside` a region [..., 1, H, W]."""
        share = 1 / (x.shape[-2] * x.shape[-1]) if inside is None else inside / inside.sum(dim=(-2, -1), keepdim=True)
        mean = (x * share).sum(dim=(-2, -1))
        if self.config.pooling == "average":
            return mean
        candidates = x if inside is None else x.masked_fill(~inside, float("-inf"))
        return (mean + candidates.amax(dim=(-2, -1))) / 2
