"""SST (Chen, Cui, Zhao, Song, Zhang & Yoshie, TIP 2022): a transformer over positions and one over labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labelwise.heads.attention_configs import SstConfig
from labelwise.heads.base import AttendingHead, as_tokens
from labelwise.heads.config import DecoderConfig, TokensConfig
from labelwise.heads.layers import EncoderLayer, PerQueryLinear
from labelwise.heads.query_head import Tokens
from labelwise.heads.registry import register_head


@register_head(SstConfig)
class SstHead(AttendingHead):
    """The mean of two answers: from features that know of other positions, and from labels that know of other labels.

    The spatial transformer relates the positions of the map; its tokens, pooled, give the first answer. A map for each
    label disentangles them into one vector per label; the semantic transformer relates these, so that which labels
    occur together is learned and not counted. That there are two transformers and what each relates is the paper's, of
    which we know the abstract; we found no public code. Their order, the sizes and the form of the disentangling,
    attention pooling by a score of every label at every position, are ours.
    """

    config: SstConfig

    def __init__(self, config: SstConfig, in_features: int, labels: int) -> None:
        super().__init__(config, in_features, labels)
        dim = config.dim or in_features
        feedforward = config.feedforward or dim
        self.spatial = Tokens(
            in_features,
            dim,
            feedforward,
            TokensConfig(
                dim=dim,
                project=config.dim is not None,
                positions=config.positions,
                encoder_layers=config.encoder_layers,
            ),
            DecoderConfig(attention_heads=config.attention_heads, dropout=config.dropout),
        )
        self.classifier = nn.Linear(dim, labels)
        self.disentangle = nn.Linear(dim, labels)  # a score of every label at every position
        self.semantic = nn.ModuleList(
            EncoderLayer(dim, config.attention_heads, feedforward, config.dropout) for _ in range(config.encoder_layers)
        )
        self.label_classifier = PerQueryLinear(labels, dim, 1)

    def run(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The weights are those by which the tokens are disentangled."""
        tokens, _ = self.spatial(*as_tokens(x, self.in_features), whole=True)  # [B, T, D]
        attention = self.disentangle(tokens).softmax(dim=1).transpose(1, 2)  # [B, N, T]
        labels = torch.bmm(attention, tokens)  # [B, N, D]
        for layer in self.semantic:
            labels = layer(labels)
        spatial = self.classifier(tokens.mean(dim=1))
        semantic = self.label_classifier(labels.transpose(0, 1))[..., 0].T
        return (spatial + semantic) / 2, attention
