"""One attention per label, by bilinear attention (Kim, Jun & Zhang, NeurIPS 2018): a baseline of LESA's paper."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labelwise.heads.base import AttendingHead, as_tokens
from labelwise.heads.registry import register_head
from labelwise.heads.word_configs import AttentionPerLabelConfig
from labelwise.heads.word_head import LabelVectors, WordHead, region_features


@register_head(AttentionPerLabelConfig)
class AttentionPerLabelHead(WordHead, AttendingHead):
    """A label's word and a region's feature decide together how much the label looks there.

    alpha_c = softmax over regions of p^T (relu(U f_r) * relu(V v_c)), z_c = sum_r alpha_c(f_r) f_r, and the logit is
    <theta_c, z_c> with theta_c = W v_c, as in LESA. Neither paper writes this combination out: it is our reading.
    """

    config: AttentionPerLabelConfig

    def __init__(
        self, config: AttentionPerLabelConfig, in_features: int, labels: int, word_vectors: Tensor | None = None
    ) -> None:
        super().__init__(config, in_features, labels, word_vectors)
        dim = config.dim or in_features
        self.regions = region_features(in_features, config.dim)
        self.keys = nn.Linear(dim, config.rank)  # U
        self.queries = LabelVectors(self.word_dim, config.rank, bias=True, relu=True)  # V
        bound = config.rank**-0.5  # as nn.Linear
        self.mix = nn.Parameter(torch.empty(config.rank).uniform_(-bound, bound))  # p
        self.label_vectors = LabelVectors(self.word_dim, dim)  # W

    def run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens, _ = as_tokens(x, self.in_features)
        regions = self.regions(tokens)
        keys = F.relu(self.keys(regions)) * self.mix  # [B, T, K]
        attention = F.linear(keys, self.queries(self.word_vectors)).softmax(dim=1)  # [B, T, N]
        # <theta_c, z_c> is the attended mean of <theta_c, f_r>: no feature is pooled for each label.
        scores = F.linear(regions, self.label_vectors(self.word_vectors))  # [B, T, N]
        return (attention * scores).sum(dim=1), attention.transpose(1, 2)
