"""BiAM (Narayan et al., ICCV 2021): regions enriched by each other and by the scene."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.core.errors import LabelwiseError
from labelwise.heads.base import AttendingHead, as_tokens
from labelwise.heads.layers import Attention, Dropout, mlp
from labelwise.heads.registry import register_head
from labelwise.heads.word_configs import BiamConfig
from labelwise.heads.word_head import LabelVectors, WordHead


@register_head(BiamConfig)
class BiamHead(WordHead, AttendingHead):
    """Spatial resolution stays until the labels are scored: each label's logit is the mean of its k best regions.

    Meant for the loss `ranking` with penalty=hinge and divide_by=violations. The scene's feature x_g is the mean of the
    map; the paper has VGG's 4,096 numbers there.
    """

    config: BiamConfig

    def __init__(self, config: BiamConfig, in_features: int, labels: int, word_vectors: Tensor | None = None) -> None:
        super().__init__(config, in_features, labels, word_vectors)
        out_dim = config.out_dim or in_features
        self.reduce = Convolution(in_features, config.dim, config.kernel)
        self.region_context = RegionContext(config.dim, config.attention_heads, config.dropout)
        self.scene_context = SceneContext(in_features, config.dim, config.kernel, config.scene_dropout)
        self.enrich = nn.Linear(2 * config.dim, out_dim)
        self.label_vectors = LabelVectors(self.word_dim, out_dim, bias=True)

    def run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scores = self._scores(x)
        best = self._best(scores)
        return (scores * best).sum(dim=1), best.transpose(1, 2)

    def _scores(self, x: Tensor) -> Tensor:
        """Every label's score in every region, m: [B, T, N]."""
        tokens, grid = as_tokens(x, self.in_features)  # x_r
        if grid is None:
            if self.config.kernel > 1:
                raise LabelwiseError(
                    "this head has 3x3 convolutions: give it the map [B, C, H, W], not tokens [B, T, C]",
                    options={"head.kernel": 1},
                )
            grid = (1, x.shape[1])
        h = self.reduce(tokens, grid)  # h_r: [B, T, d]
        regions = self.region_context(h)  # e_r
        scene = self.scene_context(h, tokens.mean(dim=1), grid)  # e_g
        enriched = F.leaky_relu(self.enrich(torch.cat((regions, scene), dim=2)), 0.2)  # e_f: [B, T, D]
        return F.linear(enriched, self.label_vectors(self.word_vectors))

    def _best(self, scores: Tensor) -> Tensor:
        """1 / k for each label's k best regions, else 0: [B, T, N]. Maps with fewer regions than k have all."""
        best = (torch.arange(scores.shape[1], device=scores.device) < self.config.top_regions).to(scores.dtype)  # [T]
        share = (best / best.sum())[None, :, None].expand_as(scores)
        return torch.zeros_like(scores).scatter(1, scores.argsort(dim=1, descending=True), share)


class Convolution(nn.Module):
    """Convolution, ReLU and batch norm on the regions of a grid: [B, T, C] -> [B, T, d]."""

    def __init__(self, in_features: int, dim: int, kernel: int) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(in_features, dim, kernel, padding=kernel // 2)
        self.norm = nn.BatchNorm2d(dim)

    def forward(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        out: Tensor = self.norm(F.relu(self.convolution(tokens.transpose(1, 2).unflatten(2, grid))))
        return out.flatten(2).transpose(1, 2)


class RegionContext(nn.Module):
    """The region contextualized block (RCB): self-attention between regions and a feed-forward block, both with
    residuals, neither with a norm."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, dropout)
        self.dropout = Dropout(dropout)
        self.feedforward = mlp(dim, 2 * dim, dim)

    def forward(self, h: Tensor) -> Tensor:  # [B, T, d]
        o = h + self.dropout(self.attention(h, h))  # o_r
        out: Tensor = o + self.feedforward(o)
        return out


class SceneContext(nn.Module):
    """The scene contextualized block (SCB): the scene weighs the channels of all regions, r = sigmoid(mean(q) * k),
    c = r v, e = c + conv(c)."""

    def __init__(self, scene_features: int, dim: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.value = nn.Linear(dim, dim)  # the query is the same, as in the authors' code
        self.key = nn.Linear(scene_features, dim)
        self.dropout = Dropout(dropout)
        self.convolution = Convolution(dim, dim, kernel)

    def forward(self, h: Tensor, scene: Tensor, grid: tuple[int, int]) -> Tensor:  # [B, T, d], [B, C] -> [B, T, d]
        value = F.leaky_relu(self.value(h), 0.2)
        relation = torch.sigmoid(value.mean(dim=1) * self.key(self.dropout(scene)))  # r_g: [B, d]
        weighed = relation[:, None] * value  # c_g
        out: Tensor = weighed + self.convolution(weighed, grid)
        return out
